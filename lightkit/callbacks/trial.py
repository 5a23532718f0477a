"""Callback of a trial of `lightkit sweep`.

It counts the parameters, and stops the training by the sweep's verdict.
"""

from __future__ import annotations

import time
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer

from lightkit import runs
from lightkit.callbacks.descriptions import count_parameters
from lightkit.runs.signals import SignalWatch
from lightkit.runs.trial import FACTS, VERDICT

_POLL_S = 0.005
_PATIENCE_S = 60.0  # then the sweep is too busy, and is heard after the next epoch


class TrialWatch(Callback):
    """Write the number of parameters, and end the training after an epoch where the sweep says so.

    The verdict is a file in the run folder, which the sweep replaces after each epoch. The first
    rank reads it for all.

    Args:
        run: The run.
        watch: Handler of signals, which end the wait for a verdict.
        waits: Whether each epoch waits for its verdict, so that which trials are stopped depends on
            no clock.
    """

    def __init__(self, run: runs.Run, watch: SignalWatch, *, waits: bool) -> None:
        self._run = run
        self._watch = watch
        self._waits = waits
        self._has_lazy = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the number of parameters, before a strategy divides them among the ranks."""
        self._write_count(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the number again where the first batch has given some parameters their size."""
        if self._has_lazy:
            self._write_count(trainer, pl_module)

    def _write_count(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the number of the parameters whose size is known."""
        num_params, _, self._has_lazy = count_parameters(pl_module)
        if trainer.is_global_zero:
            runs.write_json(self._run.folder / FACTS, {"params": num_params})

    def on_epoch_recorded(self, trainer: Trainer, epoch: Any) -> None:
        """Stop after this epoch where the sweep says so; on every rank."""
        if trainer.interrupted:  # by an error, after which ranks wait for none of the others
            return
        stops = trainer.is_global_zero and self._read_verdict(int(epoch.epoch))
        if trainer.strategy.broadcast(stops):
            trainer.fit_loop.min_epochs = 0
            trainer.fit_loop.epoch_loop.min_steps = None
            trainer.should_stop = True

    def _read_verdict(self, epoch: int) -> bool:
        """Return whether training stops after an epoch."""
        ends_s = time.monotonic() + _PATIENCE_S
        while True:
            verdict = runs.read_json(self._run.folder / VERDICT) or {}
            if verdict.get("stop") and int(verdict.get("epoch", 0)) <= epoch:
                return True
            is_told = int(verdict.get("epoch", -1)) >= epoch
            if (
                is_told
                or not self._waits
                or self._watch.received is not None
                or time.monotonic() > ends_s
            ):
                return False
            time.sleep(_POLL_S)
