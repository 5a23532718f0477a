"""Tells the watchdog of this rank that training goes on."""

from __future__ import annotations

from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer

from lightkit.launch import Watchdog, heartbeat

__all__ = ["StallWatch"]


class StallWatch(Callback):
    """Let a watchdog watch from the first batch to the last, each finished one a sign of life.

    Before the first batch data may be downloaded for as long as it takes, while the other ranks wait.

    Args:
        watchdog: Ends this process where none follows for too long.
    """

    def __init__(self, watchdog: Watchdog) -> None:
        self._watchdog = watchdog

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Before the first batch of a fit."""
        self._watchdog.start()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Before the first batch of a fit without a sanity check."""
        self._watchdog.start()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Before the first batch of a validation by itself, too."""
        self._watchdog.start()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Before the first batch of a test."""
        self._watchdog.start()

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Before the first batch of a prediction."""
        self._watchdog.start()

    def on_train_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """One more batch is done."""
        heartbeat().beat()

    def on_validation_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """One more batch is done."""
        heartbeat().beat()

    def on_test_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """One more batch is done."""
        heartbeat().beat()

    def on_predict_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """One more batch is done."""
        heartbeat().beat()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Metrics are computed, and a checkpoint may have been written."""
        heartbeat().beat()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Loaders' processes have started."""
        heartbeat().beat()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """The loops are done."""
        self._watchdog.stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """The loops are done."""
        self._watchdog.stop()
