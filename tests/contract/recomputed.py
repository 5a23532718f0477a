"""Five jobs whose numbers are computed once more: what they train on, and how they are made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from tests.contract.rank_jobs import run_joined
from tests.contract.workspace import Workspace

CLASSES = ("blues", "greens", "reds")
COUNTS = {"train": (22, 20, 14), "val": (9, 7, 5), "test": (10, 8, 5)}
"""Pictures of each class in a split."""
NUM_ROWS = {"train": 40, "val": 13, "test": 14}
"""Rows of the table in a split."""

SOURCE = '''\
"""A callback that keeps what a training step is given, and a model and data of a user."""

import copy

import torch
from pytorch_lightning import Callback, LightningDataModule, LightningModule
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Trace(Callback):
    """Writes for each rank the weights before each training step with its batch, and those of each
    validation.

    Args:
        name: Of the files.
    """

    def __init__(self, name: str):
        self.name, self.steps, self.validations = name, [], []

    def on_train_batch_start(self, trainer, module, batch, index):
        rates = [
            group["lr"] for optimizer in trainer.optimizers for group in optimizer.param_groups
        ]
        weights = copy.deepcopy(dict(module.state_dict()))
        batch = [each.clone() for each in batch]
        self.steps.append(
            {"epoch": trainer.current_epoch, "weights": weights, "batch": batch, "rates": rates}
        )

    def on_validation_end(self, trainer, module):
        if not trainer.sanity_checking:
            weights = copy.deepcopy(dict(module.state_dict()))
            self.validations.append({"step": trainer.global_step, "weights": weights})

    def on_train_end(self, trainer, module):
        kept = {"steps": self.steps, "validations": self.validations}
        torch.save(kept, f"{self.name}-{trainer.global_rank}.pt")


class Sides(LightningModule):
    """Tells on which side of a line a point is; its two layers learn at different rates."""

    def __init__(self):
        super().__init__()
        self.hidden, self.head = torch.nn.Linear(2, 5), torch.nn.Linear(5, 2)

    def forward(self, x):
        return self.head(self.hidden(x).tanh())

    def _score(self, split, batch):
        logits = self(batch[0])
        loss = functional.cross_entropy(logits, batch[1])
        self.log(f"{split}/loss", loss, on_step=False, on_epoch=True)
        self.log(
            f"{split}/accuracy",
            (logits.argmax(1) == batch[1]).float().mean(),
            on_step=False,
            on_epoch=True,
        )
        return loss, logits

    def training_step(self, batch, index):
        return self._score("train", batch)[0]

    def validation_step(self, batch, index):
        return {"logits": self._score("val", batch)[1], "target": batch[1]}

    def test_step(self, batch, index):
        return {"logits": self._score("test", batch)[1], "target": batch[1]}

    def configure_optimizers(self):
        groups = [
            {"params": self.hidden.parameters()},
            {"params": self.head.parameters(), "lr": 0.05},
        ]
        optimizer = torch.optim.SGD(groups, lr=0.2, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]


def points(split):
    """Return the points of a split and their sides."""
    number = ("train", "val", "test").index(split)
    x = torch.randn((50, 19, 23)[number], 2, generator=torch.Generator().manual_seed(number))
    noise = torch.randn(len(x), generator=torch.Generator().manual_seed(9))
    return x, (x[:, 0] + x[:, 1] + 0.8 * noise > 0.3).long()


class Plane(LightningDataModule):
    """Points on two sides of a line, of which some are on the wrong one."""

    class_names = ["below", "above"]

    def train_dataloader(self):
        return DataLoader(TensorDataset(*points("train")), batch_size=8, shuffle=True)

    def val_dataloader(self):
        return DataLoader(TensorDataset(*points("val")), batch_size=8)

    def test_dataloader(self):
        return DataLoader(TensorDataset(*points("test")), batch_size=8)
'''

_PICTURES: dict[str, Any] = {
    "model": {
        "class_path": "ImageClassifier",
        "init_args": {"learning_rate": 0.01, "label_smoothing": 0.1},
    },
    "data": {
        "class_path": "ImageFolder",
        "init_args": {"root": "pictures", "image_size": 42, "batch_size": 8, "num_workers": 0},
    },
}
JOBS: dict[str, dict[str, Any]] = {
    "label": _PICTURES,
    "regression": {
        "model": {"class_path": "Regressor", "init_args": {"hidden": 4}},
        "data": {
            "class_path": "Temperatures",
            "init_args": {"num_samples": 100, "batch_size": 16, "noise": 15.0},
        },
    },
    "table": {
        "model": {"class_path": "Regressor", "init_args": {"num_inputs": 2, "hidden": 6}},
        "data": {
            "class_path": "Table",
            "init_args": {
                "path": "table",
                "features": ["height", "width"],
                "label": "price",
                "weight": "weight",
                "batch_size": 6,
                "num_workers": 0,
            },
        },
        "optimizer": {"class_path": "SGD", "init_args": {"lr": 0.05}},
        "lr_scheduler": {"class_path": "StepLR", "init_args": {"step_size": 1, "gamma": 0.3}},
    },
    "ranks": {**_PICTURES, "accelerator": {"num_processes": 2, "strategy": "ddp"}},
    "own": {"model": {"class_path": "sides.Sides"}, "data": {"class_path": "sides.Plane"}},
}
"""Configs by name, without what all have."""

GATES: dict[str, list[str]] = {
    "label": [
        *(
            "--gate.metric=test/accuracy",
            "--gate.min=0.2",
            "--gate.max_drop=0.9",
            "--gate.margin=0.9",
        ),
        *("--gate.confidence=0.9", "--gate.slices={blues: 0.1, reds: 0.05}"),
    ],
    "regression": [
        "--gate.metric=test/mae",
        "--gate.max=500",
        "--gate.margin=300",
        "--gate.confidence=0.8",
    ],
    "table": ["--gate.metric=test/loss", "--gate.max=0.01", "--gate.baseline=null"],
    "ranks": [
        "--gate.metric=val/f1",
        "--gate.min=0.05",
        "--gate.baseline=null",
        "--gate.slices={greens: 0.1}",
    ],
    "own": [
        "--gate.metric=val/accuracy",
        "--gate.min=0.1",
        "--gate.baseline=null",
        "--gate.slices={above: 0.05}",
    ],
}
"""Conditions of the gate; the first two jobs have an earlier run to compare with."""
AGAINST_EARLIER = ("label", "regression")


def write_jobs(workspace: Workspace) -> None:
    """Write the configs, the pictures and the table."""
    workspace.write("sides.py", SOURCE)
    for name, job in JOBS.items():
        trainer: dict[str, Any] = {"max_epochs": 2, "log_every_n_steps": 1}
        if name == "own":
            trainer["accumulate_grad_batches"] = 2
        if name != "ranks":
            trainer |= {"accelerator": "cpu", "devices": 1}
        trace = {"class_path": "sides.Trace", "init_args": {"name": name}}
        loggers: Mapping[str, Any] = {
            "tensorboard": {},
            "csv": {},
            "mlflow": {"init_args": {"log_model": False}},
        }
        common = {
            "seed_everything": 7,
            "trainer": trainer,
            "logger": loggers,
            "callbacks": {"trace": trace},
        }
        workspace.write(f"{name}.yaml", {**common, **job, "run": {"report": False, "name": name}})
    _write_pictures(workspace.folder / "pictures")
    _write_table(workspace.folder / "table" / "part.parquet")


def _write_pictures(root: Path) -> None:
    """Write noise with a hint of the color of its class.

    In the size of which validation crops 42 x 42 pixels.
    """
    random = np.random.default_rng(11)
    for split, counts in COUNTS.items():
        for channel, (name, count) in enumerate(zip(CLASSES, counts, strict=True)):
            for number in range(count):
                pixels = random.integers(0, 200, (48, 48, 3), dtype=np.uint8)
                pixels[..., 2 - channel] += np.uint8(random.integers(0, 14))
                path = root / split / name / f"{number:02}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(path)


def read_table() -> dict[str, Any]:
    """Return the columns of the table; a fifth of the rows weighs nothing."""
    random = np.random.default_rng(12)
    splits = [split for split, count in NUM_ROWS.items() for _ in range(count)]
    height, width = random.uniform(1, 3, len(splits)), random.uniform(10, 30, len(splits))
    return {
        "height": height,
        "width": width,
        "price": 40 * height + 3 * width + random.normal(0, 20, len(splits)),
        "weight": random.choice([0.0, 0.5, 1.0, 2.0, 20.0], len(splits)),
        "split": splits,
    }


def _write_table(path: Path) -> None:
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table(read_table()), path, row_group_size=16)


def make_jobs(workspace: Workspace) -> None:
    """Train, test and judge all jobs, and write their reports.

    Two have an earlier run to be compared with.
    """
    write_jobs(workspace)
    for name in JOBS:
        baseline = []
        if name in AGAINST_EARLIER:
            fit_earlier(workspace, name)
            (earlier,) = workspace.folder.glob(f"runs/{name}/2*")
            baseline = [f"--baseline={name}/{earlier.name}"]
        run_job(workspace, name, "fit", "-c", f"{name}.yaml")
        run = max(workspace.folder.glob(f"runs/{name}/2*"))
        run_job(workspace, name, "test", "--run", str(run))
        judged = workspace.run("gate", str(run), *baseline, *GATES[name], "--run.report=true")
        assert judged.code == (4 if name == "table" else 0), judged.err
        workspace.run("report", str(run)).ok()


def run_job(workspace: Workspace, name: str, *words: str) -> None:
    """Run a command of a job, in one process or, for `ranks`, on two ranks."""
    if name == "ranks":
        run_joined(workspace, *words)
    else:
        workspace.run(*words, timeout_s=280).ok()


def fit_earlier(workspace: Workspace, name: str) -> None:
    """Train a worse model of a job, without loggers."""
    words = (
        "--seed_everything=8",
        "--trainer.max_epochs=1",
        "--logger=null",
        "--trainer.logger=false",
    )
    workspace.run("fit", "-c", f"{name}.yaml", *words, "--callbacks.trace.name=earlier").ok()
