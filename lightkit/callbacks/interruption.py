"""Stop a training in order: when a signal has arrived, or in time for a deadline."""

from __future__ import annotations

import logging
import signal
import statistics
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import EarlyStopping, Timer
from pytorch_lightning.callbacks.early_stopping import EarlyStoppingReason
from pytorch_lightning.strategies.launchers import _SubprocessScriptLauncher

from lightkit.callbacks.checkpoint import (
    DistributedFlag,
    can_save_within_epoch,
    is_last_for_now,
    save_within_epoch,
)
from lightkit.errors import Interrupted, OutOfTime, TooLittleTime
from lightkit.runs.clock import elapsed_s
from lightkit.runs.deadline import Deadline
from lightkit.runs.signals import SignalWatch

_log = logging.getLogger("lightkit")
_LEAVE_S = 2.0  # loggers, and the end of the process


class StopOnSignal(Callback):
    """Raise `Interrupted` between two batches once the watch has received a signal.

    Of several processes that train together all stop after the same batch, whichever got the
    signal: this one, or where batches are short one of the next few, but always before a
    validation.

    Args:
        watch: Handler of SIGINT and SIGTERM, which lets signals wait while training runs.
        last_good: Returns the newest checkpoint of the run that can be read, or None. All ranks go
            by the first one's.
    """

    def __init__(self, watch: SignalWatch, *, last_good: Callable[[], Path | None]) -> None:
        self._watch = watch
        self._last_good = last_good
        self._flag = DistributedFlag()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave all signals to the watch.

        Lightning 2.6 would end with code 0, also before there is a checkpoint, and its handler
        sends messages between ranks, which the messages of training under way then take for theirs.
        """
        connector: Any = trainer._signal_connector
        connector.register_signal_handlers = lambda: None

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Return the signals to Lightning's handlers."""
        vars(trainer._signal_connector).pop("register_signal_handlers", None)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """From here on a signal waits for the end of the batch."""
        self._watch.deferred = True
        self.on_train_epoch_start(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save within the epoch if that resumes exactly, then stop."""
        if self._flag.after_batch(
            trainer, self._is_asked, at_once=is_last_for_now(trainer, batch_idx)
        ):
            save_within_epoch(trainer, batch_idx)
            # Without any checkpoint yet, a few more batches lead to where one can be written.
            is_accumulating = (batch_idx + 1) % trainer.accumulate_grad_batches != 0
            self._stop(trainer, waits=trainer.is_last_batch or is_accumulating)

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """Stop within a validation if there is a checkpoint to resume from.

        Otherwise its end will write one.

        Several processes may have unlike numbers of batches here, so that they could not agree.
        """
        if self._watch.deferred and self._is_asked and trainer.world_size == 1:
            self._stop(trainer, waits=True)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop where the epoch before has left its checkpoint.

        The first batch's end is soon enough without one.
        """
        if self._flag.after_batch(trainer, self._is_asked, at_once=True):
            self._stop(trainer, waits=True)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Training is done: a signal that came during its last moments changes nothing any more."""
        self._watch.deferred = False

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Outside training a signal ends the process at once again.

        No other rank is left waiting for this one.
        """
        self._watch.deferred = False
        if isinstance(launcher := trainer.strategy.launcher, _SubprocessScriptLauncher):
            for rank in launcher.procs:
                # which all have raised; they write how they ended
                if isinstance(exception, Interrupted):
                    with suppress(TimeoutExpired):
                        rank.wait(_LEAVE_S)
                rank.kill()  # waiting in a collective, they would not notice a gentler signal
                rank.wait()
            # Lightning 2.6 watches them, and kills this process too when one is gone
            launcher.procs.clear()

    @property
    def _is_asked(self) -> bool:
        return self._watch.received is not None

    def _stop(self, trainer: Trainer, *, waits: bool) -> None:
        """Raise `Interrupted` on all ranks.

        Not where there is no checkpoint yet and this waits for one.
        """
        newest: Path | None = trainer.strategy.broadcast(
            self._last_good() if trainer.is_global_zero else None
        )
        if newest is not None or not waits:
            raise Interrupted(self._watch.received or signal.SIGTERM, checkpoint=newest)


class StopOnTime(Callback):
    """End the training where the time of a `Timer` is over after a validation or an epoch.

    `trainer.max_time` sets such a timer.

    Lightning 2.6 asks for the time after batches alone: a time that ends within a validation would
    cost one batch more and another validation.
    """

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop here."""
        if not trainer.sanity_checking and trainer.strategy.broadcast(_is_time_over(trainer)):
            trainer.should_stop = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop here."""
        if trainer.strategy.broadcast(_is_time_over(trainer)):
            trainer.should_stop = True


def _is_time_over(trainer: Trainer) -> bool:
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    left_s = [each.time_remaining() for each in callbacks if isinstance(each, Timer)]
    return any(seconds is not None and seconds <= 0 for seconds in left_s)


def explain_early_end(trainer: Trainer) -> str | None:
    """Return why a training has ended before its epochs and steps were done, in one line.

    None where it has not.
    """
    num_epochs: int = trainer.fit_loop.epoch_progress.current.processed  # type: ignore[attr-defined]
    is_complete = (
        0 <= trainer.max_steps <= trainer.global_step
        or 0 <= (trainer.max_epochs or 0) <= num_epochs
    )
    if is_complete or not trainer.should_stop or num_epochs == 0:
        return None
    return f"stopped early after epoch {num_epochs - 1}: {_find_reason(trainer)}"


def _find_reason(trainer: Trainer) -> str:
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    for callback in callbacks:
        if (
            not isinstance(callback, EarlyStopping)
            or callback.stopping_reason == EarlyStoppingReason.NOT_STOPPED
        ):
            continue
        if callback.stopping_reason == EarlyStoppingReason.PATIENCE_EXHAUSTED:
            verb = "fallen" if callback.mode == "min" else "risen"
            return f"{callback.monitor} has not {verb} for {callback.patience}"
        return (
            (callback.stopping_reason_message or "")
            .removesuffix(" Signaling Trainer to stop.")
            .rstrip(".")
        )
    if _is_time_over(trainer):
        return "the time of trainer.max_time, or of a Timer, is over"
    return "a callback or the model has set trainer.should_stop"


_MARGIN = 1.1  # epochs differ in length


class StopAtDeadline(Callback):
    """End the training early, and well, where the next epoch would not be done in time.

    How long it takes is the median of the epochs so far, and a tenth. An epoch that turns out to be
    longer is ended after a batch, in time to be validated as the last one was. Without one complete
    epoch, training is saved and ends with `OutOfTime`, and the same command goes on. Lightning's
    `Timer` knows neither what an epoch takes nor what follows.

    The first rank decides for all.

    Args:
        deadline: Moment by which the process has to be done.
        last_good: Returns the newest checkpoint of the run that can be read, or None.
        stopped: Called where training is ended early.
    """

    def __init__(
        self,
        deadline: Deadline,
        *,
        last_good: Callable[[], Path | None],
        stopped: Callable[[], None],
    ) -> None:
        self._deadline = deadline
        self._last_good = last_good
        self._stopped = stopped
        self._epochs_s: list[float] = []
        self._began_s = self._batch_ended_s = elapsed_s()
        # from the last batch of an epoch to the next epoch: validation and checkpoint
        self._rest_s = 0.0
        self._num_batches = 0
        self._is_late = False
        self._flag = DistributedFlag()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock, also where an epoch is resumed in its middle.

        There may be no time at all.
        """
        self.on_train_epoch_start(trainer, pl_module)
        self._stop_if_late(trainer, self._left_s <= 0)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock, and measure what followed the last batch of the epoch before."""
        now_s = elapsed_s()
        if self._epochs_s:
            self._rest_s = now_s - self._batch_ended_s
        self._began_s = self._batch_ended_s = now_s
        self._num_batches = 0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stop within the epoch where its validation would come too late otherwise."""
        self._num_batches += 1
        now_s = elapsed_s()
        batch_s = now_s - self._batch_ended_s
        self._batch_ended_s = now_s
        if trainer.is_last_batch or trainer.fit_loop.done:
            return
        # training can be saved after an optimizer step
        step_s = batch_s * trainer.accumulate_grad_batches
        self._is_late = self._is_late or self._left_s <= _MARGIN * (step_s + self._rest_s)
        if self._flag.after_batch(trainer, self._is_late and trainer.is_global_zero):
            self._stop(trainer, batch_idx)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop here where one more epoch would come too late.

        Lightning calls this again, without batches, when it resumes from a checkpoint at the end of
        an epoch.
        """
        if not self._num_batches:
            return
        now_s = elapsed_s()
        # of an epoch that was resumed within
        part = min(1.0, self._num_batches / trainer.num_training_batches)
        self._epochs_s.append((now_s - self._began_s) / (part or 1.0))
        is_late = self._left_s <= self._rest_s + _MARGIN * statistics.median(self._epochs_s)
        self._stop_if_late(trainer, is_late and not trainer.fit_loop.done)

    @property
    def _left_s(self) -> float:
        return self._deadline.left_s - _LEAVE_S

    def _stop_if_late(self, trainer: Trainer, is_late: bool) -> None:
        if trainer.strategy.reduce_boolean_decision(is_late and trainer.is_global_zero, all=False):
            self._stop(trainer, None)

    def _stop(self, trainer: Trainer, batch_idx: int | None) -> None:
        """End after this epoch.

        Without a complete one, save where that resumes exactly, and end now.

        Raises:
            OutOfTime: In the second case.
            TooLittleTime: If the same command, with a deadline that is a duration, gets no further.
        """
        if self._epochs_s or trainer.current_epoch > 0:
            _log.info(
                f"stops training in epoch {trainer.current_epoch}: the deadline is"
                f" {self._deadline.shown}"
            )
            trainer.fit_loop.min_epochs = 0  # which ask for more than there is time for
            trainer.fit_loop.epoch_loop.min_steps = None
            trainer.should_stop = True
            self._stopped()
            return
        if batch_idx is not None and can_save_within_epoch(trainer, batch_idx):
            if (batch_idx + 1) % trainer.accumulate_grad_batches != 0:
                return  # a few more batches lead to where that can be resumed
            save_within_epoch(trainer, batch_idx)
        text = f"The deadline ({self._deadline.shown}) leaves no time for the first epoch"
        saved = self._last_good()
        gets_further = saved is not None and self._num_batches > 0
        kind = TooLittleTime if self._deadline.is_duration and not gets_further else OutOfTime
        if gets_further or (saved is not None and kind is OutOfTime):
            raise kind(f"{text}; the same command goes on from {saved}.")
        if saved is not None:
            raise kind(
                f"{text}: it ended before a batch, and training from {saved}"
                " gets no further. Say a later one."
            )
        raise kind(f"{text}, and nothing could be saved before its end. Say a later --deadline.")
