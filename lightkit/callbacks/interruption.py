"""Stop at the end of a batch when a signal has arrived, with a checkpoint where one can be written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from pytorch_lightning import Callback, LightningModule, Trainer

from lightkit.callbacks.checkpoint import Checkpoint, can_save_within_epoch
from lightkit.errors import Interrupted
from lightkit.runs.signals import SignalWatch

__all__ = ["StopOnSignal"]


class StopOnSignal(Callback):
    """Raise `Interrupted` between two batches once the watch has received a signal.

    Args:
        watch: Handler of SIGINT and SIGTERM; told to wait while training runs.
        last_good: Returns the newest checkpoint of the run that can be read, or None.
    """

    def __init__(self, watch: SignalWatch, *, last_good: Callable[[], Path | None]) -> None:
        self._watch = watch
        self._last_good = last_good

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """From here on a signal waits for the end of the batch."""
        self._watch.deferred = True
        self._stop_if_asked()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save within the epoch if that resumes exactly, then stop."""
        if self._watch.received is None:
            return
        keeper = next((c for c in trainer.checkpoint_callbacks if isinstance(c, Checkpoint)), None)
        if keeper is not None and can_save_within_epoch(trainer, batch_idx) and not _accumulating(trainer, batch_idx):
            keeper.save_last_now(trainer)
            self._stop()
        # Without any checkpoint yet, a few more batches reach the moment at which one can be written.
        if self._last_good() is None and (trainer.is_last_batch or _accumulating(trainer, batch_idx)):
            return
        self._stop()

    def on_validation_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any) -> None:
        """Stop within a validation if there is a checkpoint to resume from; otherwise its end will write one."""
        if self._watch.deferred and self._last_good() is not None:
            self._stop_if_asked()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The epoch before has left its checkpoint."""
        self._stop_if_asked()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Training is done: a signal that came during its last moments changes nothing any more."""
        self._watch.deferred = False

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Outside training a signal ends the process at once again."""
        self._watch.deferred = False

    def _stop_if_asked(self) -> None:
        if self._watch.received is not None:
            self._stop()

    def _stop(self) -> NoReturn:
        assert self._watch.received is not None
        raise Interrupted(self._watch.received, checkpoint=self._last_good())


def _accumulating(trainer: Trainer, batch_idx: int) -> bool:
    return (batch_idx + 1) % trainer.accumulate_grad_batches != 0
