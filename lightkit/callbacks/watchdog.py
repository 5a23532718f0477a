"""Report progress to the watchdog of this process, and save what a hang has not spoilt."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.trainer.states import TrainerFn

from lightkit.callbacks.checkpoint import save_within_epoch
from lightkit.errors import CheckpointError
from lightkit.launch.watchdog import Hung, Watchdog, heartbeat

_log = logging.getLogger("lightkit")
_PHASES = {
    "on_fit_start": "start",  # a checkpoint is restored, and the first batch loaded
    "on_sanity_check_start": "sanity_check",
    "on_train_epoch_start": "train",
    "on_train_epoch_end": "epoch_end",  # metrics are computed; checkpoints follow
    "on_train_end": "end",  # loggers send what they hold back, and close
    "on_test_start": "test",
    "on_test_epoch_end": "test",
    "on_predict_start": "predict",
    "on_predict_epoch_end": "predict",
}
"""Hooks that begin a phase."""
_BATCHES = {
    "on_train_batch_end": "train",
    "on_test_batch_end": "test",
    "on_predict_batch_end": "predict",
}


class StallWatch(Callback):
    """Start a watchdog at the first batch and stop it after the last.

    Each finished one is a sign of life.

    Before that data may be downloaded for as long as it takes, while other ranks wait.

    Args:
        watchdog: Ends this process where no sign follows for too long.
        gently: Let a process that trains alone save and close its files before it ends. Of several
            that train together none can save by itself.
    """

    def __init__(self, watchdog: Watchdog, *, gently: bool = True) -> None:
        self._watchdog = watchdog
        self._gently = gently
        self._began_at_step = 0
        self._beat = heartbeat()
        for hook, phase in _PHASES.items():
            setattr(self, hook, partial(self._enter, phase))
        for hook, phase in _BATCHES.items():
            setattr(self, hook, partial(self._count_batch, phase))

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """No loading process has begun yet."""
        self._watchdog.prepare(gently=self._gently and trainer.world_size == 1)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Before the first batch that trains."""
        self._began_at_step = trainer.global_step
        self._enter("train")

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Before the first batch of a validation."""
        self._enter("sanity_check" if trainer.sanity_checking else "validate")

    def on_validation_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """One more batch is done."""
        self._count_batch("sanity_check" if trainer.sanity_checking else "validate")

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Metrics are computed."""
        self._enter(self._beat.phase)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Training goes on, if it is one."""
        self._enter("train" if trainer.state.fn == TrainerFn.FITTING else "validate")

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """A checkpoint is written next, however large."""
        self._beat.enter("checkpoint")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """The loops are done."""
        self._watchdog.stop()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Save what is whole where this process hangs.

        The watchdog then waits for its end. Else the loops are done.
        """
        if not isinstance(exception, Hung):
            self._watchdog.stop()
            return
        # all that training has changed so far must belong to batches that are done, and can be
        # resumed
        batches: Any = trainer.fit_loop.epoch_loop.batch_progress.current
        done = batches.completed
        is_between = batches.ready == done > 0
        has_trained = trainer.training and trainer.global_step > self._began_at_step
        if has_trained and is_between:
            # As the end of the batch before would have: Lightning resumes from there, and nothing
            # is trained any more.
            loop: Any = trainer.fit_loop.epoch_loop
            loop.batch_progress.current.completed -= 1
            loop.batch_progress.total.completed -= 1
            loop._batches_that_stepped -= 1
            try:
                save_within_epoch(trainer, done - 1)
            except CheckpointError as error:
                _log.warning("%s", error)

    def _enter(self, phase: str, *_args: Any, **_kwargs: Any) -> None:
        self._beat.enter(phase)
        self._watchdog.start()

    def _count_batch(self, phase: str, *_args: Any, **_kwargs: Any) -> None:
        self._beat.step(phase)
