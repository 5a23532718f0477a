"""Hardware in the words of the articles, ``gpus``, ``tpu_cores``, ``strategy: horovod``, as today's trainer keys.

- `said` collects what a config says, `words` knows the vocabulary of Lightning 1 and 2.
- `counts`, `devices`, `strategy`, `rules` and `machine` decide what it comes to, or why it cannot.
- `writing`, `scaling` and `notices` put the decision into the config, and tell today's words.

Apart from LightningCLI, which never sees the old words, and without torch, so that a wrong one is told at once.
"""

from lightkit.config.hardware.resolving import Hardware, resolve_hardware

__all__ = ["Hardware", "resolve_hardware"]
