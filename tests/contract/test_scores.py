"""A score is shown with the weights, the data and the samples that it is of, and with no others."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binomtest

from tests.contract.conftest import Once, copy_of
from tests.contract.workspace import Workspace, read_json

pytestmark = pytest.mark.timeout(900)  # on a busy machine

_MODULE = """
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

LOSSES = [1.8, 0.2, 2.2, 0.1, 3.0]


class Data(pl.LightningDataModule):
    def __init__(
        self, shift: float = 0.0, batch_size: int = 2, drop_last: bool = False, num_samples: int = 4
    ):
        super().__init__()
        self.shift, self.batch_size, self.drop_last = shift, batch_size, drop_last
        self.num_samples = num_samples

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.zeros(4, 1)), batch_size=2)

    def test_dataloader(self):
        x = torch.zeros(self.num_samples)
        x[2:4] = 5.0
        return DataLoader(TensorDataset(x + self.shift), self.batch_size, drop_last=self.drop_last)

    val_dataloader = test_dataloader


class Falling(pl.LightningModule):
    '''Its weight falls from 10 by 1 a step; val/loss is that of LOSSES; test/loss is the weight and
    the data's mean.'''

    def __init__(self, offset: float = 0.0):
        super().__init__()
        self.weight, self.offset = torch.nn.Parameter(torch.tensor(10.0)), offset

    def training_step(self, batch, index):
        return self.weight

    def validation_step(self, batch, index):
        self.log("val/loss", LOSSES[self.current_epoch])
        self.log("val/accuracy", (batch[0] > 1).float().mean())

    def test_step(self, batch, index):
        self.log("test/loss", self.weight.detach() + batch[0].mean() + self.offset)
        self.log("test/accuracy", (batch[0] > 1).float().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)
"""
_CONFIG: dict[str, Any] = {
    "seed_everything": 1,
    "model": {"class_path": "falling.Falling"},
    "data": {"class_path": "falling.Data"},
    "trainer": {"accelerator": "cpu", "devices": 1, "max_epochs": 3, "logger": False},
}
_BEST, _LAST = 6.0 + 2.5, 4.0 + 2.5
"""test/loss of best.ckpt, of epoch 1, and of last.ckpt, of epoch 2."""


def _fill(workspace: Workspace) -> None:
    workspace.write("falling.py", _MODULE)
    workspace.write("falling.yaml", _CONFIG)
    workspace.run("fit", "-c", "falling.yaml").ok()


@pytest.fixture
def falling(made_once: Once, workspace: Workspace) -> Workspace:
    """A run whose best.ckpt is of epoch 1 and whose last.ckpt is of epoch 2."""
    return copy_of(made_once("falling", _fill), workspace)


def stage(workspace: Workspace, *words: str) -> None:
    (run,) = workspace.runs
    workspace.run(words[0], "--run", str(run), *words[1:]).ok()


def read_shown(workspace: Workspace, metric: str = "test/loss") -> dict[str, float | None]:
    """Return a metric as each place shows it for the best checkpoint; None where one does not."""
    (run,) = workspace.runs
    page = (run / "report.html").read_text(encoding="utf-8")
    section = re.search(r'<section id="metrics">(.*?)</section>', page, re.DOTALL)
    in_page = re.search(rf'{metric}</th><td class="num">([^<]*)<', section[1]) if section else None
    in_card = re.search(
        rf"\| {metric} \| ([^ ]*) \|", (run / "card.md").read_text(encoding="utf-8")
    )
    table = json.loads(
        workspace.run("runs", "--metric=val/loss,lr", "--sort=age", "--json").ok().out
    )
    known = metric in workspace.run("runs", "--metric=nothing").err
    if known:
        table = json.loads(
            workspace.run("runs", f"--metric={metric}", f"--sort={metric}", "--json").ok().out
        )
    return {
        "report": float(in_page[1]) if in_page else None,
        "card": float(in_card[1]) if in_card else None,
        "runs": table[0]["metrics"].get(metric),
    }


def read_others(workspace: Workspace) -> str:
    """Return the report's section of the scores that are not the best checkpoint's, as text."""
    (run,) = workspace.runs
    page = (run / "report.html").read_text(encoding="utf-8")
    section = re.search(r'<section id="others">(.*?)</section>', page, re.DOTALL)
    return " ".join(re.sub("<[^>]*>", " ", section[1]).split()) if section else ""


def test_a_test_of_the_best_checkpoint_is_shown_with_its_digest_and_samples(
    falling: Workspace,
) -> None:
    stage(falling, "test")
    (run,) = falling.runs
    (score,) = read_json(run / "summary.json")["scores"]
    digest = (run / "checkpoints" / "best.ckpt.sha256").read_text(encoding="utf-8").split()[0]
    assert (score["stage"], score["checkpoint"], score["sha256"]) == (
        "test",
        "checkpoints/best.ckpt",
        digest,
    )
    assert (score["epoch"], score["num_samples"], score["limit"], score["changed"]) == (
        1,
        4,
        None,
        {},
    )
    assert score["metrics"]["test/loss"] == _BEST
    assert read_shown(falling) == dict.fromkeys(("report", "card", "runs"), _BEST)
    assert digest in (run / "card.md").read_text(encoding="utf-8")
    assert read_others(falling) == ""


@pytest.mark.parametrize(
    ("words", "value", "says"),
    [
        (["--ckpt_path=last"], _LAST, "last.ckpt, epoch 2"),
        (["--data.shift=1.0"], _BEST + 1, "best.ckpt, epoch 1, with data.shift: 1.0"),
        (
            ["--trainer.limit_test_batches=1"],
            6.0,
            "best.ckpt, epoch 1, with trainer.limit_test_batches: 1",
        ),
        (["--model.offset=3.0"], _BEST + 3, "best.ckpt, epoch 1, with model.offset: 3.0"),
    ],
    ids=["weights of another epoch", "other data", "a part of the data", "another model"],
)
@pytest.mark.parametrize("is_tested_before", [True, False], ids=["after its own test", "untested"])
def test_a_test_of_anything_else_is_said_by_name_and_never_the_best_checkpoints(
    falling: Workspace, words: list[str], value: float, says: str, is_tested_before: bool
) -> None:
    if is_tested_before:
        stage(falling, "test")
    stage(falling, "test", *words)
    shown = _BEST if is_tested_before else None
    assert read_shown(falling) == dict.fromkeys(("report", "card", "runs"), shown)
    assert f"test/loss {value:g} {says}" in read_others(falling)


def test_how_samples_are_loaded_is_no_other_test(falling: Workspace) -> None:
    stage(falling, "test", "--data.batch_size=4")
    assert read_shown(falling) == dict.fromkeys(("report", "card", "runs"), _BEST)


def test_a_resumed_fit_leaves_no_score_of_weights_that_are_gone(falling: Workspace) -> None:
    stage(falling, "test")
    falling.run("fit", "-c", "falling.yaml", "--run.resume=latest", "--trainer.max_epochs=4").ok()
    (run,) = falling.runs
    summary = read_json(run / "summary.json")
    assert (summary["best"]["epoch"], summary["scores"], summary["stages"]) == (3, [], {})
    assert read_shown(falling) == dict.fromkeys(("report", "card", "runs"))
    stage(falling, "test")
    assert read_shown(falling) == dict.fromkeys(("report", "card", "runs"), 2.0 + 2.5)


def test_a_resumed_fit_that_finds_nothing_better_keeps_the_score_of_its_best_checkpoint(
    falling: Workspace,
) -> None:
    falling.write("falling.py", _MODULE.replace("2.2, 0.1, 3.0", "2.2, 2.1, 3.0"))
    stage(falling, "test")
    stage(falling, "test", "--ckpt_path=last")
    falling.run("fit", "-c", "falling.yaml", "--run.resume=latest", "--trainer.max_epochs=4").ok()
    (run,) = falling.runs
    summary = read_json(run / "summary.json")
    assert summary["stages"]["test"]["test/loss"] == _BEST
    assert read_shown(falling) == dict.fromkeys(("report", "card", "runs"), _BEST)


def interval(right: int, num_samples: int) -> str:
    """Write Wilson's interval as a report does."""
    found = binomtest(right, num_samples).proportion_ci(method="wilson")
    return f"{found.low:.3g} to {found.high:.3g}"


