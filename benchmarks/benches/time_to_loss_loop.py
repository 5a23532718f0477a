"""A hand-written loop that trains a new head on a frozen MobileNetV2.

A contestant of `time_to_loss`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision import models

from benches.end_to_end_loop import center_crop, load_photos, validate
from benches.timeline import note


class Frozen(nn.Module):
    """MobileNetV2 whose backbone computes without gradients, in eval mode, below a linear head.

    Args:
        weights: State dict of the backbone and a head for 1,000 classes.
        num_classes: Of the new head.
    """

    def __init__(self, weights: str, num_classes: int) -> None:
        super().__init__()
        network = models.mobilenet_v2(weights=None)
        network.load_state_dict(torch.load(weights, weights_only=True))
        self.backbone = network.features.requires_grad_(requires_grad=False)
        self.head = nn.Linear(network.last_channel, num_classes)

    def train(self, mode: bool = True) -> Frozen:
        """Set the mode of the head alone."""
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        with torch.no_grad():
            features = functional.adaptive_avg_pool2d(self.backbone(images), 1).flatten(1)
        logits: Tensor = self.head(features)
        return logits


def train(request: dict[str, Any]) -> None:
    """Train until the loss is reached, with a loop that sets nothing that need not be set.

    Args:
        request: ``root``, ``weights``, ``num_classes``, ``image_size``, ``batch_size``,
            ``learning_rate``, ``label_smoothing``, ``max_epochs``, ``seed``, ``loss``,
            ``checkpoint`` (a file).
    """
    torch.manual_seed(request["seed"])
    root, batch_size, transform = (
        Path(request["root"]),
        request["batch_size"],
        center_crop(request["image_size"]),
    )
    shuffled = load_photos(root, "train", transform, batch_size=batch_size, shuffle=True)
    val = load_photos(root, "val", transform, batch_size=batch_size, shuffle=False)
    network = Frozen(request["weights"], request["num_classes"])
    optimizer = torch.optim.AdamW(network.head.parameters(), lr=request["learning_rate"])
    has_stepped = False
    for _ in range(request["max_epochs"]):
        note("epoch")
        network.train()
        for images, labels in shuffled:
            if not has_stepped:
                note("step")
                has_stepped = True
            loss = functional.cross_entropy(
                network(images), labels, label_smoothing=request["label_smoothing"]
            )
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        network.eval()
        result = validate(network, val)
        note("validated", result)
        torch.save(
            {"network": network.state_dict(), "optimizer": optimizer.state_dict()},
            request["checkpoint"],
        )
        if result["loss"] <= request["loss"]:
            break
    note("end")


if __name__ == "__main__":
    train(json.loads(sys.argv[1]))
