"""A plain LightningCLI over torchvision's ImageFolder: a contestant of `end_to_end`.

With its defaults.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import LightningDataModule, LightningModule
from pytorch_lightning.cli import LightningCLI
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader
from torchvision import models

from benches.end_to_end_loop import center_crop, load_photos, random_crop


class Photos(LightningDataModule):
    """Photos in train/ and val/.

    Args:
        root: Folder that holds them.
        image_size: Side of the squares, in pixels.
        batch_size: Photos of a batch.
    """

    def __init__(self, root: str, image_size: int = 224, batch_size: int = 32) -> None:
        super().__init__()
        self.root, self.image_size, self.batch_size = Path(root), image_size, batch_size

    def train_dataloader(self) -> DataLoader[Any]:
        """Random crops in random order."""
        return load_photos(
            self.root,
            "train",
            random_crop(self.image_size),
            batch_size=self.batch_size,
            shuffle=True,
        )

    def val_dataloader(self) -> DataLoader[Any]:
        """The middle of each photo."""
        return load_photos(
            self.root,
            "val",
            center_crop(self.image_size),
            batch_size=self.batch_size,
            shuffle=False,
        )


class Net(LightningModule):
    """A classifier of torchvision with random weights.

    Args:
        backbone: Its name.
        num_classes: Number of classes.
        learning_rate: Of AdamW.
    """

    def __init__(
        self, backbone: str = "resnet18", num_classes: int = 5, learning_rate: float = 1e-3
    ) -> None:
        super().__init__()
        self.network = models.get_model(backbone, weights=None, num_classes=num_classes)
        self.learning_rate = learning_rate

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.network(images)
        return logits

    def training_step(self, batch: list[Tensor]) -> Tensor:
        """Return the loss."""
        images, labels = batch
        loss = functional.cross_entropy(self(images), labels)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor]) -> None:
        """Log loss and accuracy."""
        images, labels = batch
        logits = self(images)
        self.log("val/loss", functional.cross_entropy(logits, labels), batch_size=len(labels))
        accuracy = (logits.argmax(dim=1) == labels).float().mean()
        self.log("val/accuracy", accuracy, batch_size=len(labels), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW at one learning rate."""
        return torch.optim.AdamW(self.parameters(), lr=self.learning_rate)


if __name__ == "__main__":
    LightningCLI(Net, Photos)
