"""Stop training in time for a deadline: after an epoch, or a batch, that still leaves room for what follows."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer

from lightkit.callbacks.checkpoint import DistributedFlag, can_save_within_epoch, save_within_epoch
from lightkit.errors import OutOfTime

STOPPED_BY = "deadline"
"""What the records of a run that ended early, and well, say of the reason."""

_MARGIN = 1.1  # epochs differ in length
_LEAVE_S = 2.0  # loggers, and the end of the process
_log = logging.getLogger("lightkit")


class StopAtDeadline(Callback):
    """End the training early, and well, where the next epoch would not be done in time.

    How long it takes is the median of the epochs so far, and a tenth. An epoch that turns out to be longer is ended
    after a batch, in time to be validated as the last one was. Without one complete epoch, training is saved and ends
    with `OutOfTime`, and the same command goes on. Lightning's `Timer` knows neither what an epoch takes nor what
    follows.

    The first rank decides for all.

    Args:
        deadline: Moment by which the process has to be done, with its zone.
        last_good: Returns the newest checkpoint of the run that can be read, or None.
        stopped: Called where training is ended early, with `STOPPED_BY`.
        clock: Seconds since the epoch of Unix.
    """

    def __init__(
        self,
        deadline: datetime,
        *,
        last_good: Callable[[], Path | None],
        stopped: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._deadline_s = deadline.timestamp() - _LEAVE_S
        self._shown = f"{deadline.astimezone():%Y-%m-%d %H:%M:%S}"
        self._last_good, self._stopped, self._clock = last_good, stopped, clock
        self._epochs_s: list[float] = []
        self._began_s = self._batch_ended_s = clock()
        self._rest_s = 0.0  # from the last batch of an epoch to the next epoch: validation and checkpoint
        self._num_batches = 0
        self._is_late = False
        self._flag = DistributedFlag()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock; a training that is resumed may have no time at all."""
        self._began_s = self._batch_ended_s = self._clock()
        self._stop_if_late(trainer, self._began_s >= self._deadline_s)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock, and measure what followed the last batch of the epoch before."""
        now_s = self._clock()
        if self._epochs_s:
            self._rest_s = now_s - self._batch_ended_s
        self._began_s = self._batch_ended_s = now_s
        self._num_batches = 0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stop within the epoch where its validation would come too late otherwise."""
        self._num_batches += 1
        now_s = self._clock()
        batch_s, self._batch_ended_s = now_s - self._batch_ended_s, now_s
        if trainer.is_last_batch or trainer.fit_loop.done:
            return
        step_s = batch_s * trainer.accumulate_grad_batches  # training can be saved after an optimizer step
        self._is_late = self._is_late or self._deadline_s - now_s <= _MARGIN * (step_s + self._rest_s)
        if self._flag.after_batch(trainer, self._is_late and trainer.is_global_zero):
            self._stop(trainer, batch_idx)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop here where one more epoch would come too late.

        Lightning calls this again, without batches, when it resumes from a checkpoint at the end of an epoch.
        """
        if not self._num_batches:
            return
        now_s = self._clock()
        part = min(1.0, self._num_batches / trainer.num_training_batches)  # of an epoch that was resumed within
        self._epochs_s.append((now_s - self._began_s) / (part or 1.0))
        is_late = self._deadline_s - now_s <= self._rest_s + _MARGIN * statistics.median(self._epochs_s)
        self._stop_if_late(trainer, is_late and not trainer.fit_loop.done)

    def _stop_if_late(self, trainer: Trainer, is_late: bool) -> None:
        if trainer.strategy.reduce_boolean_decision(is_late and trainer.is_global_zero, all=False):
            self._stop(trainer, None)

    def _stop(self, trainer: Trainer, batch_idx: int | None) -> None:
        """End after this epoch; without a complete one, save where that resumes exactly, and end now.

        Raises:
            OutOfTime: In the second case.
        """
        if self._epochs_s or trainer.current_epoch > 0:
            _log.info(f"stops training in epoch {trainer.current_epoch}: the deadline is {self._shown}")
            trainer.fit_loop.min_epochs = 0  # which ask for more than there is time for
            trainer.fit_loop.epoch_loop.min_steps = None
            trainer.should_stop = True
            self._stopped(STOPPED_BY)
            return
        if batch_idx is not None and can_save_within_epoch(trainer, batch_idx):
            if (batch_idx + 1) % trainer.accumulate_grad_batches != 0:
                return  # a few more batches lead to where that can be resumed
            save_within_epoch(trainer, batch_idx)
        text = f"The deadline ({self._shown}) leaves no time for the first epoch"
        if (saved := self._last_good()) is not None:
            raise OutOfTime(f"{text}; the same command goes on from {saved}.")
        raise OutOfTime(f"{text}, and nothing could be saved before its end. Say a later --deadline.")
