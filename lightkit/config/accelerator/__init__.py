"""The block ``accelerator``: hardware in the words of the articles, as today's trainer keys, and how to compute on it.

- `said` collects what a config says, `words` knows the vocabulary of Lightning 1 and 2.
- `counts`, `devices`, `strategy`, `rules` and `machine` decide what it comes to, or why it cannot.
- `computing` parts what is fixed, which goes to the key that `homes` knows, from the section that stays: `settings`.
- `auto` is the rule for ``auto``: values from the hardware.
- `writing`, `scaling` and `notices` put the decision into the config, and tell today's words.

Apart from LightningCLI, which never sees the old words, and without torch, so that a wrong one is told at once.
"""

from lightkit.config.accelerator.resolving import Hardware, resolve_hardware

__all__ = ["Hardware", "resolve_hardware"]
