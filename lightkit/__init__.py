"""Train PyTorch Lightning models from layered YAML files.

Importing this package loads neither torch nor Lightning; `LightkitCLI`, `lightkit.models`, `lightkit.data`,
`lightkit.loggers` and `lightkit.callbacks` do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightkit.version import __version__

if TYPE_CHECKING:
    from lightkit.cli.lightning_cli import LightkitCLI

__all__ = ["LightkitCLI", "__version__"]


def __getattr__(name: str) -> object:
    """Import `LightkitCLI` when it is asked for, since it loads torch."""
    if name == "LightkitCLI":
        from lightkit.cli.lightning_cli import LightkitCLI

        return LightkitCLI
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
