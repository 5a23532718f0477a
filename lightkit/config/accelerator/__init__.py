"""The block ``accelerator``: hardware as people say it, resolved to today's trainer keys.

Without torch.
"""

from lightkit.config.accelerator.resolve import Hardware, resolve_hardware

__all__ = ["Hardware", "resolve_hardware"]
