"""Whether somebody's code may look at a checkpoint, or at the records, as soon as they are written."""

from __future__ import annotations

import inspect
import re
import sys
from typing import Any

from pytorch_lightning import Trainer

from lightkit.callbacks.checkpoint import Checkpoint

__all__ = ["has_onlookers"]

_OURS = ("lightkit", "pytorch_lightning", "lightning_fabric", "torch", "torchmetrics", "torchvision", "builtins")
_LOOKS = re.compile("checkpoint|ckpt", re.IGNORECASE)
# Whose `after_save_checkpoint` does not look at the file, which Lightning tells of as soon as it is written.
_BLIND = ("pytorch_lightning.loggers.logger", "pytorch_lightning.loggers.tensorboard")


def has_onlookers(trainer: Trainer) -> bool:
    """Tell whether anybody but lightkit and Lightning may want a file right after it was written.

    Callbacks and loggers of other authors may, and so may loggers that send checkpoints, strategies of other authors,
    Lightning's own `ModelCheckpoint`, which looks for files of the same name, and a model or data whose module says
    anything of checkpoints.
    """
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    datamodule = getattr(trainer, "datamodule", None)
    return (
        any(type(keeper) is not Checkpoint for keeper in trainer.checkpoint_callbacks)
        or any(_is_foreign(each) or _calls_foreign(each) for each in callbacks)
        or any(_is_foreign(logger) or _sends_checkpoints(logger) for logger in trainer.loggers)
        or _is_foreign(trainer.strategy)
        or any(_speaks_of_checkpoints(part) for part in (trainer.lightning_module, datamodule))
    )


def _is_foreign(part: Any) -> bool:
    return not _is_ours(type(part).__module__)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in _OURS


def _calls_foreign(callback: Any) -> bool:
    """Tell whether a callback was given its hooks, as a `LambdaCallback` is, by somebody else."""
    return any(inspect.isroutine(value) and not _is_ours(value.__module__ or "") for value in vars(callback).values())


def _sends_checkpoints(logger: Any) -> bool:
    module = type(logger).after_save_checkpoint.__module__
    return module not in _BLIND and not module.startswith("lightkit.")


def _speaks_of_checkpoints(part: Any) -> bool:
    modules = {kind.__module__ for kind in type(part).__mro__ if not _is_ours(kind.__module__)}
    return any(_LOOKS.search(source) for source in map(_source_of, modules))


def _source_of(module: str) -> str:
    try:
        return inspect.getsource(sys.modules[module])
    except (OSError, TypeError, KeyError):  # typed into a session, compiled, or gone: it may say anything
        return "checkpoint"
