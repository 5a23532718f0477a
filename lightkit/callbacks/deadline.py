"""Stop training in time for a deadline: after an epoch, or a batch, that still leaves room for what follows."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from pytorch_lightning import Callback, LightningModule, Trainer

from lightkit.callbacks.checkpoint import Checkpoint, DistributedFlag, can_save_within_epoch, is_last_for_now
from lightkit.errors import OutOfTime
from lightkit.runs.deadline import format_duration

STOPPED_BY = "deadline"
"""What the records of a run that ended early, and well, say of the reason."""

_MARGIN = 1.1  # epochs differ in length
_LEAVE_S = 2.0  # loggers, and the end of the process
_NEAR_S = 60.0  # with less to spare ranks ask after each batch; the 0.2 s without a question may become 300 times that
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
        self._last_good = last_good
        self._stopped = stopped
        self._clock = clock
        self._epochs_s: list[float] = []
        self._epoch_began_s = 0.0
        self._epoch_ended_s: float | None = None
        self._batches_began_s = self._batch_ended_s = 0.0
        self._num_batches = 0
        self._validation_began_s = 0.0
        self._validation_s: float | None = None
        self._save_s = 0.0
        self._can_be_judged = False
        self._asked = DistributedFlag()
        self._is_late = self._has_paused = False

    @property
    def _left_s(self) -> float:
        return self._deadline_s - self._clock() - _LEAVE_S

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A training that is resumed may have no time at all; within an epoch, it gets no other start of that."""
        self._start_clock()
        self._can_be_judged = trainer.current_epoch > 0
        if self._decide(trainer, self._left_s <= 0):
            self._stop(trainer, batch_idx=None)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The epoch before is over, its checkpoint written."""
        if self._epoch_ended_s is not None:
            self._epochs_s.append(self._whole_s(trainer, self._clock() - self._epoch_began_s))
            self._save_s = self._clock() - self._epoch_ended_s
        self._start_clock()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stop within the epoch where its validation would come too late otherwise."""
        self._num_batches += 1
        batch_s, self._batch_ended_s = self._clock() - self._batch_ended_s, self._clock()
        if _is_stopping(trainer) or trainer.is_last_batch:
            return
        validates = _validates_after(trainer, batch_idx)  # for the last time, if training stops here
        spare_s = self._left_s - _MARGIN * batch_s - self._tail_s(trainer, validations=1 + validates)
        self._is_late = self._is_late or spare_s <= 0  # one more is too many, and stays so until all know
        if not self._all_know(trainer, soon=spare_s <= _NEAR_S, at_once=validates):
            return
        if validates and not self._can_be_judged:
            self._can_be_judged = self._decide(trainer, self._left_s > self._tail_s(trainer))
        self._stop(trainer, batch_idx=batch_idx)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the time."""
        self._validation_began_s = self._clock()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """From here on there is something to judge."""
        if trainer.sanity_checking:
            return
        self._validation_s = self._clock() - self._validation_began_s
        self._batches_began_s += self._validation_s
        self._batch_ended_s += self._validation_s
        self._can_be_judged = self._has_paused = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop here where one more epoch would come too late.

        Lightning calls this again, without batches, when it resumes from a checkpoint at the end of an epoch.
        """
        if not self._num_batches:
            return
        self._epoch_ended_s = self._clock()
        epoch_s = self._whole_s(trainer, self._epoch_ended_s - self._epoch_began_s)
        next_s = statistics.median([*self._epochs_s, epoch_s])
        self._can_be_judged = True
        is_late = self._left_s <= self._save_s + _MARGIN * next_s
        if self._decide(trainer, is_late and not (_is_stopping(trainer) or _is_done(trainer))):
            self._stop(trainer, batch_idx=None)

    def _start_clock(self) -> None:
        self._epoch_began_s = self._batches_began_s = self._batch_ended_s = self._clock()
        self._epoch_ended_s = None
        self._num_batches = 0
        self._is_late, self._has_paused = False, True

    def _whole_s(self, trainer: Trainer, seconds: float) -> float:
        """Give the seconds of a whole epoch for those of one that was resumed within."""
        total = trainer.num_training_batches
        is_part = 0 < self._num_batches < total < float("inf")
        return seconds * total / self._num_batches if is_part else seconds

    def _tail_s(self, trainer: Trainer, *, validations: int = 1) -> float:
        """Seconds from the end of the last batch to that of the checkpoint: validation takes as long as training did.

        That holds until one has been measured; a validation batch takes less than one of training.
        """
        validation_s = self._validation_s
        if validation_s is None:
            batches = [number for number in trainer.num_val_batches if number != float("inf")]
            validation_s = sum(batches) * (self._clock() - self._batches_began_s) / self._num_batches
        return _MARGIN * (validations * validation_s + self._save_s)

    def _decide(self, trainer: Trainer, is_due: bool) -> bool:
        """Let the first rank decide for all, there and then: their clocks differ."""
        if trainer.world_size == 1:
            return is_due
        return trainer.strategy.reduce_boolean_decision(is_due and trainer.is_global_zero, all=False)

    def _all_know(self, trainer: Trainer, *, soon: bool, at_once: bool) -> bool:
        """Tell after a batch whether all ranks know that the first one is late."""
        at_once, self._has_paused = at_once or self._has_paused, False
        is_first = trainer.is_global_zero
        return self._asked.after_batch(trainer, is_first and self._is_late, soon=is_first and soon, at_once=at_once)

    def _stop(self, trainer: Trainer, *, batch_idx: int | None) -> None:
        if not self._can_be_judged:
            self._give_up(trainer, batch_idx)
            return
        _log.info(f"stops training in epoch {trainer.current_epoch}: the deadline is {self._shown}")
        trainer.fit_loop.min_epochs = 0  # which ask for more than there is time for
        trainer.fit_loop.epoch_loop.min_steps = None
        trainer.should_stop = True
        self._stopped(STOPPED_BY)

    def _give_up(self, trainer: Trainer, batch_idx: int | None) -> None:
        """Save where that resumes exactly, and end; within an accumulation a few more batches lead there."""
        if batch_idx is not None:
            keeper = next((each for each in trainer.checkpoint_callbacks if isinstance(each, Checkpoint)), None)
            can_save = keeper is not None and can_save_within_epoch(trainer, batch_idx)
            if can_save and (batch_idx + 1) % trainer.accumulate_grad_batches != 0:
                return
            if keeper is not None and can_save:
                keeper.save_last_now(trainer)
        self._out_of_time(trainer)

    def _out_of_time(self, trainer: Trainer) -> NoReturn:
        saved = self._last_good()
        says = f"The deadline ({self._shown}) leaves no time for the first epoch"
        if saved is not None:
            raise OutOfTime(f"{says}; the same command goes on from {saved}.")
        raise OutOfTime(f"{says}, and nothing could be saved before its end.{self._needed(trainer)}")

    def _needed(self, trainer: Trainer) -> str:
        """Say how long an epoch takes, as far as that is known."""
        total = trainer.num_training_batches
        if not self._num_batches or total == float("inf"):
            return " Say a later --deadline."
        epoch_s = (self._clock() - self._batches_began_s) / self._num_batches * total + self._tail_s(trainer)
        return f" It takes about {format_duration(epoch_s)}: say a later --deadline."


def _is_stopping(trainer: Trainer) -> bool:
    """Whether training is about to end; a stop that the fewest epochs or steps hold back may be long in coming."""
    return trainer.should_stop and trainer.fit_loop._can_stop_early


def _validates_after(trainer: Trainer, batch_idx: int) -> bool:
    """Whether a validation comes now, within the epoch."""
    return is_last_for_now(trainer, batch_idx) and trainer.fit_loop.epoch_loop._should_check_val_epoch()


def _is_done(trainer: Trainer) -> bool:
    """Whether this epoch is the last one in any case."""
    epochs, steps = trainer.max_epochs, trainer.max_steps
    return (epochs is not None and 0 <= epochs <= trainer.current_epoch + 1) or 0 <= steps <= trainer.global_step
