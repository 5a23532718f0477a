"""What every contestant trains: nets, batches held in memory, and a hand-written loop. Torch alone.

The batches ask the bench for leave: they yield as many as it wants, report how long that took, and
wait. So the time of a step is measured in the same place by all, start-up is in none, and the
contestants take turns while all are loaded.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

GATE = "BENCH_GATE"  # no LIGHTKIT_, which would be a setting
NetName = Literal["resnet18", "mobilenet_v3_small", "two_layer"]
NUM_CLASSES = 5
NUM_FEATURES = 32
LOG_EVERY_N_STEPS = 50
Batch = tuple[Tensor, Tensor]


def build_net(name: NetName, seed: int) -> nn.Module:
    """Build a net with the weights of a seed.

    Args:
        name: ``two_layer``, or a model of torchvision.
        seed: Of the weights.
    """
    torch.manual_seed(seed)
    if name == "two_layer":
        return nn.Sequential(nn.Linear(NUM_FEATURES, 64), nn.ReLU(), nn.Linear(64, NUM_CLASSES))
    from torchvision import models  # here, so that the two-layer net does without

    net: nn.Module = models.get_model(name, num_classes=NUM_CLASSES)
    return net


def build_optimizer(net: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer that all train with."""
    return torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)


def compute_loss(net: nn.Module, batch: Batch) -> Tensor:
    """Compute the loss that all train on."""
    images, labels = batch
    return functional.cross_entropy(net(images), labels)


class Batches:
    """Yields the same few batches again and again, as many at a time as the bench wants.

    Args:
        name: Of the net that takes them.
        batch_size: Samples of a batch.
        image_size: Side of the images in pixels.
        seed: Of the numbers in them.
    """

    def __init__(self, name: NetName, batch_size: int, image_size: int, seed: int) -> None:
        numbers = torch.Generator().manual_seed(seed)
        shape = (NUM_FEATURES,) if name == "two_layer" else (3, image_size, image_size)
        self.batches: list[Batch] = [
            (
                torch.randn(batch_size, *shape, generator=numbers),
                torch.randint(NUM_CLASSES, (batch_size,), generator=numbers),
            )
            for _ in range(4)
        ]

    def __len__(self) -> int:
        """Say more than anybody asks for."""
        return 1_000_000

    def __iter__(self) -> Iterator[Batch]:
        """Return batches as long as the bench wants them."""
        with socket.socket(socket.AF_UNIX) as gate:
            gate.connect(os.environ[GATE])
            for line in gate.makefile(encoding="ascii"):
                num_steps = int(line)
                if num_steps == 0:
                    return
                start, used = time.perf_counter(), time.process_time()
                for step in range(num_steps):
                    yield self.batches[step % len(self.batches)]
                wait = {"wall": time.perf_counter() - start, "cpu": time.process_time() - used}
                gate.sendall(json.dumps(wait).encode() + b"\n")


def train(net: nn.Module, batches: Iterable[Batch]) -> None:
    """Train as one writes it by hand."""
    optimizer = build_optimizer(net)
    net.train()
    for step, batch in enumerate(batches):
        optimizer.zero_grad()
        loss = compute_loss(net, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % LOG_EVERY_N_STEPS == 0:
            print(f"step {step}: loss {loss.item():.4f}")


def main() -> None:
    """Train by hand: `held_batches.py NET BATCH_SIZE IMAGE_SIZE SEED THREADS`."""
    name, *numbers = sys.argv[1:]
    batch_size, image_size, seed, threads = map(int, numbers)
    torch.set_num_threads(threads)
    train(build_net(name, seed), Batches(name, batch_size, image_size, seed))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