@pytest.mark.parametrize(
    ("data", "trainer", "tested", "accuracy"),
    [
        (
            {"num_samples": 36, "batch_size": 4},
            {"limit_test_batches": 1, "limit_val_batches": 1},
            4,
            0.5,
        ),
        ({"num_samples": 6, "batch_size": 4, "drop_last": True}, {}, 4, 0.5),
        (
            {"num_samples": 8, "batch_size": 2},
            {"limit_test_batches": 0.5, "limit_val_batches": 0.5},
            4,
            0.5,
        ),
        ({"num_samples": 8, "batch_size": 4}, {}, 8, 0.25),
    ],
    ids=["a number of batches", "the last batch left out", "a share", "all"],
)
def test_an_interval_is_of_the_samples_that_were_scored(
    workspace: Workspace,
    data: dict[str, Any],
    trainer: dict[str, Any],
    tested: int,
    accuracy: float,
) -> None:
    workspace.write("falling.py", _MODULE)
    config = {**_CONFIG, "data": {"class_path": "falling.Data", "init_args": data}}
    workspace.write(
        "limited.yaml", {**config, "trainer": {**_CONFIG["trainer"], **trainer, "max_epochs": 1}}
    )
    workspace.run("fit", "-c", "limited.yaml").ok()
    stage(workspace, "test")
    (run,) = workspace.runs
    summary = read_json(run / "summary.json")
    assert summary["samples"] == {"val": tested}
    assert summary["scores"][0]["num_samples"] == tested
    card = (run / "card.md").read_text(encoding="utf-8")
    expected = interval(round(accuracy * tested), tested)
    for metric in ("test/accuracy", "val/accuracy"):
        assert f"| {metric} | {accuracy:g} | {expected} | {tested} |" in card
    assert f"test/accuracy is {accuracy:g} (95 % interval {expected}, {tested} samples)" in card


def test_what_is_no_share_of_the_samples_has_no_interval(workspace: Workspace) -> None:
    module = _MODULE.replace(
        "(batch[0] > 1).float().mean())\n\n    def conf", "0.5123)\n\n    def conf"
    )
    assert module != _MODULE
    workspace.write("falling.py", module)
    workspace.write("falling.yaml", {**_CONFIG, "trainer": {**_CONFIG["trainer"], "max_epochs": 1}})
    workspace.run("fit", "-c", "falling.yaml").ok()
    stage(workspace, "test")
    card = (Path(workspace.runs[0]) / "card.md").read_text(encoding="utf-8")
    assert "test/accuracy is 0.5123." in card
    assert "| test/accuracy | 0.5123 |  | 4 |" in card
