"""What one writes around torchvision's ImageFolder: loaders, a LightningModule and a loop, each with its defaults.

As a script it is one contestant of `end_to_end`: ``loop JSON`` is the hand-written loop, ``cli WORDS`` a plain
LightningCLI over `Net` and `Photos`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import LightningDataModule, LightningModule, seed_everything
from pytorch_lightning.cli import LightningCLI
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms

from benches.end_to_end_moments import note

__all__ = ["Net", "Photos", "evaluation", "loop", "photos", "training", "validated"]

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CROP_SCALE = (0.35, 1.0)  # lightkit's default, for all contestants


def training(image_size: int) -> transforms.Compose:
    """Random crops, flipped at random."""
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(image_size, scale=CROP_SCALE),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )


def evaluation(image_size: int) -> transforms.Compose:
    """The middle of each photo."""
    return transforms.Compose(
        [
            transforms.Resize(round(image_size * 256 / 224)),
            transforms.CenterCrop(image_size),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )


def photos(root: Path, split: str, transform: transforms.Compose, *, batch_size: int, shuffle: bool) -> DataLoader[Any]:
    """Give a split's batches, loaded in the training process as a DataLoader does unless told otherwise."""
    return DataLoader(datasets.ImageFolder(str(root / split), transform), batch_size=batch_size, shuffle=shuffle)


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
        return photos(self.root, "train", training(self.image_size), batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        """The middle of each photo."""
        return photos(self.root, "val", evaluation(self.image_size), batch_size=self.batch_size, shuffle=False)


class Net(LightningModule):
    """A classifier of torchvision with random weights.

    Args:
        backbone: Its name.
        num_classes: Number of classes.
        learning_rate: Of AdamW.
    """

    def __init__(self, backbone: str = "resnet18", num_classes: int = 5, learning_rate: float = 1e-3) -> None:
        super().__init__()
        self.network = models.get_model(backbone, weights=None, num_classes=num_classes)
        self.learning_rate = learning_rate

    def forward(self, images: Tensor) -> Tensor:
        """Give the logits."""
        logits: Tensor = self.network(images)
        return logits

    def training_step(self, batch: list[Tensor]) -> Tensor:
        """Give the loss."""
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


def loop(asked: dict[str, Any]) -> None:
    """Train with a loop: one that is written well, and sets nothing that need not be set.

    Args:
        asked: ``root``, ``backbone``, ``num_classes``, ``image_size``, ``batch_size``, ``learning_rate``,
            ``max_epochs``, ``seed``, ``checkpoint`` (a file).
    """
    seed_everything(asked["seed"], verbose=False)
    root, size, batch_size = Path(asked["root"]), asked["image_size"], asked["batch_size"]
    train = photos(root, "train", training(size), batch_size=batch_size, shuffle=True)
    val = photos(root, "val", evaluation(size), batch_size=batch_size, shuffle=False)
    network = models.get_model(asked["backbone"], weights=None, num_classes=asked["num_classes"])
    optimizer = torch.optim.AdamW(network.parameters(), lr=asked["learning_rate"])
    has_stepped = False
    for _ in range(asked["max_epochs"]):
        note("epoch")
        network.train()
        for images, labels in train:
            if not has_stepped:
                note("step")
                has_stepped = True
            loss = functional.cross_entropy(network(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        network.eval()
        note("validated", validated(network, val))
        torch.save({"network": network.state_dict(), "optimizer": optimizer.state_dict()}, asked["checkpoint"])
    note("end")


@torch.no_grad()
def validated(network: torch.nn.Module, val: DataLoader[Any]) -> dict[str, float]:
    """Give the mean loss and the accuracy over a loader."""
    loss, hits, number = 0.0, 0, 0
    for images, labels in val:
        logits = network(images)
        loss += float(functional.cross_entropy(logits, labels, reduction="sum"))
        hits += int((logits.argmax(dim=1) == labels).sum())
        number += len(labels)
    return {"loss": loss / number, "accuracy": hits / number}


def main() -> None:
    """Be one contestant."""
    way, *words = sys.argv[1:]
    if way == "loop":
        loop(json.loads(words[0]))
    else:
        LightningCLI(Net, Photos, args=words)


if __name__ == "__main__":
    main()
