"""A checkpoint plugin of the user's writes no secret, and a warning names what it takes away."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.contract.batch import Answer, Command, run_batch
from tests.contract.workspace import ForkServer, Workspace, read_events

SECRET = "magpie-4711"
PARTS = '''
from threading import Thread
import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins import TorchCheckpointIO
from pytorch_lightning.plugins.environments import LightningEnvironment
from torch.utils.data import DataLoader, TensorDataset


class Data(pl.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.randn(16, 3)), batch_size=4)

    val_dataloader = train_dataloader


class Net(pl.LightningModule):
    def __init__(self, api_key: str = ""):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch, index):
        return self.layer(batch[0]).square().mean()

    def validation_step(self, batch, index):
        self.log("val/loss", self.layer(batch[0]).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Own(TorchCheckpointIO):
    pass


class Later(TorchCheckpointIO):
    """Writes in threads of its own."""

    threads = ()

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        self.teardown()
        thread = Thread(target=super().save_checkpoint, args=(checkpoint, path, storage_options))
        self.threads = (thread,)
        thread.start()

    def teardown(self):
        for thread in self.threads:
            thread.join()


class Requeues(LightningEnvironment):
    auto_requeue = True
'''
ASYNC = {"class_path": "pytorch_lightning.plugins.io.AsyncCheckpointIO"}
AROUND = {
    "class_path": ASYNC["class_path"],
    "init_args": {"checkpoint_io": {"class_path": "parts.Own"}},
}
SINGLE = "pytorch_lightning.strategies.SingleDeviceStrategy"
WITHIN = {"class_path": SINGLE, "init_args": {"device": "cpu", "checkpoint_io": ASYNC}}
PLUGINS: dict[str, dict[str, Any]] = {
    "none": {},
    "stock": {"plugins": [{"class_path": "pytorch_lightning.plugins.io.TorchCheckpointIO"}]},
    "async": {"plugins": [ASYNC]},
    "own": {"plugins": [{"class_path": "parts.Own"}]},
    "around": {"plugins": [AROUND]},
    "later": {"plugins": [{"class_path": "parts.Later"}]},
    "within": {"strategy": WITHIN},
    "requeues": {"plugins": [{"class_path": "parts.Requeues"}]},
}
THROUGH_LIGHTKIT = ("none", "stock", "async", "requeues")
"""Those whose checkpoints lightkit's writer puts on the disk. A strategy gives a plugin within it
Lightning's."""
WARNINGS = {
    "none": "",
    "stock": "",
    "async": r"warning: trainer\.plugins: AsyncCheckpointIO hands checkpoints to lightkit's writer",
    "own": (
        r"warning: trainer\.plugins: Own writes the checkpoints in the place of lightkit's writer"
    ),
    "around": (
        r"warning: trainer\.plugins: AsyncCheckpointIO writes the checkpoints in the place of"
        r" lightkit's writer"
    ),
    "later": (
        r"warning: trainer\.plugins: Later writes the checkpoints in the place of lightkit's writer"
    ),
    "within": (
        r"warning: trainer\.strategy\.init_args\.checkpoint_io: AsyncCheckpointIO writes the"
        r" checkpoints in"
    ),
    "requeues": r"warning: trainer\.plugins: Requeues requeues the job by itself",
}


@dataclass(frozen=True)
class Trained:
    """A run with each plugin, a test of its best checkpoint, and what they printed."""

    workspace: Workspace
    answers: dict[str, Answer]

    def checkpoints(self, name: str) -> Path:
        """Folder of the checkpoints of a run."""
        return self.workspace.folder / "runs" / name / "latest" / "checkpoints"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> Iterator[Trained]:
    """Train two epochs with each plugin, and test each of the models; read only."""
    workspace = Workspace(tmp_path_factory.mktemp("plugins") / "work", fork_server)
    workspace.write("parts.py", PARTS)
    commands = {}
    for name, trainer in PLUGINS.items():
        workspace.write(
            f"{name}.yaml",
            {
                "seed_everything": 1,
                "model": {"class_path": "parts.Net",
                          "init_args": {"api_key": "${oc.env:MY_API_KEY}"}},
                "data": {"class_path": "parts.Data"},
                "trainer": {
                    "accelerator": "cpu", "devices": 1, "max_epochs": 2, "logger": False,
                    "enable_progress_bar": False, **trainer,
                },
            },
        )  # fmt: skip
        commands[name] = Command(("fit", "-c", f"{name}.yaml"), environ={"MY_API_KEY": SECRET})
        commands[f"validate {name}"] = Command(
            ("validate", "--run", f"runs/{name}/latest"), environ={"MY_API_KEY": SECRET}
        )
    yield Trained(workspace, run_batch(workspace, commands))
    workspace.close()


@pytest.mark.parametrize("name", PLUGINS)
def test_a_checkpoint_plugin_of_the_users_gets_no_secret(name: str, trained: Trained) -> None:
    trained.answers[name].ok()
    files = [path for path in trained.checkpoints(name).iterdir() if path.suffix == ".ckpt"]
    assert {"best.ckpt", "last.ckpt"} <= {path.name for path in files}
    for path in files:
        content = path.read_bytes()
        assert SECRET.encode() not in content
        assert b"${oc.env:MY_API_KEY}" in content


@pytest.mark.parametrize("name", PLUGINS)
def test_each_checkpoint_has_its_digest_whichever_plugin_writes_it(
    name: str, trained: Trained
) -> None:
    for path in trained.checkpoints(name).glob("*.ckpt"):
        said = Path(f"{path}.sha256").read_text(encoding="utf-8")
        assert said == f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
    assert (trained.checkpoints(name) / "last-1.ckpt").exists() == (name in THROUGH_LIGHTKIT)
    events = read_events(trained.checkpoints(name).parent, "checkpoint")
    assert {event["path"] for event in events} == {"checkpoints/best.ckpt", "checkpoints/last.ckpt"}
    assert max(event["step"] for event in events) == 8


@pytest.mark.parametrize("name", PLUGINS)
def test_a_plugin_that_takes_a_promise_away_is_named_in_a_warning(
    name: str, trained: Trained
) -> None:
    printed = trained.answers[name].err
    assert re.search(WARNINGS[name], printed)
    assert ("trainer.plugins: " in printed or "trainer.strategy" in printed) == bool(WARNINGS[name])


@pytest.mark.parametrize("name", PLUGINS)
def test_a_checkpoint_of_a_plugin_is_read_again(name: str, trained: Trained) -> None:
    trained.answers[f"validate {name}"].ok()
