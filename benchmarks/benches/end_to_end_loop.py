"""A hand-written loop around torchvision's ImageFolder.

With torch's defaults: a contestant of `end_to_end`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms

from benches.timeline import note

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CROP_SCALE = (0.35, 1.0)  # lightkit's default, for all contestants


def random_crop(image_size: int) -> transforms.Compose:
    """Random crops, flipped at random."""
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(image_size, scale=CROP_SCALE),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )


def center_crop(image_size: int) -> transforms.Compose:
    """The middle of each photo."""
    return transforms.Compose(
        [
            transforms.Resize(round(image_size * 256 / 224)),
            transforms.CenterCrop(image_size),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )


def load_photos(
    root: Path, split: str, transform: transforms.Compose, *, batch_size: int, shuffle: bool
) -> DataLoader[Any]:
    """Return a split's batches, loaded in the training process as a DataLoader does by default."""
    return DataLoader(
        datasets.ImageFolder(str(root / split), transform), batch_size=batch_size, shuffle=shuffle
    )


def train(request: dict[str, Any]) -> None:
    """Train with a loop that is written well, and sets nothing that need not be set.

    Args:
        request: ``root``, ``backbone``, ``num_classes``, ``image_size``, ``batch_size``,
            ``learning_rate``, ``max_epochs``, ``seed``, ``checkpoint`` (a file).
    """
    torch.manual_seed(request["seed"])
    root, size, batch_size = Path(request["root"]), request["image_size"], request["batch_size"]
    shuffled = load_photos(root, "train", random_crop(size), batch_size=batch_size, shuffle=True)
    val = load_photos(root, "val", center_crop(size), batch_size=batch_size, shuffle=False)
    network = models.get_model(
        request["backbone"], weights=None, num_classes=request["num_classes"]
    )
    optimizer = torch.optim.AdamW(network.parameters(), lr=request["learning_rate"])
    has_stepped = False
    for _ in range(request["max_epochs"]):
        note("epoch")
        network.train()
        for images, labels in shuffled:
            if not has_stepped:
                note("step")
                has_stepped = True
            loss = functional.cross_entropy(network(images), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        network.eval()
        note("validated", validate(network, val))
        torch.save(
            {"network": network.state_dict(), "optimizer": optimizer.state_dict()},
            request["checkpoint"],
        )
    note("end")


@torch.no_grad()
def validate(network: torch.nn.Module, val: DataLoader[Any]) -> dict[str, float]:
    """Return the mean loss and the accuracy over a loader."""
    loss, hits, number = 0.0, 0, 0
    for images, labels in val:
        logits = network(images)
        loss += float(functional.cross_entropy(logits, labels, reduction="sum"))
        hits += int((logits.argmax(dim=1) == labels).sum())
        number += len(labels)
    return {"loss": loss / number, "accuracy": hits / number}


if __name__ == "__main__":
    train(json.loads(sys.argv[1]))
