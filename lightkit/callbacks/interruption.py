"""Stop at the end of a batch when a signal has arrived, with a checkpoint where one can be written."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.strategies.launchers import _SubprocessScriptLauncher

from lightkit.callbacks.checkpoint import DistributedFlag, is_last_for_now, save_within_epoch
from lightkit.errors import Interrupted
from lightkit.runs.signals import SignalWatch


class StopOnSignal(Callback):
    """Raise `Interrupted` between two batches once the watch has received a signal.

    Of several processes that train together all stop after the same batch, whichever got the signal: this one, or
    where batches are short one of the next few, but always before a validation.

    Args:
        watch: Handler of SIGINT and SIGTERM, which lets signals wait while training runs.
        last_good: Returns the newest checkpoint of the run that can be read, or None. All ranks go by the first one's.
    """

    def __init__(self, watch: SignalWatch, *, last_good: Callable[[], Path | None]) -> None:
        self._watch = watch
        self._last_good = last_good
        self._flag = DistributedFlag()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave all signals to the watch.

        Lightning 2.6 would end with code 0, also before there is a checkpoint, and its handler sends messages between
        ranks, which the messages of training under way then take for theirs.
        """
        connector: Any = trainer._signal_connector
        connector.register_signal_handlers = lambda: None

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Let Lightning register its handlers again."""
        vars(trainer._signal_connector).pop("register_signal_handlers", None)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """From here on a signal waits for the end of the batch."""
        self._watch.deferred = True
        self.on_train_epoch_start(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save within the epoch if that resumes exactly, then stop."""
        if self._flag.after_batch(trainer, self._is_asked, at_once=is_last_for_now(trainer, batch_idx)):
            save_within_epoch(trainer, batch_idx)
            # Without any checkpoint yet, a few more batches lead to where one can be written.
            is_accumulating = (batch_idx + 1) % trainer.accumulate_grad_batches != 0
            self._stop(trainer, waits=trainer.is_last_batch or is_accumulating)

    def on_validation_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any) -> None:
        """Stop within a validation if there is a checkpoint to resume from; otherwise its end will write one.

        Several processes may have unlike numbers of batches here, so that they could not agree.
        """
        if self._watch.deferred and self._is_asked and trainer.world_size == 1:
            self._stop(trainer, waits=True)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop where the epoch before has left its checkpoint; the first batch's end is soon enough without one."""
        if self._flag.after_batch(trainer, self._is_asked, at_once=True):
            self._stop(trainer, waits=True)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Training is done: a signal that came during its last moments changes nothing any more."""
        self._watch.deferred = False

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Outside training a signal ends the process at once again. No other rank is left waiting for this one."""
        self._watch.deferred = False
        if isinstance(launcher := trainer.strategy.launcher, _SubprocessScriptLauncher):
            for rank in launcher.procs:  # waiting in a collective, they would not notice a gentler signal
                rank.kill()
                rank.wait()
            launcher.procs.clear()  # Lightning 2.6 watches them, and kills this process too when one is gone

    @property
    def _is_asked(self) -> bool:
        return self._watch.received is not None

    def _stop(self, trainer: Trainer, *, waits: bool) -> None:
        """Raise `Interrupted` on all ranks, unless there is no checkpoint yet and this waits for one."""
        newest: Path | None = trainer.strategy.broadcast(self._last_good() if trainer.is_global_zero else None)
        if newest is not None or not waits:
            raise Interrupted(self._watch.received or signal.SIGTERM, checkpoint=newest)
