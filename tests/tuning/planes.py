"""Three classes that a plane parts, and a net that learns them."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_lightning import LightningDataModule, LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

__all__ = ["CPU", "Net", "Points"]

CPU = {"accelerator": "cpu", "max_epochs": 100}


class Points(LightningDataModule):
    """Three classes that a plane parts, or labels that mean nothing."""

    def __init__(self, *, means_something: bool = True) -> None:
        super().__init__()
        self.means_something = means_something

    def train_dataloader(self) -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(0)
        points, planes = torch.randn(320, 8, generator=generator), torch.randn(8, 3, generator=generator)
        classes = (points @ planes).argmax(1)
        labels = classes if self.means_something else torch.randint(0, 3, (320,), generator=generator)
        return DataLoader(TensorDataset(points, labels), batch_size=16, shuffle=True)


class Net(LightningModule):
    """Two layers; it has no attribute for the rate."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        self.losses: list[float] = []

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-4)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=1e-3, total_steps=int(self.trainer.estimated_stepping_batches)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
