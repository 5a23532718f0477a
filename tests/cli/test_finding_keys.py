"""What a kept finding is for: other data, other code or another trainer has it looked for again."""

from __future__ import annotations

import importlib
import logging
from typing import Any

import pytest

from lightkit.cli import tuned
from lightkit.cli.answers import SPEED
from lightkit.cli.finding_keys import kept_name
from lightkit.cli.lightning_cli import LightkitCLI
from lightkit.tuning import allowance
from tests.cli.conftest import House, tune_event

NETS = """\
from collections.abc import Callable
from pathlib import Path

import torch
import torchmetrics
from pytorch_lightning import LightningDataModule, LightningModule
from torch.utils.data import DataLoader, IterableDataset, TensorDataset


class Net(LightningModule):
    def __init__(self, act: Callable = torch.nn.functional.relu, lr: float = 1e-3):
        super().__init__()
        self.lr = lr
        self.layer, self.act = torch.nn.Linear(8, 3), act

    def training_step(self, batch, index):
        return torch.nn.functional.cross_entropy(self.act(self.layer(batch[0])), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


def points():
    number = int(Path("number.txt").read_text())
    return TensorDataset(torch.randn(number, 8), torch.randint(0, 3, (number,)))


class Points(LightningDataModule):
    def __init__(self, batch_size: int = 4):
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self):
        return DataLoader(points(), batch_size=self.batch_size, drop_last=True)


class Endless(IterableDataset):
    def __iter__(self):
        return iter(points())


class Stream(Points):
    def train_dataloader(self):
        return DataLoader(Endless(), batch_size=self.batch_size)
"""
CONFIG = """\
seed_everything: 1
run: {name: job}
model: my_nets.Net
data: my_nets.Points
trainer: {max_steps: 4, limit_val_batches: 0}
accelerator: {kind: cpu, batch_size: auto}
"""
WORDS = ["fit", "--seed_everything=1", "--run.name=job", "--trainer.accelerator=cpu", "--trainer.limit_val_batches=0"]


@pytest.fixture
def nets(house: House, monkeypatch: pytest.MonkeyPatch) -> House:
    monkeypatch.setattr(allowance, "SHARE_OF_TRAINING", 1e9)  # the training is short
    monkeypatch.setattr(tuned, "_MOST_S", 600.0)  # this machine may stand still for a while
    house.write("my_nets.py", NETS)
    house.write("number.txt", "64")
    house.write("auto.yaml", CONFIG)
    return house


def _sources(house: House) -> list[str]:
    return [tune_event(run)["source"] for run in house.runs]


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"content": None}, ""),
        ({"content": "a digest", "act": lambda value: value}, "what is measured for speed is not kept: <function"),
    ],
    ids=["data", "a function without a name"],
)
def test_what_nothing_tells_from_something_else_has_no_name(
    caplog: pytest.LogCaptureFixture, parts: dict[str, Any], says: str
) -> None:
    with caplog.at_level(logging.INFO, logger="lightkit"):
        assert kept_name(SPEED, parts) is None
    assert says in caplog.text
    assert bool(caplog.text) == bool(says)
    assert kept_name(SPEED, {"content": "a digest"}) != kept_name(SPEED, {"content": "another"})


def test_a_batch_size_of_more_samples_than_a_script_has_now_is_not_taken(
    nets: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(nets.folder)
    my_nets = importlib.import_module("my_nets")
    for number in ("64", "64", "8"):
        nets.write("number.txt", number)
        cli = LightkitCLI(
            my_nets.Net, my_nets.Points, args=[*WORDS, "--trainer.max_epochs=1", "--accelerator.batch_size=auto"]
        )
        assert cli.trainer.global_step >= 1
    assert _sources(nets) == ["measured", "cache", "measured"]
    sizes = [tune_event(run)["chosen"]["batch_size"] for run in nets.runs]
    assert sizes[0] > 8 >= sizes[2]


def test_data_whose_files_nobody_knows_is_told_by_its_samples(nets: House) -> None:
    for number in ("64", "64", "8"):
        nets.write("number.txt", number)
        nets.fit("-c", "auto.yaml")
    assert _sources(nets) == ["measured", "cache", "measured"]


def test_nothing_is_kept_of_data_that_cannot_be_counted(nets: House) -> None:
    rate = ("--accelerator.batch_size=null", "--accelerator.learning_rate=auto")
    for _ in range(2):
        nets.fit("-c", "auto.yaml", "--data=my_nets.Stream", *rate)
    assert _sources(nets) == ["measured", "measured"]


@pytest.mark.parametrize(
    "word", ["--trainer.gradient_clip_algorithm=value", "--trainer.detect_anomaly=true", "--trainer.benchmark=true"]
)
def test_what_changes_a_step_has_it_searched_for_again(nets: House, word: str) -> None:
    nets.fit("-c", "auto.yaml")
    nets.fit("-c", "auto.yaml", "--trainer.max_steps=5")
    nets.fit("-c", "auto.yaml", word)
    assert _sources(nets) == ["measured", "cache", "measured"]
