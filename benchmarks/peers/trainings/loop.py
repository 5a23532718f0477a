"""A loop by hand: ResNet-18 from random weights, or the head of a frozen MobileNetV2."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from benches.end_to_end_loop import center_crop, random_crop, validate
from torch import nn
from torch.nn import functional
from torchvision import datasets, models


def main() -> None:
    """Train, and print the accuracy after each epoch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--frozen", type=Path, metavar="WEIGHTS")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    train = datasets.ImageFolder(str(options.root / "train"), random_crop(options.size))
    val = datasets.ImageFolder(str(options.root / "val"), center_crop(options.size))
    loading = {"batch_size": 32, "num_workers": options.workers}
    shuffled = torch.utils.data.DataLoader(train, shuffle=True, **loading)
    ordered = torch.utils.data.DataLoader(val, **loading)
    network = build_network(options.frozen, len(train.classes))
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    for epoch in range(options.epochs):
        network.train()
        if options.frozen is not None:
            network.features.eval()
        for images, labels in shuffled:
            loss = functional.cross_entropy(network(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        network.eval()
        accuracy = validate(network, ordered)["accuracy"]
        torch.save(
            {"network": network.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt"
        )
        print(f"epoch {epoch} accuracy {accuracy:.4f}")


def build_network(weights: Path | None, num_classes: int) -> nn.Module:
    """Return ResNet-18, or a frozen MobileNetV2 with a new head where weights are named."""
    if weights is None:
        return models.resnet18(weights=None, num_classes=num_classes)
    network = models.mobilenet_v2(weights=None)
    network.load_state_dict(torch.load(weights, weights_only=True))
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    network.classifier[1] = nn.Linear(network.last_channel, num_classes)
    return network


if __name__ == "__main__":
    main()
