"""A hand-written script that trains on a folder of photos.

Its optimizer tells when its first step is done.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch

MOMENT = "BENCH_MOMENT"
"""The variable that names the file for the moment."""
IMAGE_SIZE, BATCH_SIZE, VAL_FRACTION = 224, 32, 0.2


class TimedSGD(torch.optim.SGD):
    """SGD that writes the moment at which its first step was done into a file.

    Args:
        params: As of SGD.
        lr: As of SGD.
        momentum: As of SGD.
    """

    def __init__(self, params: Any, lr: float = 0.01, momentum: float = 0.9) -> None:
        super().__init__(params, lr=lr, momentum=momentum)
        self._has_stepped = False

    def step(self, closure: Any = None) -> Any:
        """Step, and tell the first time."""
        result = super().step(closure)
        if not self._has_stepped:
            self._has_stepped = True
            moment = Path(os.environ[MOMENT])
            moment.with_suffix(".part").write_text(str(time.monotonic()), encoding="ascii")
            moment.with_suffix(".part").rename(moment)
        return result


def main() -> None:
    """Train as one writes it by hand: `first_step_loop.py FOLDER --workers N --threads N`."""
    from torch.nn import functional
    from torch.utils.data import DataLoader, random_split
    from torchvision import datasets, models, transforms

    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("folder")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(IMAGE_SIZE),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    photos = datasets.ImageFolder(options.folder, transform)
    train, _ = random_split(photos, [1 - VAL_FRACTION, VAL_FRACTION])
    loader = DataLoader(train, BATCH_SIZE, shuffle=True, num_workers=options.workers)
    net = models.resnet18(num_classes=len(photos.classes))
    optimizer = TimedSGD(net.parameters())
    net.train()
    for images, labels in loader:
        optimizer.zero_grad()
        loss = functional.cross_entropy(net(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
