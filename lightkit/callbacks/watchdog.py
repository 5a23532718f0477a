"""Tells the watchdog of this process that it goes on, and saves what a hang has not spoilt."""

from __future__ import annotations

import logging
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.trainer.states import TrainerFn

from lightkit.callbacks.checkpoint import Checkpoint, can_save_within_epoch
from lightkit.errors import CheckpointError
from lightkit.launch import Hung, Watchdog, heartbeat

_log = logging.getLogger("lightkit")


class StallWatch(Callback):
    """Let a watchdog watch from the first batch to the last, each finished one a sign of life.

    Before that data may be downloaded for as long as it takes, while other ranks wait.

    Args:
        watchdog: Ends this process where no sign follows for too long.
        gently: Let a process that trains alone save and close its files before it ends. Of several that train
            together none can save by itself.
    """

    def __init__(self, watchdog: Watchdog, *, gently: bool = True) -> None:
        self._watchdog = watchdog
        self._gently = gently
        self._began_at_step = 0
        self._beat = heartbeat()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """No loading process has begun yet."""
        self._watchdog.prepare(gently=self._gently and trainer.world_size == 1)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Data are there; what comes now is restoring a checkpoint, and the first batch."""
        self._enter("start")

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Before the first batch of a fit."""
        self._enter("sanity_check")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Before the first batch that trains."""
        self._began_at_step = trainer.global_step
        self._enter("train")

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The loaders' processes begin."""
        self._enter("train")

    def on_train_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """One more batch is done."""
        self._beat.step("train")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Metrics are computed; checkpoints follow."""
        self._enter("epoch_end")

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Before the first batch of a validation."""
        self._enter("sanity_check" if trainer.sanity_checking else "validate")

    def on_validation_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """One more batch is done."""
        self._beat.step("sanity_check" if trainer.sanity_checking else "validate")

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Metrics are computed."""
        self._enter(self._beat.phase)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Training goes on, if it is one."""
        self._enter("train" if trainer.state.fn == TrainerFn.FITTING else "validate")

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Before the first batch of a test."""
        self._enter("test")

    def on_test_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """One more batch is done."""
        self._beat.step("test")

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Metrics are computed."""
        self._enter("test")

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Before the first batch of a prediction."""
        self._enter("predict")

    def on_predict_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """One more batch is done."""
        self._beat.step("predict")

    def on_predict_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """What has not been written is written now."""
        self._enter("predict")

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """A checkpoint is written next, however large."""
        self._beat.enter("checkpoint")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Loggers close, and send what they hold back."""
        self._enter("end")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """The loops are done."""
        self._watchdog.stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Save what is whole where this process hangs; the watchdog then waits for its end. Else the loops are done."""
        if not isinstance(exception, Hung):
            self._watchdog.stop()
        elif self._is_between_batches(trainer):
            _save(trainer)

    def _enter(self, phase: str) -> None:
        self._beat.enter(phase)
        self._watchdog.start()

    def _is_between_batches(self, trainer: Trainer) -> bool:
        """Tell whether all that training has changed so far belongs to batches that are done, and can be resumed."""
        if not trainer.training or trainer.global_step <= self._began_at_step:
            return False
        batches: Any = trainer.fit_loop.epoch_loop.batch_progress.current
        done = batches.completed
        is_between = batches.ready == done > 0 and done % trainer.accumulate_grad_batches == 0
        return is_between and can_save_within_epoch(trainer, done - 1)


def _save(trainer: Trainer) -> None:
    """Write `last.ckpt` as the end of the batch before would have: Lightning resumes from there."""
    keeper = next((each for each in trainer.checkpoint_callbacks if isinstance(each, Checkpoint)), None)
    if keeper is None:
        return
    loop: Any = trainer.fit_loop.epoch_loop
    loop.batch_progress.current.completed -= 1  # as in `on_train_batch_end`; nothing is trained any more
    loop.batch_progress.total.completed -= 1
    loop._batches_that_stepped -= 1
    try:
        keeper.save_last_now(trainer)
    except CheckpointError as error:
        _log.warning("%s", error)
