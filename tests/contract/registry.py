"""Models of planted accuracy, and what MLflow's registry holds after a command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.contract.workspace import Workspace

SKILLED = '''\
"""Models that are right on the samples below a number, and data of 100 samples of three classes."""

import os
import signal
from pathlib import Path

import torch
from pytorch_lightning import LightningDataModule, LightningModule
from torch.utils.data import DataLoader, TensorDataset


class Skilled(LightningModule):
    """Right on samples numbered below its skill.

    Args:
        skill: That number.
        classes: Its classes in its own order.
        returns_outputs: Whether its test gives the prediction for each sample.
    """

    def __init__(
        self, skill: int = 90, classes: list[str] | None = None, returns_outputs: bool = True
    ):
        super().__init__()
        self.returns_outputs = returns_outputs
        self.skill = torch.nn.Parameter(torch.tensor(float(skill)))
        self.class_names = classes

    def on_save_checkpoint(self, checkpoint):
        checkpoint["class_names"] = self.class_names or list(self.trainer.datamodule.class_names)

    def forward(self, x):
        names = self.class_names or ["reds", "blues", "greens"]
        order = torch.tensor(
            [names.index(name) if name in names else 0 for name in ("reds", "blues", "greens")]
        )
        wrong = (x[:, 0] >= self.skill).long()
        answer = order[(x[:, 1].long() + wrong) % 3]
        return torch.nn.functional.one_hot(answer, len(names)).float()

    def training_step(self, batch, index):
        return 0 * self.skill

    def validation_step(self, batch, index):
        self._log("val", batch)

    def test_step(self, batch, index):
        self._log("test", batch)
        return (
            {"probabilities": self(batch[0]), "target": batch[1]} if self.returns_outputs else None
        )

    def _log(self, split, batch):
        right = (self(batch[0]).argmax(1) == batch[1]).float().mean()
        self.log(f"{split}/accuracy", right, batch_size=len(batch[0]))
        self.log(f"{split}/error", 1 - right, batch_size=len(batch[0]))
        self.log(f"{split}/odd", float("nan"), batch_size=len(batch[0]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


class Numbered(LightningDataModule):
    """Samples (number, class); every sixth of the test split is green.

    Args:
        count: Number of samples.
        drop_last: Whether the test loader would leave samples out.
        note: A file that is no data; with it the inputs of a training are known.
    """

    class_names = ["reds", "blues", "greens"]

    def __init__(self, count: int = 100, drop_last: bool = False, note: str = ""):
        super().__init__()
        self.count, self.drop_last = count, drop_last

    def _loader(self, shuffle=False, drop_last=False):
        number = torch.arange(float(self.count))
        labels = torch.tensor([0, 1, 0, 1, 0, 2]).repeat(self.count)[: self.count]
        dataset = TensorDataset(torch.stack([number, labels], 1), labels)
        return DataLoader(dataset, batch_size=16, shuffle=shuffle, drop_last=drop_last)

    def train_dataloader(self):
        return self._loader()

    val_dataloader = train_dataloader

    def test_dataloader(self):
        return self._loader(shuffle=True, drop_last=self.drop_last)


if moment := os.environ.get("KILL_AROUND_ALIAS"):  # as a machine that loses power in that moment
    import mlflow

    set_alias = mlflow.MlflowClient.set_registered_model_alias

    def set_alias_and_die(self, name, alias, version):
        if alias == "champion" and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        set_alias(self, name, alias, version)
        if alias == "champion":
            os.kill(os.getpid(), signal.SIGKILL)

    mlflow.MlflowClient.set_registered_model_alias = set_alias_and_die
'''

SKILLED_JOB: dict[str, Any] = {
    "seed_everything": 7,
    "model": {"class_path": "my_skilled.Skilled"},
    "data": {"class_path": "my_skilled.Numbered"},
    "trainer": {
        "accelerator": "cpu",
        "max_epochs": 1,
        "logger": False,
        "enable_progress_bar": False,
    },
    "run": {"name": "net", "report": False},
    "gate": {"metric": "test/accuracy", "min": 0.5, "max_drop": 0.02, "slices": {"greens": 0.4}},
}
"""A model that is right on so many of 100 samples as its `skill` says; the job is `net`."""

_READ_REGISTRY = """\
import json
import sys

from mlflow import MlflowClient


def artifacts(client, run_id, path=None):
    for entry in client.list_artifacts(run_id, path):
        yield from artifacts(client, run_id, entry.path) if entry.is_dir else [entry.path]


client = MlflowClient(sys.argv[1])
found = {}
for model in client.search_registered_models():
    versions = {}
    for version in client.search_model_versions(f"name='{model.name}'"):
        run = client.get_run(version.run_id)
        versions[str(version.version)] = {
            "tags": version.tags,
            "description": version.description,
            "created": version.creation_timestamp,
            "run_id": version.run_id,
            "run_name": run.info.run_name,
            "run_status": run.info.status,
            "run_ended": run.info.end_time,
            "run_metrics": run.data.metrics,
            "artifacts": sorted(artifacts(client, version.run_id)),
        }
    found[model.name] = {
        "aliases": {name: str(number) for name, number in model.aliases.items()},
        "versions": versions,
    }
print(json.dumps(found))
"""


def write_skilled(workspace: Workspace) -> None:
    """Write `my_skilled.py` and `net.yaml`."""
    workspace.write("my_skilled.py", SKILLED)
    workspace.write("net.yaml", SKILLED_JOB)


def fit_skilled(workspace: Workspace, skill: int, *words: str) -> Path:
    """Train a model that is right on so many of 100 samples, and return its run's folder."""
    return workspace.fit("-c", "net.yaml", f"--model.init_args.skill={skill}", "--quiet", *words)


def tracking_uri(workspace: Workspace) -> str:
    """Return the address of the database in the run root."""
    return f"sqlite:///{workspace.folder}/runs/mlflow.db"


def read_registry(workspace: Workspace, uri: str | None = None) -> dict[str, Any]:
    """Read models, versions, aliases and runs through MLflow's client, in a process of its own."""
    workspace.write("read_registry.py", _READ_REGISTRY)
    result = workspace.run(uri or tracking_uri(workspace), script="read_registry.py").ok()
    found: dict[str, Any] = json.loads(result.out.splitlines()[-1])
    return found
