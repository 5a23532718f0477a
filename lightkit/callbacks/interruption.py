"""Stop at the end of a batch when a signal has arrived, with a checkpoint where one can be written."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.strategies.launchers import _SubprocessScriptLauncher
from pytorch_lightning.trainer.connectors.signal_connector import _HandlersCompose

from lightkit.callbacks.checkpoint import Checkpoint, DistributedFlag, can_save_within_epoch, is_last_for_now
from lightkit.errors import Interrupted
from lightkit.runs.signals import SignalWatch

_REGISTER = "register_signal_handlers"


class StopOnSignal(Callback):
    """Raise `Interrupted` between two batches once the watch has received a signal.

    Of several processes that train together all stop after the same batch, whichever got the signal: this one, or
    where batches are short one of the next few, but always before a validation.

    Args:
        watch: Handler of SIGINT and SIGTERM; told to wait while training runs.
        last_good: Returns the newest checkpoint of the run that can be read, or None. All ranks go by the first one's.
    """

    def __init__(self, watch: SignalWatch, *, last_good: Callable[[], Path | None]) -> None:
        self._watch = watch
        self._last_good = last_good
        self._asked = DistributedFlag()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Let Lightning's handler be gone as soon as it is there: loaders and their barriers come before any hook."""
        if stage != "fit":
            return
        connector = trainer._signal_connector
        vars(connector).pop(_REGISTER, None)
        register = connector.register_signal_handlers

        def register_and_remove() -> None:
            register()
            _remove_lightnings_handler()

        setattr(connector, _REGISTER, register_and_remove)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Let Lightning register what it does again."""
        vars(trainer._signal_connector).pop(_REGISTER, None)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """From here on a signal waits for the end of the batch."""
        self._watch.deferred = True
        self._stop_if_asked(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save within the epoch if that resumes exactly, then stop."""
        if not self._asked.after_batch(
            trainer, self._watch.received is not None, at_once=is_last_for_now(trainer, batch_idx)
        ):
            return
        keeper = next((c for c in trainer.checkpoint_callbacks if isinstance(c, Checkpoint)), None)
        if keeper is not None and can_save_within_epoch(trainer, batch_idx) and not _accumulating(trainer, batch_idx):
            keeper.save_last_now(trainer)
            self._stop(self._newest(trainer))
        newest = self._newest(trainer)
        # Without any checkpoint yet, a few more batches reach the moment at which one can be written.
        if newest is None and (trainer.is_last_batch or _accumulating(trainer, batch_idx)):
            return
        self._stop(newest)

    def on_validation_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any) -> None:
        """Stop within a validation if there is a checkpoint to resume from; otherwise its end will write one.

        Several processes may have unlike numbers of batches here, so that they could not agree.
        """
        asked = self._watch.deferred and self._watch.received is not None and trainer.world_size == 1
        if asked and (newest := self._last_good()) is not None:
            self._stop(newest)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The epoch before has left its checkpoint."""
        self._stop_if_asked(trainer)

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

    def _is_asked(self, trainer: Trainer) -> bool:
        received = self._watch.received is not None
        return received if trainer.world_size == 1 else trainer.strategy.reduce_boolean_decision(received, all=False)

    def _stop_if_asked(self, trainer: Trainer) -> None:
        # Without any checkpoint yet, the first batch's end is soon enough, and leaves one.
        if self._is_asked(trainer) and (newest := self._newest(trainer)) is not None:
            self._stop(newest)

    def _newest(self, trainer: Trainer) -> Path | None:
        """Let all ranks know the same, whatever each of them sees at this moment."""
        found: Path | None = trainer.strategy.broadcast(self._last_good() if trainer.is_global_zero else None)
        return found

    def _stop(self, newest: Path | None) -> NoReturn:
        raise Interrupted(self._watch.received or signal.SIGTERM, checkpoint=newest)


def _remove_lightnings_handler() -> None:
    """Leave SIGTERM to the handler that was there before.

    Lightning 2.6 would end with code 0, also before there is a checkpoint, and its handler sends messages between
    ranks, which the messages of training under way then take for theirs.
    """
    handler = signal.getsignal(signal.SIGTERM)
    if isinstance(handler, _HandlersCompose) and len(handler.signal_handlers) > 1:
        handler.signal_handlers = handler.signal_handlers[-1:]


def _accumulating(trainer: Trainer, batch_idx: int) -> bool:
    return (batch_idx + 1) % trainer.accumulate_grad_batches != 0
