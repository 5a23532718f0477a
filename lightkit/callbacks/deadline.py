"""Stop training in time for a deadline: after an epoch, or a batch, that still leaves room for what follows."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer

from lightkit.callbacks.checkpoint import Checkpoint, DistributedFlag, can_save_within_epoch
from lightkit.errors import OutOfTime

STOPPED_BY = "deadline"
"""What the records of a run that ended early, and well, say of the reason."""

_MARGIN = 1.1  # epochs differ in length
_LEAVE_S = 2.0  # loggers, and the end of the process
_log = logging.getLogger("lightkit")


class StopAtDeadline(Callback):
    """End the training early, and well, where the next epoch would not be done in time.

    How long it takes is the median of the epochs so far, and a tenth. An epoch that turns out to be longer is ended
    after a batch, in time to be validated. Without one epoch that could be judged, training is saved and ends with
    `OutOfTime`, and the same command goes on. Lightning's `Timer` knows neither what an epoch takes nor what follows.

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
        self._deadline_s = deadline.timestamp()
        self._shown = f"{deadline.astimezone():%Y-%m-%d %H:%M:%S}"
        self._last_good, self._stopped, self._clock = last_good, stopped, clock
        self._epochs_s: list[float] = []
        self._epoch_began_s = self._batch_ended_s = self._validation_began_s = clock()
        self._epoch_ended_s: float | None = None
        self._validation_s: float | None = None
        self._save_s = 0.0
        self._num_batches = 0
        self._has_result = self._is_late = False
        self._flag = DistributedFlag()

    @property
    def _left_s(self) -> float:
        return self._deadline_s - self._clock() - _LEAVE_S

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock; a training that is resumed may have no time at all."""
        self._start_clock()
        self._has_result = trainer.current_epoch > 0
        if self._decide(trainer, self._left_s <= 0):
            self._stop(trainer, batch_idx=None)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock, and measure how long the checkpoint of the epoch before took."""
        if self._epoch_ended_s is not None:
            self._save_s = self._clock() - self._epoch_ended_s
        self._start_clock()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stop within the epoch where its validation would come too late otherwise."""
        self._num_batches += 1
        batch_s, self._batch_ended_s = self._clock() - self._batch_ended_s, self._clock()
        if trainer.is_last_batch or trainer.fit_loop.done:
            return
        self._is_late = self._is_late or self._left_s <= _MARGIN * (batch_s + self._validate_and_save_s(trainer))
        if self._flag.after_batch(trainer, self._is_late and trainer.is_global_zero):
            self._stop(trainer, batch_idx=batch_idx)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the time."""
        self._validation_began_s = self._clock()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure the validation: from here on there is something to judge."""
        if not trainer.sanity_checking:
            self._validation_s = self._clock() - self._validation_began_s
            self._batch_ended_s = self._clock()
            self._has_result = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop here where one more epoch would come too late.

        Lightning calls this again, without batches, when it resumes from a checkpoint at the end of an epoch.
        """
        if not self._num_batches:
            return
        self._epoch_ended_s = self._clock()
        part = min(1.0, self._num_batches / trainer.num_training_batches)  # of an epoch that was resumed within
        self._epochs_s.append((self._epoch_ended_s - self._epoch_began_s) / (part or 1.0))
        self._has_result = True
        is_late = self._left_s <= 2 * self._save_s + _MARGIN * statistics.median(self._epochs_s)
        if self._decide(trainer, is_late and not trainer.fit_loop.done):
            self._stop(trainer, batch_idx=None)

    def _start_clock(self) -> None:
        self._epoch_began_s = self._batch_ended_s = self._clock()
        self._num_batches = 0

    def _validate_and_save_s(self, trainer: Trainer) -> float:
        """Estimate the seconds from the last batch to the checkpoint; a first validation takes as long as training."""
        if self._validation_s is not None:
            return self._validation_s + self._save_s
        num_batches = sum(number for number in trainer.num_val_batches if number != math.inf)
        return num_batches * (self._clock() - self._epoch_began_s) / self._num_batches

    def _decide(self, trainer: Trainer, is_due: bool) -> bool:
        """Let the first rank decide for all: their clocks differ."""
        return trainer.strategy.reduce_boolean_decision(is_due and trainer.is_global_zero, all=False)

    def _stop(self, trainer: Trainer, *, batch_idx: int | None) -> None:
        """End after this epoch; without an epoch to judge, save where that resumes exactly, and end now.

        Raises:
            OutOfTime: In the second case.
        """
        if self._has_result:
            _log.info(f"stops training in epoch {trainer.current_epoch}: the deadline is {self._shown}")
            trainer.fit_loop.min_epochs = 0  # which ask for more than there is time for
            trainer.fit_loop.epoch_loop.min_steps = None
            trainer.should_stop = True
            self._stopped(STOPPED_BY)
            return
        keeper = next((each for each in trainer.checkpoint_callbacks if isinstance(each, Checkpoint)), None)
        if keeper is not None and batch_idx is not None and can_save_within_epoch(trainer, batch_idx):
            if (batch_idx + 1) % trainer.accumulate_grad_batches != 0:
                return  # a few more batches lead to where that can be resumed
            keeper.save_last_now(trainer)
        says, saved = f"The deadline ({self._shown}) leaves no time for the first epoch", self._last_good()
        if saved is not None:
            raise OutOfTime(f"{says}; the same command goes on from {saved}.")
        raise OutOfTime(f"{says}, and nothing could be saved before its end. Say a later --deadline.")
