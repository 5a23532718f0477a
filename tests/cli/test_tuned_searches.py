"""A batch size and a learning rate that were found before, and findings for more than a fit asks for."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from lightkit.cli import tuned
from lightkit.tuning import allowance
from tests.cli.conftest import House, read_json, tune_event

pytestmark = pytest.mark.long

MY_NETS = """\
from pathlib import Path

import torch
from pytorch_lightning import LightningDataModule, LightningModule
from torch.utils.data import DataLoader, TensorDataset

STEPS = []


class Net(LightningModule):
    def __init__(self, width: int = 8):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, 3))

    def training_step(self, batch, index):
        STEPS.append(len(batch[0]))
        return torch.nn.functional.cross_entropy(self.layers(batch[0]), batch[1])


class Points(LightningDataModule):
    def __init__(self, root: str = "points", batch_size: int = 4):
        super().__init__()
        self.root, self.batch_size = root, batch_size

    def train_dataloader(self):
        number = int(Path(self.root, "number.txt").read_text())
        generator = torch.Generator().manual_seed(0)
        points, planes = torch.randn(number, 8, generator=generator), torch.randn(8, 3, generator=generator)
        return DataLoader(TensorDataset(points, (points @ planes).argmax(1)), batch_size=self.batch_size, shuffle=True)
