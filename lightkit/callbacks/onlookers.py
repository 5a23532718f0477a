"""Whether somebody's code may look at a checkpoint, or at the records, as soon as they are written."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from typing import Any

from pytorch_lightning import Trainer
from pytorch_lightning.strategies import Strategy

from lightkit import runs
from lightkit.callbacks.checkpoint import Checkpoint
from lightkit.callbacks.checkpoint_io import VerifiedCheckpointIO

__all__ = ["OURS", "foreign_callbacks", "has_onlookers", "writes_digests"]

OURS = ("lightkit", "pytorch_lightning", "lightning_fabric", "torch", "torchmetrics", "torchvision", "builtins")
"""Packages whose code is nobody's own, and looks at no file of a run."""
_LOOKS = re.compile(
    r"checkpoint|ckpt|best_model|last_good|metrics_path|events_path|summary|lightkit\.runs|lightkit import .*\bruns\b",
    re.IGNORECASE,
)
# Whose `save_checkpoint` leaves the file to the trainer's `CheckpointIO`.
_BY_PLUGIN = ("pytorch_lightning.strategies.strategy", "pytorch_lightning.strategies.xla")
# Whose `after_save_checkpoint` does not look at the file, which Lightning tells of as soon as it is written.
_BLIND = ("pytorch_lightning.loggers.logger", "pytorch_lightning.loggers.tensorboard")


def has_onlookers(trainer: Trainer, writer: runs.Writer) -> bool:
    """Tell whether anybody but lightkit and Lightning may want a file right after it was written.

    Callbacks, loggers, trainers and strategies of other authors may, and so may loggers that send checkpoints,
    Lightning's own `ModelCheckpoint`, which looks for files of the same name, and a model or data whose module says
    anything of checkpoints or of the records. What such a module calls in others of its author is not seen.

    So may whatever puts checkpoints in place without the writer: another `CheckpointIO`, be it Lightning's, or a
    strategy that writes them itself. The records of an epoch would come after its checkpoint.

    Args:
        trainer: As it trains, with its model and data.
        writer: Writes the records.
    """
    datamodule = getattr(trainer, "datamodule", None)
    return (
        any(type(keeper) is not Checkpoint for keeper in trainer.checkpoint_callbacks)
        or bool(foreign_callbacks(trainer))
        or any(_sends_checkpoints(logger) for logger in trainer.loggers)
        or _is_foreign(trainer.strategy)
        or not _saves_with(writer, trainer.strategy)
        or any(_speaks_of_checkpoints(part) for part in (trainer.lightning_module, datamodule))
    )


def foreign_callbacks(trainer: Trainer) -> list[Any]:
    """Give what has hooks of somebody's own: callbacks, loggers and the trainer, if neither lightkit nor Lightning."""
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    calling = [each for each in callbacks if _is_foreign(each) or _calls_foreign(each)]
    return [*calling, *(part for part in (*trainer.loggers, trainer) if _is_foreign(part))]


def writes_digests(strategy: Strategy) -> bool:
    """Tell whether checkpoints have a digest beside them: those that a strategy leaves to a `VerifiedCheckpointIO`."""
    by_plugin = type(strategy).save_checkpoint.__module__ in _BY_PLUGIN
    return by_plugin and isinstance(strategy.checkpoint_io, VerifiedCheckpointIO)


def _saves_with(writer: runs.Writer, strategy: Strategy) -> bool:
    plugin: Any = strategy.checkpoint_io
    return writes_digests(strategy) and not _is_foreign(plugin) and plugin.writer is writer


def _is_foreign(part: Any) -> bool:
    return not _is_ours(type(part).__module__)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in OURS


def _calls_foreign(callback: Any) -> bool:
    """Tell whether a callback was given its hooks, as a `LambdaCallback` is, by somebody else."""
    return any(callable(value) and not _is_ours(_home_of(value)) for value in vars(callback).values())


def _home_of(called: Any) -> str:
    """Name the module of what is called in the end; that of its class where it is no function."""
    while isinstance(called, functools.partial):
        called = called.func
    if inspect.isbuiltin(called):  # such as `time.time`, and methods of lists
        return "builtins"
    is_named = inspect.isroutine(called) or inspect.isclass(called)
    return (called if is_named else type(called)).__module__ or ""


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
