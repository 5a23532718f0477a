"""The checkpoints that a training has promised, when it has ended well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import ModelCheckpoint

from lightkit import runs
from lightkit.callbacks.checkpoint import Checkpoint
from lightkit.callbacks.checkpoint_io import writes_digests

__all__ = ["broken_promise"]


def broken_promise(trainer: Trainer) -> str | None:
    """Say which checkpoint should be there and is not, or is not what was written; None where all are.

    Every file that a checkpoint callback counts as its own is looked at, wherever it is. Of those that another
    `CheckpointIO` or the strategy has written, which need be no files, it is only asked that they are there.
    """
    is_kept = runs.verify if writes_digests(trainer.strategy) else Path.exists
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, Checkpoint):
            if trainer.global_step:
                for path in (callback.last_path, callback.last_path.with_name("best.ckpt")):
                    if not is_kept(path):
                        return f"{path} {_fault(callback, path)}"
        elif isinstance(callback, ModelCheckpoint):
            if (broken := next(_broken(callback), None)) is not None:
                return broken
            if _lacks_last(callback, trainer):
                return (
                    f"{type(callback).__name__} with save_last has written no checkpoint: its monitor "
                    f"({callback.monitor}) was never logged, or no validation came before which it saves"
                )
    return None


def _fault(callback: Checkpoint, path: Path) -> str:
    """Say what is wrong with a checkpoint of ours."""
    if callback.monitor is None or path.exists() or callback.best_k_models:
        return "is missing or is not what was written"
    return f"was not written: {callback.monitor}, which callbacks.checkpoint monitors, was NaN in each epoch"


def _broken(callback: ModelCheckpoint) -> Iterator[str]:
    counted = [callback.best_model_path, callback.last_model_path, *callback.best_k_models]
    for name in dict.fromkeys(path for path in counted if path and "://" not in path):
        path = Path(name)
        if not path.exists():
            yield f"{path} is missing"
        elif path.is_file() and runs.sidecar(path).exists() and not runs.verify(path):
            yield f"{path} is not what was written"


def _lacks_last(callback: ModelCheckpoint, trainer: Trainer) -> bool:
    if callback.save_last is not True or callback.last_model_path or callback._train_time_interval is not None:
        return False
    every_steps, every_epochs = callback._every_n_train_steps, callback._every_n_epochs
    if every_steps >= 1:
        return trainer.global_step >= every_steps
    return 1 <= every_epochs <= trainer.current_epoch
