"""Whether somebody's code may look at a checkpoint, or at the records, as soon as they are written."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from pytorch_lightning import Callback, Trainer
from pytorch_lightning.strategies import Strategy

from lightkit import runs
from lightkit.callbacks.checkpoint import Checkpoint
from lightkit.callbacks.checkpoint_io import writes_digests
from lightkit.callbacks.sources import home_of, is_ours, parts_of, says, source_modules

__all__ = ["foreign_callbacks", "has_onlookers"]

_log = logging.getLogger("lightkit")

_LOOKS = re.compile(
    r"checkpoint|ckpt|best_model|last_good|metrics_path|events_path|summary|manifest|metrics\.csv|events\.jsonl"
    r"|lightkit\.runs|import lightkit\b|lightkit import[\s(]+[\w\s,]*\bruns\b",
    re.IGNORECASE,
)
# A callback is given the trainer, which knows the folders.
_FINDS = re.compile(
    rf"{_LOOKS.pattern}|log_dir|root_dir|save_dir|dirpath|\bruns/|subprocess|os\.system|popen|import_module|__import__",
    re.IGNORECASE,
)
# Whose `after_save_checkpoint` does not look at the file, which Lightning tells of as soon as it is written.
_BLIND = ("pytorch_lightning.loggers.logger", "pytorch_lightning.loggers.tensorboard")


def has_onlookers(trainer: Trainer, writer: runs.Writer) -> bool:
    """Tell whether anybody but lightkit and Lightning may want a file right after it was written.

    Loggers, trainers and strategies of other authors may, and so may loggers that send checkpoints, Lightning's own
    `ModelCheckpoint`, which looks for files of the same name, and a callback, a model or data whose module, or another
    of its author's that this imports, says anything of checkpoints or of the records; a callback's also of folders.

    So may whatever puts checkpoints in place without the writer: another `CheckpointIO`, be it Lightning's, or a
    strategy that writes them itself. The records of an epoch would come after its checkpoint.

    Args:
        trainer: As it trains, with its model and data.
        writer: Writes the records.
    """
    datamodule = getattr(trainer, "datamodule", None)
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    return (
        any(type(keeper) is not Checkpoint for keeper in trainer.checkpoint_callbacks)
        or any(_is_foreign(part) for part in (*trainer.loggers, trainer, trainer.strategy))
        or any(_sends_checkpoints(logger) for logger in trainer.loggers)
        or not _saves_with(writer, trainer.strategy)
        or any(_may_look(part) for part in (*callbacks, trainer.lightning_module, datamodule))
    )


def foreign_callbacks(trainer: Trainer) -> list[Any]:
    """Give what has hooks of somebody's own: callbacks, loggers and the trainer, if neither lightkit nor Lightning."""
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    calling = [each for each in callbacks if _is_foreign(each) or _calls_foreign(each)]
    return [*calling, *(part for part in (*trainer.loggers, trainer) if _is_foreign(part))]


def _saves_with(writer: runs.Writer, strategy: Strategy) -> bool:
    plugin: Any = strategy.checkpoint_io
    return writes_digests(strategy) and not _is_foreign(plugin) and plugin.writer is writer


def _is_foreign(part: Any) -> bool:
    return not is_ours(type(part).__module__)


def _calls_foreign(callback: Any) -> bool:
    """Tell whether a callback was given its hooks, as a `LambdaCallback` is, by somebody else."""
    return any(callable(value) and not is_ours(home_of(value)) for value in vars(callback).values())


def _sends_checkpoints(logger: Any) -> bool:
    module = type(logger).after_save_checkpoint.__module__
    return module not in _BLIND and not module.startswith("lightkit.")


def _may_look(part: Any) -> bool:
    """Tell whether somebody's part may look at a file; one that nobody can tell it of may."""
    try:
        if not isinstance(part, Callback):
            return says(source_modules(part), _LOOKS)
        beside = parts_of(part)
        texts = (str(value) for value in beside if isinstance(value, str | Path))
        is_foreign = bool(modules := source_modules(part, *beside))
        return is_foreign and (any(map(_FINDS.search, texts)) or says(modules, _FINDS))
    except Exception as error:  # noqa: BLE001 (the code is anybody's, and to wait for the disk ends no training)
        _log.debug("%s may look at files: its source cannot be read (%s)", type(part).__name__, error)
        return True
