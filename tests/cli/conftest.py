"""A working directory with models of the user's own, and the command as a function."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

MY_MODELS = '''\
"""Models and data that somebody wrote beside their configs."""

import torch
from pytorch_lightning import Callback, LightningDataModule, LightningModule
from torch.utils.data import DataLoader, TensorDataset


class Net(LightningModule):
    """A small network.

    Args:
        hidden: Width of the hidden layer.
        name: Any text.
        tags: Any texts.
    """

    def __init__(self, hidden: int = 4, name: str = "net", tags: list[str] | None = None):
        super().__init__()
        self.save_hyperparameters()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(3, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 1)
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
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Wide(Net):
    """Another network with other arguments."""

    def __init__(self, width: int = 8):
        super().__init__(hidden=width)
        self.save_hyperparameters()


class Needy(Net):
    """A network that needs an argument."""

    def __init__(self, classes: int):
        super().__init__()


class Broken(Net):
    """A network with a defect."""

    def __init__(self, hidden: int = 4):
        raise ValueError("hidden layers are out of stock")


class Failing(Net):
    """A network with a defect that shows in training."""

    def training_step(self, batch, index):
        raise ValueError("batches are out of stock")


class Points(LightningDataModule):
    """Points near a plane.

    Args:
        count: Number of points.
        batch_size: Points in a batch.
        note: Any text.
    """

    def __init__(self, count: int = 8, batch_size: int = 4, note: str = ""):
        super().__init__()
        self.save_hyperparameters()
        self.count, self.batch_size = count, batch_size

    def _loader(self):
        generator = torch.Generator().manual_seed(3)
        x = torch.randn(self.count, 3, generator=generator)
        return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=self.batch_size)

    def train_dataloader(self):
        return self._loader()

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader


class Told(Callback):
    """Writes its word into told.txt when training starts.

    Args:
        word: What to write.
    """

    def __init__(self, word: str = "told"):
        self.word = word

    def on_train_start(self, trainer, module):
        with open("told.txt", "a") as file:
            file.write(self.word + chr(10))
'''

SMALL = """\
seed_everything: 7
model: my_models.Net
data: my_models.Points
trainer:
  accelerator: cpu
  max_epochs: 1
  log_every_n_steps: 1
"""


@dataclass
class Outcome:
    """What a command left behind.

    Args:
        code: Exit code.
        out: Standard output.
        err: Standard error.
    """

    code: int
    out: str
    err: str

    @property
    def config(self) -> dict[str, Any]:
        """Standard output as YAML, after ``--print_config``."""
        assert self.code == 0, self.err
        config: dict[str, Any] = yaml.safe_load(self.out)
        return config


class House:
    """A working directory, and the command in it.

    Args:
        folder: The working directory.
        capsys: Captures what the command prints.
    """

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def write(self, name: str, text: str) -> Path:
        """Write a file below the working directory."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def __call__(self, *words: str) -> Outcome:
        """Run ``lightkit`` with these words in this process."""
        from lightkit.main import main

        self._capsys.readouterr()
        code = main(words)
        said = self._capsys.readouterr()
        return Outcome(code, said.out, said.err)

    def resolved(self, *words: str) -> dict[str, Any]:
        """The config that ``lightkit fit --print_config`` prints."""
        return self("fit", *words, "--print_config").config

    def fit(self, *words: str) -> Path:
        """Fit, expect success, and return the newest run's folder."""
        done = self("fit", *words)
        assert done.code == 0, done.err
        return self.runs[-1]

    @property
    def runs(self) -> list[Path]:
        """Folders of all runs, oldest first."""
        found = [
            path for path in self.folder.glob("runs/*/*") if path.is_dir() and not path.is_symlink()
        ]
        return sorted(found, key=lambda path: (path.stat().st_ctime_ns, path.name))


@pytest.fixture
def house(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[House]:
    """A working directory with ``my_models.py`` and ``small.yaml``.

    The process's state is put back afterwards.
    """
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("LIGHTKIT_", "PL_"))]:
        monkeypatch.delenv(name)
    # 2026-11-20: LightningCLI 2.6.6 calls what jsonargparse 4.53 deprecates.
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    house = House(tmp_path, capsys)
    house.write("my_models.py", MY_MODELS)
    house.write("small.yaml", SMALL)
    with undisturbed():
        yield house


class undisturbed:  # noqa: N801 (reads as a function: `with undisturbed():`)
    """Put back what a command changes for the rest of its process."""

    def __enter__(self) -> None:
        self._environ, self._path, self._modules = (
            dict(os.environ),
            list(sys.path),
            set(sys.modules),
        )
        self._handlers = {
            number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)
        }
        self._showwarning = warnings.showwarning
        self._filters = warnings.filters[:]
        self._logs = {
            name: _state_of(logging.getLogger(name))
            for name in ("lightkit", "pytorch_lightning", "mlflow")
        }

    def __exit__(self, *_: object) -> None:
        os.environ.clear()
        os.environ.update(self._environ)
        sys.path[:] = self._path
        for name in set(sys.modules) - self._modules:
            if getattr(sys.modules[name], "__file__", None) and name.startswith(("my_", "user_")):
                del sys.modules[name]
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        warnings.showwarning = self._showwarning
        warnings.filters[:] = self._filters  # type: ignore[index]
        for name, (level, propagate, handlers) in self._logs.items():
            log = logging.getLogger(name)
            log.setLevel(level)
            log.propagate, log.handlers[:] = propagate, handlers


def _state_of(log: logging.Logger) -> tuple[int, bool, list[logging.Handler]]:
    return log.level, log.propagate, list(log.handlers)


def read_json(path: Path) -> Any:
    """Content of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))