"""
BOTH = """\
seed_everything: 1
run: {name: job}
model: {class_path: my_nets.Net}
data: {class_path: my_nets.Points}
optimizer: {class_path: SGD, init_args: {lr: 1.0e-4}}
trainer: {max_epochs: 2, limit_val_batches: 0}
accelerator: {kind: cpu, batch_size: auto, learning_rate: auto}
"""


@pytest.fixture
def nets(house: House, monkeypatch: pytest.MonkeyPatch) -> House:
    monkeypatch.setattr(allowance, "SHARE_OF_TRAINING", 1e9)  # the training is short
    monkeypatch.setattr(tuned, "_MOST_S", 600.0)  # this machine may stand still for a while
    house.write("my_nets.py", MY_NETS)
    house.write("points/number.txt", "64")
    house.write("both.yaml", BOTH)
    return house


def _limit(nets: House, search: str) -> dict[str, Any]:
    (file,) = nets.runs[0].parents[1].glob(f".tuning/{search}-*.json")
    limit: dict[str, Any] = read_json(file)["limit"]
    return limit


def _steps(nets: House, *words: str) -> tuple[Path, int]:
    """Fit, and give the run with the number of steps that the model has computed."""
    before = len(sys.modules["my_nets"].STEPS) if "my_nets" in sys.modules else 0
    run = nets.fit(*words)
    return run, len(sys.modules["my_nets"].STEPS) - before


def test_a_second_fit_of_the_same_config_searches_for_nothing(nets: House) -> None:
    first, num_first = _steps(nets, "-c", "both.yaml")
    done = nets("fit", "-c", "both.yaml", "--seed_everything=2")
    assert done.code == 0, done.err
    assert "the learning rate stays what it is; measured before" in done.err
    second, num_second = _steps(nets, "-c", "both.yaml")
    before, after = tune_event(first), tune_event(second)
    assert (before["source"], after["source"]) == ("measured", "cache")
    assert after["chosen"] == before["chosen"]
    trained = 2 * -(-64 // before["chosen"]["batch_size"])
    assert num_second == trained < num_first
    assert (second / "lr_find.csv").read_text() == (first / "lr_find.csv").read_text()


@pytest.mark.parametrize(
    "change",
    [
        ("--model.init_args.width=4",),
        ("--optimizer.init_args.momentum=0.9",),
        ("--data.init_args.batch_size=8",),
        ("--trainer.max_epochs=3",),
    ],
    ids=["model", "optimizer", "data", "length"],
)
def test_what_they_depend_on_has_them_searched_for_again(nets: House, change: tuple[str, ...]) -> None:
    nets.fit("-c", "both.yaml")
    assert tune_event(nets.fit("-c", "both.yaml", *change))["source"] == "measured"


def test_other_files_of_the_data_count(nets: House) -> None:
    nets.fit("-c", "both.yaml")
    assert tune_event(nets.fit("-c", "both.yaml"))["source"] == "cache"
    nets.write("points/number.txt", "96")
    assert tune_event(nets.fit("-c", "both.yaml"))["source"] == "measured"


def test_a_search_that_had_no_time_is_not_kept(nets: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allowance, "SHARE_OF_TRAINING", 0.0)
    for _ in range(2):
        event = tune_event(nets.fit("-c", "both.yaml", "--accelerator.learning_rate=null"))
        assert (event["source"], event["chosen"]) == ("measured", {"batch_size": 4})


def test_a_training_whose_share_is_nothing_has_the_least_of_each_search(
    nets: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allowance, "SHARE_OF_TRAINING", 0.0)
    run = nets.fit("-c", "both.yaml", "--accelerator.memory_format=auto", "--trainer.max_epochs=8")
    event = tune_event(run)
    assert event["chosen"]["batch_size"] == 4  # the config's
    assert event["chosen"]["memory_format"] == "contiguous"
    assert len((run / "lr_find.csv").read_text().splitlines()) == 1 + 40
    assert not list(nets.runs[0].parents[1].glob(".tuning/batch_size-*"))  # nor kept


def test_what_is_kept_tells_how_long_its_search_could_take(nets: House) -> None:
    event = tune_event(nets.fit("-c", "both.yaml"))
    size, rate = (_limit(nets, search) for search in ("batch_size", "learning_rate"))
    assert 0 < size["seconds"] < size["seconds"] + size["loaded_s"] <= 300  # one of two searches that share 600 s
    assert 0 < rate["seconds"] < rate["seconds"] + rate["loaded_s"] < 600  # what the first has left
    assert size["expected"][1] == 64 / 4
    assert rate["expected"][1] == -(-64 // event["chosen"]["batch_size"])


def test_a_training_that_ends_after_a_time_gives_a_share_of_that(nets: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allowance, "SHARE_OF_TRAINING", 200.0)  # of a second
    words = ("--trainer.max_epochs=-1", '--trainer.max_time={"seconds": 1}')
    nets.fit("-c", "both.yaml", "--accelerator.learning_rate=null", *words)
    size = _limit(nets, "batch_size")
    assert 0 < size["seconds"] < size["seconds"] + size["loaded_s"] <= 200  # 600 without it


def test_what_a_shorter_tune_has_measured_completely_serves_a_fit(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))  # threads: auto is no choice then
    house.write("auto.yaml", "extends: small.yaml\naccelerator: {memory_format: auto}\n")  # one choice, quickly made
    assert house("tune", "-c", "auto.yaml", "--budget", "20").code == 0
    assert tune_event(house.fit("-c", "auto.yaml"))["source"] == "cache"


def test_a_fit_takes_batch_size_and_rate_from_tune(nets: House) -> None:
    told = json.loads(nets("tune", "-c", "both.yaml", "--json").out)
    assert told["batch_size"]["left_out"] == told["learning_rate"]["left_out"] == []
    event = tune_event(nets.fit("-c", "both.yaml"))
    assert event["source"] == "cache"
    assert event["chosen"] == told["chosen"]


def test_what_tune_has_measured_of_all_serves_a_fit_that_leaves_less_open(house: House) -> None:
    told = json.loads(house("tune", "-c", "small.yaml", "--accelerator.compile=false", "--json").out)
    assert {*told["chosen"]} >= {"precision", "memory_format", "fused", "threads"}
    house.write("some.yaml", "extends: small.yaml\naccelerator: {precision: auto, memory_format: auto}\n")
    run = house.fit("-c", "some.yaml")
    event = tune_event(run)
    assert event["source"] == "cache"
    assert {*event["chosen"]} == {"precision", "memory_format"}
    assert tune_event(house.fit("-c", "some.yaml", "--accelerator.compile=auto"))["source"] == "measured"


def test_data_without_arguments_is_measured(house: House) -> None:
    bare = (
        "from my_models import Points\n\n\nclass Bare(Points):\n    def __init__(self):\n        super().__init__()\n"
    )
    house.write("my_bare.py", bare)
    done = house("fit", "-c", "small.yaml", "--data=my_bare.Bare", "--accelerator.memory_format=auto")
    assert done.code == 0, done.err
    assert "measuring has ended" not in done.err
    assert tune_event(house.runs[-1])["source"] == "measured"


def test_a_fixed_number_of_threads_is_the_same_for_tune_and_fit(house: House) -> None:
    house.write("fixed.yaml", "extends: small.yaml\naccelerator: {memory_format: auto, threads: 1}\n")
    assert house("tune", "-c", "fixed.yaml").code == 0
    run = house.fit("-c", "fixed.yaml")
    assert tune_event(run)["source"] == "cache"
    assert yaml.safe_load((run / "config.yaml").read_text())["launch"]["threads"] == 1
