"""Check that the disk has room for checkpoints before training, and that all are there after it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint

from lightkit import runs
from lightkit.callbacks.checkpoint import Checkpoint
from lightkit.callbacks.checkpoint_io import first_size_of, writes_digests
from lightkit.errors import CheckpointError
from lightkit.hardware.processor import available_memory_bytes, memory_bytes
from lightkit.runs.disk import check_room, in_bytes

__all__ = ["DiskSpaceMonitor", "missing_checkpoint"]


def missing_checkpoint(trainer: Trainer) -> str | None:
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


_LITTLE_MEMORY = 0.05
_log = logging.getLogger("lightkit")


class DiskSpaceMonitor(Callback):
    """Refuse a training whose first checkpoint fits on no disk, and say once when there is little memory left.

    Args:
        run: The run whose folder has the checkpoints.
    """

    def __init__(self, run: runs.Run) -> None:
        self._run = run
        self._has_told = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at the disk before anything is trained.

        Raises:
            CheckpointError: If it cannot take a checkpoint.
        """
        keepers = [each for each in trainer.checkpoint_callbacks if isinstance(each, ModelCheckpoint)]
        if not keepers or getattr(trainer, "fast_dev_run", False):
            return
        size, fault = first_size_of(pl_module.state_dict(), trainer.optimizers), None
        if trainer.is_global_zero:
            try:
                check_room(self._run.checkpoints / "last.ckpt", size)
            except CheckpointError as error:
                fault = str(error)
        if (fault := trainer.strategy.broadcast(fault)) is not None:
            raise CheckpointError(fault)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at the memory."""
        if self._has_told or not trainer.is_global_zero:
            return
        free, all_of_it = available_memory_bytes(), memory_bytes()
        if free < _LITTLE_MEMORY * all_of_it:
            self._has_told = True
            _log.warning(
                "%s of memory are left of %s: the system may soon end a process. Fewer data.init_args.num_workers or a "
                "smaller batch take less.",
                in_bytes(free),
                in_bytes(all_of_it),
            )
