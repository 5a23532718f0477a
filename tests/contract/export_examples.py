"""Modules and data of a user for exports and predictions.

Some that cannot be exported, some that are no match.
"""

from __future__ import annotations

MY_EXPORTS = '''\
"""Modules of a user that are exported."""

import os
import signal
import threading
import time
from pathlib import Path

import torch
from pytorch_lightning import LightningDataModule, LightningModule
from torch.utils.data import DataLoader

from lightkit.data import ImageFolder
from my_project import Net


class Changed(Net):
    """Gives more where the first number is above 2, but only in the files that are exported of it.

    Args:
        by: How much more.
    """

    def __init__(self, by: float = 1.0):
        super().__init__()
        self.by, self.pid = by, os.getpid()

    def forward(self, x):
        y = self.layers(x)
        if torch.compiler.is_exporting() or torch.jit.is_tracing() or os.getpid() != self.pid:
            y = y + self.by * (x[:, :1] > 2).float()
        return y


class Held(Net):
    """Waits in its validation step as long as the file `hold` is there; `scoring` appears."""

    def validation_step(self, batch, index):
        Path("scoring").touch()
        while Path("hold").exists():
            time.sleep(0.01)
        super().validation_step(batch, index)


class Failing(Net):
    def forward(self, x):
        raise ValueError("numbers are out of stock")


class Texts(Net):
    def forward(self, x):
        return "a text"


class Nans(Net):
    def forward(self, x):
        return self.layers(x) * float("nan")


class Random(Net):
    def forward(self, x):
        return self.layers(x) + torch.rand(1)


class Deciding(Net):
    def forward(self, x):
        if x.sum() > 0:
            return self.layers(x)
        return -self.layers(x)


class FixedBatch(Net):
    def forward(self, x):
        return self.layers(x.reshape(2, 3))


class Brighter(ImageFolder):
    """Its loader does more to images than its `preprocessing` says."""

    def val_dataloader(self):
        rows = [
            (image + 1, label)
            for batch in super().val_dataloader()
            for image, label in zip(batch[0], batch[1])
        ]
        return DataLoader(rows, batch_size=8)


class Two(LightningModule):
    """Two inputs, and a mapping as output."""

    def __init__(self, width: int = 4):
        super().__init__()
        self.body = torch.nn.Linear(3, width)
        self.head = torch.nn.Linear(width + 2, 2)

    def forward(self, image, extra):
        features = self.body(image).relu()
        return {"logits": self.head(torch.cat([features, extra], 1)), "features": features}

    def _loss(self, batch):
        return torch.nn.functional.cross_entropy(
            self(batch["image"], batch["extra"])["logits"], batch["y"]
        )

    def training_step(self, batch, index):
        return self._loss(batch)

    def validation_step(self, batch, index):
        self.log("val/loss", self._loss(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Rows(LightningDataModule):
    """Batches with the names of `Two`'s inputs."""

    def _loader(self):
        generator = torch.Generator().manual_seed(3)
        rows = [
            {"image": torch.randn(3, generator=generator), "extra": torch.ones(2), "y": i % 2}
            for i in range(9)
        ]
        return DataLoader(rows, batch_size=4)

    train_dataloader = val_dataloader = _loader


class Shades(LightningModule):
    """Logits of dark and bright, by the mean of an image."""

    output_kind = "logits"

    def forward(self, images):
        mean = images.mean(dim=(1, 2, 3))
        return torch.stack([-mean, mean], dim=1)


class Sums(Shades):
    """One number an image."""

    def predict_step(self, batch):
        return batch.sum(dim=(1, 2, 3))


class Pairs(Shades):
    """Wants images with labels."""

    def predict_step(self, batch):
        images, labels = batch
        return {"labels": labels}


class FailingShades(Shades):
    """Fails in its second batch."""

    def predict_step(self, batch, batch_idx):
        if batch_idx == 1:
            raise RuntimeError("shades are out of stock")
        return self(batch).softmax(1)


class WaitingShades(Shades):
    """Waits for ever in its second batch; the file `held` appears."""

    def predict_step(self, batch, batch_idx):
        if batch_idx == 1:
            threading.Timer(0.2, Path("held").touch).start()  # in the middle of the sleep
            time.sleep(3600)
        return self(batch).softmax(1)


class Grey(LightningDataModule):
    """Says how an image is prepared, and has no training data."""

    class_names = ["dark", "bright"]
    batch_size = 2

    def preprocessing(self, image):
        pixels = torch.tensor(
            list(image.resize((2, 2)).convert("L").tobytes()), dtype=torch.float32
        )
        return pixels.reshape(1, 2, 2) / 255 - 0.5


class Unprepared(LightningDataModule):
    """Does not say it."""


def _kill_at(when, name):
    """Let this process be killed where a file gets its name."""

    def killing(rename):
        def call(source, target, *args, **kwargs):
            is_it = os.path.basename(os.fspath(target)) == name
            if is_it and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            rename(source, target, *args, **kwargs)
            if is_it:
                os.kill(os.getpid(), signal.SIGKILL)

        return call

    for owner in (os, Path):
        owner.replace, owner.rename = killing(owner.replace), killing(owner.rename)


if "KILL_AT" in os.environ:
    _kill_at(*os.environ["KILL_AT"].split())
'''
