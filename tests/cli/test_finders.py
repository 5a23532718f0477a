"""`learning_rate: auto` and `batch_size: auto` of the section `accelerator`, as somebody writes them in YAML."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from lightkit.tuning import allowance, range_test
from tests.cli.conftest import House, tune_event

MY_NETS = """\
import torch
from pytorch_lightning import LightningDataModule, LightningModule
from torch.utils.data import DataLoader, TensorDataset


class Rated(LightningModule):
    def __init__(self, learning_rate: float = 3e-5):
        super().__init__()
        self.learning_rate = learning_rate
        self.layer = torch.nn.Linear(8, 3)

    def training_step(self, batch, index):
        return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.learning_rate)


class Bare(Rated):
    def __init__(self):
        super().__init__()
        del self.learning_rate


class Points(LightningDataModule):
    def __init__(self, batch_size: int = 4, meaning: bool = True):
        super().__init__()
        self.batch_size, self.meaning = batch_size, meaning

    def train_dataloader(self):
        generator = torch.Generator().manual_seed(0)
        points, planes = torch.randn(64, 8, generator=generator), torch.randn(8, 3, generator=generator)
        labels = (points @ planes).argmax(1)
        if not self.meaning:
            labels = torch.randint(0, 3, (64,), generator=generator)
        return DataLoader(TensorDataset(points, labels), batch_size=self.batch_size, shuffle=True)
"""
RATED = """\
seed_everything: 1
run: {name: job}
model: {class_path: my_nets.Rated}
data: {class_path: my_nets.Points}
trainer: {max_epochs: 2, limit_val_batches: 0}
accelerator: {kind: cpu, learning_rate: auto}
"""
STUCK = """\
from my_nets import Rated


class Stuck(Rated):
    def on_save_checkpoint(self, checkpoint):  # as the range test begins with one
        if not self.trainer.checkpoint_callbacks:
            raise OSError("no space left on device")
"""
SLOW = """\
from my_nets import Rated

from lightkit.tuning import range_test


class Slow(Rated):
    def __init__(self, learning_rate: float = 3e-5, num_fast: int = 0):
        super().__init__(learning_rate)
        self.num_fast, self.num_steps = num_fast, 0

    def training_step(self, batch, index):
        self.num_steps += 1
        range_test.time.now += 0.1 if self.num_steps <= self.num_fast else 20.0
        return super().training_step(batch, index)
"""


class Clock:
    """A clock that the steps of `Slow` move on."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def nets(house: House) -> House:
    house.write("my_nets.py", MY_NETS)
    house.write("rated.yaml", RATED)
    return house


def saved(run: Path) -> Any:
    return yaml.safe_load((run / "config.yaml").read_text())


def weights(run: Path) -> dict[str, Any]:
    (file,) = (run / "checkpoints").glob("last.ckpt")
    loaded: dict[str, Any] = torch.load(file, weights_only=True)["state_dict"]
    return loaded


def test_a_rate_is_found_kept_and_trains_as_if_it_had_been_given(nets: House) -> None:
    done = nets("fit", "-c", "rated.yaml")
    assert done.code == 0, done.err
    assert done.err.count("tuned  learning_rate ") == 1
    run = nets.runs[-1]
    rate = saved(run)["model"]["init_args"]["learning_rate"]
    assert 1e-3 <= rate < 1
    assert (run / "lr_find.csv").is_file()
    assert (run / "lr_find.png").is_file()
    assert not [*nets.folder.rglob(".lr_find*")]
    given = ("--accelerator.learning_rate=null", f"--model.init_args.learning_rate={rate}", "--run.name=given")
    plain = nets.fit("-c", "rated.yaml", *given)
    assert all(torch.equal(value, weights(plain)[name]) for name, value in weights(run).items())


def test_the_optimizer_of_the_config_takes_the_rate(nets: House) -> None:
    optimizer = "optimizer: {class_path: SGD, init_args: {lr: 1.0e-5}}\n"
    nets.write("own.yaml", RATED.replace("Rated", "Bare") + optimizer)
    run = nets.fit("-c", "own.yaml")
    assert 1e-3 <= saved(run)["optimizer"]["init_args"]["lr"] < 1


