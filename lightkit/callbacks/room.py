"""The disk and the memory that a training has left."""

from __future__ import annotations

import logging

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint

from lightkit import runs
from lightkit.callbacks.sizes import first_size_of
from lightkit.errors import CheckpointError
from lightkit.hardware.processor import available_memory_bytes, memory_bytes
from lightkit.runs.disk import check_room, in_bytes

__all__ = ["EnoughRoom"]

_LITTLE_MEMORY = 0.05
_log = logging.getLogger("lightkit")


class EnoughRoom(Callback):
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
