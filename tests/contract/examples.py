"""A user's own module, configs for it, and pictures of two classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

MY_PROJECT = '''\
"""Models, data and callbacks of a user."""

import math
import os
import signal
import time
from pathlib import Path

import torch
from pytorch_lightning import Callback, LightningDataModule, LightningModule
from torch.utils.data import DataLoader, TensorDataset


class Net(LightningModule):
    """A small network with dropout.

    Args:
        hidden: Width of the hidden layer.
        name: Any text.
        tags: Any texts.
    """

    def __init__(self, hidden: int = 8, name: str = "net", tags: list[str] | None = None):
        super().__init__()
        self.save_hyperparameters()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(3, hidden), torch.nn.Dropout(0.5), torch.nn.Linear(hidden, 1)
        )

    def forward(self, x):
        return self.layers(x)

    def _loss(self, batch):
        return torch.nn.functional.mse_loss(self(batch[0]), batch[1])

    def training_step(self, batch, index):
        loss = self._loss(batch)
        self.log("train/loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, index):
        self.log("val/loss", self._loss(batch))

    def test_step(self, batch, index):
        self.log("test/loss", self._loss(batch))

    def predict_step(self, batch, index):
        return self(batch[0])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class Wide(Net):
    """Another network with other arguments.

    Args:
        width: Width of the hidden layer.
    """

    def __init__(self, width: int = 16):
        super().__init__(hidden=width)


class FailsInInit(Net):
    """A network that cannot be built."""

    def __init__(self, hidden: int = 8):
        raise ValueError("hidden layers are out of stock")


class FailsInStep(Net):
    """A network that fails in training.

    Args:
        step: Optimizer step in which it fails.
    """

    def __init__(self, step: int = 0):
        super().__init__()
        self.step = step

    def training_step(self, batch, index):
        if self.global_step >= self.step:
            raise ValueError("batches are out of stock")
        return super().training_step(batch, index)


class NaNInStep(Net):
    """A network whose loss is NaN in some steps.

    Args:
        steps: Batches (counted over all epochs) with a NaN loss.
    """

    def __init__(self, steps: list[int]):
        super().__init__()
        self.steps, self.count = steps, 0

    def training_step(self, batch, index):
        loss = super().training_step(batch, index)
        self.count += 1
        return loss * float("nan") if self.count - 1 in self.steps else loss


class Points(LightningDataModule):
    """Points near a plane, shuffled by torch's own loader.

    Args:
        count: Number of points.
        batch_size: Points in a batch.
        note: Any text.
    """

    def __init__(self, count: int = 48, batch_size: int = 8, note: str = ""):
        super().__init__()
        self.save_hyperparameters()
        self.count, self.batch_size = count, batch_size

    def _loader(self, shuffle):
        x = torch.randn(self.count, 3, generator=torch.Generator().manual_seed(3))
        return DataLoader(
            TensorDataset(x, x.sum(1, keepdim=True)), batch_size=self.batch_size, shuffle=shuffle
        )

    def train_dataloader(self):
        return self._loader(True)

    def val_dataloader(self):
        return self._loader(False)

    test_dataloader = predict_dataloader = val_dataloader


class Hold(Callback):
    """Does no more optimizer steps than the file `hold` says, as long as it is there; `held`
    appears when it waits."""

    def on_train_batch_start(self, trainer, module, batch, index):
        while trainer.global_step >= self._most():
            Path("held").touch()
            time.sleep(0.01)
        Path("held").unlink(missing_ok=True)

    def _most(self):
        try:
            return int(Path("hold").read_text() or 0)
        except FileNotFoundError:
            return math.inf


class SendSignal(Callback):
    """Sends a signal to its own process, once in a folder (the file `sent` remembers it).

    Args:
        hook: Hook in which it is sent, such as on_train_batch_start.
        step: Number of optimizer steps by then.
        signum: The signal.
        rank: The rank that it is sent to.
    """

    def __init__(self, hook: str, step: int = 0, signum: int = signal.SIGTERM, rank: int = 0):
        self.hook, self.step, self.signum, self.rank = hook, step, signum, rank
        setattr(self, hook, self._send)

    def _send(self, trainer, *_, **__):
        if (
            trainer.global_rank != self.rank
            or trainer.global_step < self.step
            or Path("sent").exists()
        ):
            return
        Path("sent").touch()
        os.kill(os.getpid(), self.signum)


class FailOnRank(Callback):
    """Lets one rank raise, die or hang, once in a folder (the file `failed` remembers it).

    Args:
        kind: raise, kill, hang or stop.
        rank: The rank.
        step: Number of optimizer steps by then.
    """

    def __init__(self, kind: str, rank: int = 1, step: int = 2):
        self.kind, self.rank, self.step = kind, rank, step

    def on_train_batch_start(self, trainer, module, batch, index):
        if (
            trainer.global_rank != self.rank
            or trainer.global_step < self.step
            or Path("failed").exists()
        ):
            return
        Path("failed").touch()
        if self.kind == "raise":
            raise ValueError("this rank is out of stock")
        if self.kind == "hang":
            time.sleep(3600)
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[self.kind])


class WriteWord(Callback):
    """Appends its word to words.txt when training starts.

    Args:
        word: What to write.
    """

    def __init__(self, word: str = "word"):
        self.word = word

    def on_train_start(self, trainer, module):
        with open("words.txt", "a") as file:
            file.write(self.word + chr(10))
'''

SMALL: dict[str, Any] = {
    "seed_everything": 7,
    "model": {"class_path": "my_project.Net"},
    "data": {"class_path": "my_project.Points"},
    "trainer": {"accelerator": "cpu", "max_epochs": 2, "log_every_n_steps": 1, "logger": False},
    "run": {"report": False},  # half a second of each fit, which the tests of the report pay
}
"""Two epochs of six steps in which nothing but Lightning and lightkit costs time; the job is
`small`."""

PICTURES: dict[str, Any] = {
    "seed_everything": 7,
    "model": {"class_path": "ImageClassifier", "init_args": {"learning_rate": 0.01}},
    "data": {
        "class_path": "ImageFolder",
        "init_args": {"root": "pictures", "image_size": 32, "batch_size": 8, "num_workers": 0},
    },
    "trainer": {"accelerator": "cpu", "max_epochs": 2, "log_every_n_steps": 1, "logger": False},
    "run": {"report": False},  # half a second of each fit, which the tests of the report pay
}
"""A classifier on the folder that `write_pictures` makes; the job is `pictures`."""


def write_pictures(folder: Path, count: int = 60) -> Path:
    """Write PNG files of 40 x 40 pixels in two classes, `reds` and `blues`, easily told apart."""
    random = np.random.default_rng(5)
    for index in range(count):
        path = folder / ("reds", "blues")[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 160, (40, 40, 3), dtype=np.uint8)
        pixels[8:32, 8:32, (0, 2)[index % 2]] += 40
        Image.fromarray(pixels).save(path)
    return folder
