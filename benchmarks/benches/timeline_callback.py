"""A callback that notes the moments of a fit.

For LightningCLI and lightkit alike, as a loop notes them by hand.
"""

from __future__ import annotations

from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer

from benches.timeline import note


class Clock(Callback):
    """Notes when the first step, each epoch and the end come."""

    def __init__(self) -> None:
        self.has_stepped = False

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the start of an epoch, whose first batch is still to be loaded."""
        note("epoch")

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Note the first step."""
        if not self.has_stepped:
            self.has_stepped = True
            note("step")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note what validation gave."""
        if not trainer.sanity_checking:
            note(
                "validated",
                {
                    name: float(trainer.callback_metrics[f"val/{name}"])
                    for name in ("loss", "accuracy")
                },
            )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the end of the last epoch."""
        note("end")