def test_no_rate_keeps_that_of_the_config_and_warns(nets: House) -> None:
    done = nets("fit", "-c", "rated.yaml", "--data.init_args.meaning=false", "--trainer.max_epochs=1")
    assert done.code == 0, done.err
    assert "accelerator.learning_rate: no learning rate was found: the loss fell at no rate" in done.err
    assert saved(nets.runs[-1])["model"]["init_args"]["learning_rate"] == 3e-5


@pytest.mark.parametrize(
    ("num_fast", "says", "num_rows"),
    [(6 + 30, "time ended after 32 steps, at a rate of ", 32), (0, "40 steps take about ", None)],
    ids=["cut", "not begun"],
)
def test_a_search_that_time_has_ended_keeps_the_rate_of_the_config_and_is_not_kept(
    nets: House, monkeypatch: pytest.MonkeyPatch, num_fast: int, says: str, num_rows: int | None
) -> None:
    clock = Clock()
    for module in (range_test, allowance):
        monkeypatch.setattr(module, "time", clock)
    nets.write("my_slow.py", SLOW)
    done = nets("fit", "-c", "rated.yaml", "--model=my_slow.Slow", f"--model.init_args.num_fast={num_fast}")
    assert done.code == 0, done.err
    assert f"accelerator.learning_rate: no learning rate was found: {says}" in done.err
    assert "lightkit tune" in done.err
    run = nets.runs[-1]
    assert saved(run)["model"]["init_args"]["learning_rate"] == 3e-5
    assert not [*nets.folder.rglob(".tuning/learning_rate-*")]
    curve = run / "lr_find.csv"
    assert (len(curve.read_text().splitlines()) - 1 if curve.exists() else None) == num_rows
    assert (run / "lr_find.png").exists() == (num_rows is not None)


def test_a_batch_size_is_found_and_kept(nets: House) -> None:
    done = nets("fit", "-c", "rated.yaml", "--accelerator.learning_rate=null", "--accelerator.batch_size=auto")
    assert done.code == 0, done.err
    assert done.err.count("tuned  batch_size ") == 1
    assert "the learning rate stays what it is" in done.err
    size = saved(nets.runs[-1])["data"]["init_args"]["batch_size"]
    assert size in (4, 8, 16, 32, 64)
    assert f"tuned  batch_size {size}" in done.err


def test_a_search_that_ends_with_an_error_leaves_what_those_before_it_have_found(nets: House) -> None:
    nets.write("my_stuck.py", STUCK)
    words = ("--accelerator.batch_size=auto", "--accelerator.memory_format=auto", "--model=my_stuck.Stuck")
    done = nets("fit", "-c", "rated.yaml", *words)
    assert done.code == 0, done.err
    assert "accelerator: auto chooses no learning_rate, for measuring has ended with OSError: no space" in done.err
    assert re.findall(r"^tuned  (\S+)", done.err, re.MULTILINE)[0] == "batch_size"
    assert done.err.count("\ntuned  ") == 2
    kept, event = saved(nets.runs[-1]), tune_event(nets.runs[-1])
    assert kept["data"]["init_args"]["batch_size"] == event["chosen"]["batch_size"]
    assert kept["accelerator"]["memory_format"] == event["chosen"]["memory_format"]
    assert event["chosen"]["learning_rate"] is None
    assert kept["model"]["init_args"]["learning_rate"] == 3e-5


def test_a_search_that_ends_with_an_error_leaves_open_what_it_was_to_find_alone(nets: House) -> None:
    nets.write("my_stuck.py", STUCK)
    fixed = "--trainer.plugins=pytorch_lightning.plugins.precision.DoublePrecision"
    words = ("--accelerator.batch_size=auto", "--accelerator.precision=auto", "--model=my_stuck.Stuck", fixed)
    done = nets("fit", "-c", "rated.yaml", *words)
    assert done.code == 0, done.err
    assert "accelerator: auto chooses no learning_rate, for measuring has ended with OSError: no space" in done.err


def test_lightnings_own_finders_work_as_they_did(nets: House) -> None:
    nets.write(
        "own.yaml",
        "extends: rated.yaml\n"
        "accelerator: {learning_rate: null}\n"
        "callbacks:\n"
        "  rate: {class_path: LearningRateFinder, init_args: {num_training_steps: 20}}\n"
        "  size: {class_path: BatchSizeFinder, init_args: {max_trials: 2}}\n",
    )
    done = nets("fit", "-c", "own.yaml")
    assert done.code == 0, done.err
    assert "tuned" not in done.err
