"""A small model and its pictures."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_lightning import LightningDataModule, LightningModule
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Pictures(LightningDataModule):
    """Ten pictures of three classes; the last batch is smaller than the others."""

    def __init__(self, *, num: int = 10, batch_size: int = 4, size: int = 16) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.images = torch.randn(num, 3, size, size, generator=generator)
        self.labels = torch.randint(3, (num,), generator=generator)
        self.batch_size = batch_size

    def loader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(self.images, self.labels), batch_size=self.batch_size)

    train_dataloader = val_dataloader = loader


class Small(LightningModule):
    """A convolution and a layer after it."""

    def __init__(self, optimizer: str = "Adam", width: int = 8) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.network = nn.Sequential(
            nn.Conv2d(3, width, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(width, 3)
        self.optimizer = optimizer

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.network(images)
        return scores

    def training_step(self, batch: list[Tensor]) -> Tensor:
        loss = functional.cross_entropy(self.head(self(batch[0])), batch[1])
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor]) -> None:
        self.log("val/loss", functional.cross_entropy(self.head(self(batch[0])), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = getattr(torch.optim, self.optimizer)(
            self.parameters(), lr=0.01
        )
        return optimizer
