"""Checkpoints that a strategy writes itself, as a folder of shards.

Without secrets, with digests, and resumed.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.batch import Answer, Command, run_batch
from tests.contract.examples import MY_PROJECT
from tests.contract.rank_jobs import run_joined
from tests.contract.workspace import (
    ForkServer,
    Result,
    Workspace,
    load_checkpoint,
    read_events,
    read_metrics,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SECRET = "magpie-4711"
PARTS = """
import pytorch_lightning as pl
import torch
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset


class Data(pl.LightningDataModule):
    def train_dataloader(self):
        rows = torch.linspace(-1, 1, 48).reshape(16, 3)
        return DataLoader(TensorDataset(rows), batch_size=4)

    val_dataloader = test_dataloader = train_dataloader


class Net(pl.LightningModule):
    def __init__(self, api_key: str = ""):
        super().__init__()
        self.save_hyperparameters()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Linear(8, 1))

    def configure_model(self):
        if self.device_mesh is not None:
            fully_shard(self.layers, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch, index):
        return self.layers(batch[0]).square().mean()

    def validation_step(self, batch, index):
        self.log("val/loss", self.layers(batch[0]).square().mean(), sync_dist=True)

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)
"""
STRATEGY = "pytorch_lightning.strategies.ModelParallelStrategy"
JOB = {
    "seed_everything": 1,
    "model": {"class_path": "parts.Net", "init_args": {"api_key": "${oc.env:MY_API_KEY}"}},
    "data": {"class_path": "parts.Data"},
    "trainer": {
        "accelerator": "cpu",
        "devices": 2,
        "max_epochs": 3,
        "logger": False,
        "enable_progress_bar": False,
        "strategy": {"class_path": STRATEGY},
    },
}
ONE_FILE = {"class_path": STRATEGY, "init_args": {"save_distributed_checkpoint": False}}
WEIGHTS = {
    "class_path": "pytorch_lightning.callbacks.ModelCheckpoint",
    "init_args": {"save_weights_only": True},
}
SENDER = {
    "class_path": "my_project.SendSignal",
    "init_args": {"hook": "on_train_batch_start", "step": 10},
}
JOBS: dict[str, dict[str, Any]] = {
    "whole": JOB,
    "stopped": {**JOB, "callbacks": {"sender": SENDER}},
    "weights": {**JOB, "callbacks": {"weights": WEIGHTS}},
    "file": {**JOB, "trainer": {**JOB["trainer"], "strategy": ONE_FILE}},  # type: ignore[dict-item]
}
ENVIRON = {"MY_API_KEY": SECRET}


def run(workspace: Workspace, **commands: tuple[str, ...]) -> dict[str, Answer]:
    return run_batch(
        workspace, {name: Command(words, environ=ENVIRON) for name, words in commands.items()}
    )


def run_ranks(workspace: Workspace, *words: str, code: int = 0) -> Result:
    """Run a command on two ranks, each a fork; return what the first one wrote."""
    return run_joined(workspace, *words, environ=ENVIRON, code=code)[0]


def checkpoints(workspace: Workspace, name: str) -> Path:
    return workspace.folder / "runs" / name / "latest" / "checkpoints"


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[Workspace]:
    """A run of each job, each on two processes that have half of the weights.

    `printed` has their messages. One command starts both processes of `whole`.
    """
    workspace = Workspace(tmp_path_factory.mktemp("sharded") / "work", fork_server)
    workspace.write("parts.py", PARTS)
    workspace.write("my_project.py", MY_PROJECT)
    for name, job in JOBS.items():
        workspace.write(f"{name}.yaml", job)
    whole = workspace.run("fit", "-c", "whole.yaml", environ=ENVIRON).ok()
    workspace.write("whole.printed", whole.err)
    for name, code in {"stopped": 75, "weights": 0, "file": 0}.items():
        printed = run_ranks(workspace, "fit", "-c", f"{name}.yaml", code=code).err
        workspace.write(f"{name}.printed", printed)
    yield workspace
    workspace.close()


@pytest.mark.parametrize("name", ["whole", "weights", "file"])
def test_a_checkpoint_that_a_strategy_writes_has_no_secret(name: str, trained: Workspace) -> None:
    folder = checkpoints(trained, name).resolve()
    files = [path for path in folder.parent.rglob("*") if path.is_file()]
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    of_parameters = [path for path in files if path.name in ("meta.pt", "best.ckpt")]
    assert of_parameters
    assert all(b"${oc.env:MY_API_KEY}" in path.read_bytes() for path in of_parameters)


@pytest.mark.parametrize(("name", "steps"), [("best.ckpt", [4, 8]), ("last.ckpt", [4, 8, 12])])
def test_each_shard_of_a_checkpoint_has_its_digest(
    name: str, steps: list[int], trained: Workspace
) -> None:
    folder = checkpoints(trained, "whole") / name
    files = sorted(path for path in folder.iterdir() if path.is_file())
    assert {".metadata", "__0_0.distcp", "__1_0.distcp", "meta.pt"} == {path.name for path in files}
    said = Path(f"{folder}.sha256").read_text(encoding="utf-8")
    expected = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}/{path.name}\n" for path in files
    ]
    assert said == "".join(expected)
    events = read_events(checkpoints(trained, "whole").parent, "checkpoint")
    assert [event["step"] for event in events if event["path"] == f"checkpoints/{name}"] == steps


def test_a_strategy_that_takes_a_promise_away_is_named_in_a_warning_once(
    trained: Workspace,
) -> None:
    text = (
        "warning: trainer.strategy: ModelParallelStrategy writes each"
        " checkpoint as a folder of shards"
    )
    printed = {
        name: (trained.folder / f"{name}.printed").read_text(encoding="utf-8") for name in JOBS
    }
    assert {name: said.count(text) for name, said in printed.items()} == {
        "whole": 1, "stopped": 1, "weights": 1, "file": 0,
    }  # fmt: skip
    assert "save_distributed_checkpoint: false" in printed["whole"]
    assert "overwrite" not in printed["whole"]
    assert load_checkpoint(checkpoints(trained, "file") / "last.ckpt")["epoch"] == 2


@pytest.fixture
def stopped(trained: Workspace, workspace: Workspace) -> Workspace:
    """The run that was stopped in its third epoch."""
    shutil.copytree(trained.folder, workspace.folder, symlinks=True, dirs_exist_ok=True)
    return workspace


@pytest.mark.parametrize("damaged", [None, "last.ckpt/__1_0.distcp", "last.ckpt.sha256"])
def test_a_run_is_resumed_from_the_newest_folder_of_shards_that_is_whole(
    damaged: str | None, stopped: Workspace, trained: Workspace
) -> None:
    folder = checkpoints(stopped, "stopped")
    if damaged is not None and damaged.endswith("sha256"):
        # as a kill leaves it that came while the shards were being written
        (folder / damaged).unlink()
    elif damaged is not None:
        content = bytearray((folder / damaged).read_bytes())
        content[-100] ^= 1
        (folder / damaged).write_bytes(content)
    answer = run_ranks(stopped, "fit", "-c", "stopped.yaml")
    assert f"from {'last' if damaged is None else 'best'}.ckpt" in answer.err
    assert ("last.ckpt is not used: " in answer.err) == (damaged is not None)

    rows = [(row["epoch"], row["step"], row["val/loss"]) for row in read_metrics(folder.parent)]
    whole = [
        (row["epoch"], row["step"], row["val/loss"])
        for row in read_metrics(checkpoints(trained, "whole").parent)
    ]
    assert rows == whole


AGAINST_SHARDS = (
    "--gate.metric=val/loss",
    "--gate.max_drop=1",
    "--gate.baseline=runs/whole/latest",
)


def test_the_strategy_that_wrote_a_folder_of_shards_reads_it(
    stopped: Workspace, trained: Workspace
) -> None:
    last = str(checkpoints(trained, "whole") / "last.ckpt")
    run_ranks(stopped, "test", "--run", "runs/whole/latest")
    more = (f"--ckpt_path={last}", "--trainer.max_epochs=4", "--run.name=further")
    run_ranks(stopped, "fit", "-c", "whole.yaml", *more)
    (row,) = read_metrics(checkpoints(stopped, "further").parent)
    assert row["epoch"] == "3"
    answers = run(
        stopped,
        export=("export", "--run", "runs/whole/latest"),
        gate=(
            "gate",
            "runs/whole/latest",
            "--gate.metric=val/loss",
            "--gate.max=100",
            "--gate.baseline=null",
        ),
        baseline=("gate", "runs/file/latest", *AGAINST_SHARDS),
        promote=("promote", "runs/whole/latest", "--force"),
        register=("register", "--run", "runs/whole/latest", "--name", "net"),
        alone=(
            "test",
            "--run",
            "runs/whole/latest",
            "--trainer.strategy=auto",
            "--trainer.devices=1",
        ),
    )
    refused = ("export", "gate", "baseline", "promote", "register", "alone")
    found = {
        name: (answers[name].code, "best.ckpt is a folder of shards" in answers[name].err)
        for name in refused
    }
    assert found == dict.fromkeys(refused, (2, True)), [answers[name].err for name in refused]
    assert "Traceback" not in "".join(answers[name].err for name in refused)
