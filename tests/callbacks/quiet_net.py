"""A network and points in a module that says nothing of the files which a training leaves."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_lightning import LightningModule
from torch.utils.data import DataLoader, TensorDataset


class QuietNet(LightningModule):
    """Fits a line."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch: Any, _index: int) -> torch.Tensor:
        loss: torch.Tensor = self.layer(batch[0]).square().mean()
        self.log("train/loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, _index: int) -> None:
        self.log("val/loss", self.layer(batch[0]).square().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def points() -> DataLoader[Any]:
    """Sixteen of them, in batches of four."""
    return DataLoader(TensorDataset(torch.ones(16, 2)), batch_size=4)
