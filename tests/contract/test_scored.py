"""What is printed for the best checkpoint is what it gives, whenever a training validates."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.contract.workspace import Workspace, read_json, read_metrics

MY_SCORED = '''\
"""The validation loss is the weight, and the weight depends on the step, so that a score says whose
it is."""

import os
import signal
from pathlib import Path

import torch
from pytorch_lightning import LightningDataModule, LightningModule
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

AFTER = [
    9.0, 8.0, 7.0, 1.0, 6.0, 5.0, 4.0, 3.5, 3.0, 2.5,
    9.0, 9.0, 9.0, 0.5, 7.0, 7.0, 6.0, 6.0, 6.0, 6.0,
]


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.zeros(1)


class Short(IterableDataset):
    def __len__(self):
        return 6

    def __iter__(self):
        yield from torch.zeros(5, 1)


class Data(LightningDataModule):
    def __init__(self, batches: int = 10, stream: str = "", loaders: int = 1):
        super().__init__()
        self.batches, self.stream, self.loaders = batches, stream, loaders

    def train_dataloader(self):
        streams = {"endless": Endless, "short": Short}
        rows = (
            streams[self.stream]() if self.stream else TensorDataset(torch.zeros(self.batches, 1))
        )
        return DataLoader(rows, batch_size=1)

    def val_dataloader(self):
        return [
            DataLoader(TensorDataset(torch.zeros(2, 1)), batch_size=1) for _ in range(self.loaders)
        ]

    def test_dataloader(self):
        return DataLoader(TensorDataset(torch.zeros(2, 1)), batch_size=1)


class Net(LightningModule):
    def __init__(self, name: str = "val/loss"):
        super().__init__()
        self.name, self.weight = name, torch.nn.Parameter(torch.tensor(10.0))

    def training_step(self, batch, index):
        return 0 * self.weight

    def optimizer_step(self, *args, **kwargs):
        super().optimizer_step(*args, **kwargs)
        with torch.no_grad():  # Lightning counts the step after this hook
            self.weight.fill_(AFTER[self.global_step % len(AFTER)])

    def validation_step(self, batch, index, dataloader_idx=0):
        if os.environ.get("KILL_AT") == str(self.global_step):
            os.kill(os.getpid(), signal.SIGKILL)
        self.log(self.name, self.weight.detach() + dataloader_idx)

    def test_step(self, batch, index):
        self.log("test/loss", self.weight.detach().clone())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)
'''


def write(
    workspace: Workspace, *, data: dict[str, Any] | None = None, model: Any = None, **trainer: Any
) -> None:
    (workspace.folder / "my_scored.py").write_text(MY_SCORED, encoding="utf-8")
    defaults = {"accelerator": "cpu", "devices": 1, "logger": False}
    config = {
        "seed_everything": 1,
        "model": {"class_path": "my_scored.Net", "init_args": model or {}},
        "data": {"class_path": "my_scored.Data", "init_args": data or {}},
        "trainer": {**defaults, **trainer},
        "run": {"report": False},
    }
    workspace.write("job.yaml", config)


def own(**arguments: Any) -> dict[str, Any]:
    return {"class_path": "ModelCheckpoint", "init_args": arguments}


NEWEST = own(filename="all-{epoch}", save_top_k=-1, every_n_epochs=1)
TOP = own(filename="top-{epoch}", monitor="val/loss")


@pytest.mark.parametrize(
    ("settings", "value", "step", "name"),
    [
        ({"max_epochs": 2}, 2.5, 10, "best.ckpt"),
        ({"max_epochs": 2, "val_check_interval": 4}, 0.5, 14, "best.ckpt"),
        ({"max_epochs": 2, "val_check_interval": 0.2}, 0.5, 14, "best.ckpt"),
        (
            {
                "max_steps": 20,
                "val_check_interval": 5,
                "check_val_every_n_epoch": None,
                "data": {"batches": 7},
            },
            2.5,
            10,
            "best.ckpt",
        ),
        (
            {"max_steps": 20, "val_check_interval": 2, "data": {"stream": "endless"}},
            0.5,
            14,
            "best.ckpt",
        ),
        (
            {"max_epochs": 2, "val_check_interval": 2, "callbacks": [TOP]},
            0.5,
            14,
            "top-epoch=1.ckpt",
        ),
        (
            {"max_epochs": 4, "callbacks": [NEWEST, TOP], "data": {"batches": 5}},
            2.5,
            10,
            "top-epoch=1.ckpt",
        ),
        ({"max_epochs": 2, "val_check_interval": 7, "data": {"loaders": 2}}, 4.0, 7, "best.ckpt"),
    ],
    ids=[
        "epochs",
        "steps",
        "fraction",
        "across epochs",
        "endless",
        "own callback",
        "two callbacks",
        "two loaders",
    ],
)
def test_what_is_printed_for_the_best_is_what_its_weights_give(
    settings: dict[str, Any], value: float, step: int, name: str, workspace: Workspace
) -> None:
    write(workspace, **settings)
    fit = workspace.run("fit", "-c", "job.yaml").ok()
    run = workspace.only_run
    best = read_json(run / "summary.json")["best"]
    assert (best["value"], best["step"]) == (value, step)
    monitor = re.escape(best["monitor"])
    assert re.search(
        rf"^best +\S+/{re.escape(name)}  \({monitor} {value:g} after ", fit.out, re.MULTILINE
    )
    assert re.search(
        rf"\b{monitor} {value:g}\b", workspace.run("validate", "--run", "latest").ok().out
    )
    assert re.search(rf"test/loss {value:g}\b", workspace.run("test", "--run", "latest").ok().out)


@pytest.mark.parametrize(
    "callbacks", [[], [own(every_n_train_steps=2, save_top_k=-1)]], ids=["lightkit's", "own"]
)
def test_an_epoch_whose_validation_was_cut_off_is_validated_after_the_resume(
    callbacks: list[Any], workspace: Workspace
) -> None:
    write(workspace, max_epochs=3, num_sanity_val_steps=0, callbacks=callbacks, data={"batches": 4})
    assert workspace.run("fit", "-c", "job.yaml", environ={"KILL_AT": "8"}).code == -9
    workspace.run("fit", "-c", "job.yaml").ok()
    rows = [
        (row["epoch"], row["step"], float(row["val/loss"]))
        for row in read_metrics(workspace.only_run)
    ]
    assert rows == [("0", "4", 1.0), ("1", "8", 3.5), ("2", "12", 9.0)]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"model": {"name": "val/other"}},
            "neither val/loss nor val_loss is logged, but val/other",
        ),
        ({"limit_val_batches": 0}, "nothing is validated"),
    ],
    ids=["another name", "no validation"],
)
def test_a_best_that_is_the_newest_is_said_first_and_last_with_the_reason(
    settings: dict[str, Any], says: str, workspace: Workspace
) -> None:
    write(workspace, max_epochs=1, **settings)
    out = workspace.run("fit", "-c", "job.yaml").ok().out
    assert f"best  the newest weights: {says}" in out
    assert f"best.ckpt  (the newest: {says})" in out
    assert read_json(workspace.only_run / "summary.json")["notes"] == [
        f"best.ckpt is the newest: {says}"
    ]


def test_early_stopping_is_a_line_and_a_reason_and_does_not_make_a_job_train_again(
    workspace: Workspace,
) -> None:
    stopping = {
        "class_path": "EarlyStopping",
        "init_args": {"monitor": "val/loss", "mode": "max", "patience": 2},
    }
    write(workspace, max_epochs=9, callbacks=[stopping], data={"batches": 3})
    words = ("fit", "-c", "job.yaml", "--if-changed")
    out = workspace.run(*words).ok().out
    reason = read_json(workspace.only_run / "summary.json")["stopped_early"]
    assert re.fullmatch(r"stopped early after epoch \d: val/loss has not risen for 2", reason)
    assert f"note  {reason}" in out
    again = workspace.run(*words)
    assert "cut short" not in again.out + again.err
    assert "has not ended well" not in again.out + again.err


def test_data_that_end_before_their_length_are_a_warning_with_both_numbers(
    workspace: Workspace,
) -> None:
    write(workspace, max_epochs=2, data={"stream": "short"})
    result = workspace.run("fit", "-c", "job.yaml").ok()
    text = "the training data announce 6 batches and gave 5 in epoch 0"
    assert result.err.count(f"warning: {text}") == 1
    assert f"note  {text}" in result.out
    assert read_json(workspace.only_run / "summary.json")["notes"][0].startswith(text)
