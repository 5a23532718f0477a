"""A job for two ranks whose numbers are those of one process with twice the batch.

Also the ways to start its ranks.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import psutil
import pytest
import torch

from tests.contract.workspace import Result, Workspace, load_checkpoint, read_metrics
from tests.ports import free_port

MY_RANKS = '''\
"""Callbacks of a user who looks at ranks."""

import os
import sys
from pathlib import Path

import torch
from pytorch_lightning import Callback


class WriteThreads(Callback):
    """Writes the number of threads of each rank to a file `threads-RANK`."""

    def on_fit_start(self, trainer, module):
        Path(f"threads-{trainer.global_rank}").write_text(str(torch.get_num_threads()))


class Speak(Callback):
    """Prints a line from each rank."""

    def on_fit_start(self, trainer, module):
        print("hello from rank", trainer.global_rank, file=sys.stderr)
'''

JOB: dict[str, Any] = {
    "seed_everything": 7,
    "model": {"class_path": "Regressor", "init_args": {"hidden": 4}},
    "data": {"class_path": "Temperatures", "init_args": {"num_samples": 44, "batch_size": 4}},
    "optimizer": {"class_path": "SGD", "init_args": {"lr": 0.05, "momentum": 0.9}},
    "callbacks": {"checkpoint": {"init_args": {"save_last_every_n_steps": 1}}},
    "trainer": {"max_epochs": 2, "log_every_n_steps": 1, "logger": False},
    "run": {"report": False},
}
"""Two epochs of six steps on two ranks; they validate 11 samples, which two ranks cannot share
equally."""

ALONE = ("accelerator=cpu", "data.init_args.batch_size=8")
"""Makes of `job.yaml` the training of one process with twice the batch."""

ENGINES: dict[str, dict[str, Any]] = {
    "ddp": {"accelerator": {"num_processes": 2, "strategy": "ddp"}},
    "torchrun": {
        "accelerator": {"strategy": "ddp", "gpus": 0},
        "launch": {"engine": "torchrun", "processes": 2},
    },
    "horovod": {"accelerator": {"strategy": "horovod", "gpus": 0}, "launch": {"processes": 2}},
    "spark": {
        "accelerator": {"strategy": "ddp", "gpus": 0},
        "launch": {"engine": "spark", "processes": 2, "master": "local[2]"},
    },
    "spark cluster": {
        "accelerator": {"strategy": "ddp", "gpus": 0},
        "launch": {"engine": "spark", "processes": 2, "master": "local-cluster[2,1,1024]"},
    },
    "spark driver": {
        "accelerator": {"strategy": "ddp", "gpus": 0},
        "launch": {"engine": "spark", "processes": -2, "master": "local[2]"},
    },
    "horovod on spark": {
        "accelerator": {"strategy": "horovod", "gpus": 0},
        "launch": {"engine": "spark", "processes": 2, "master": "local[2]"},
    },
    "ray": {
        "accelerator": {"strategy": "ddp", "gpus": 0},
        "launch": {"engine": "ray", "processes": 2},
    },
}
NEEDS = {
    "horovod": pytest.mark.skipif(
        find_spec("horovod") is None, reason="Horovod is not installed: make horovod"
    ),
    "spark": pytest.mark.skipif(
        find_spec("pyspark") is None or which("java") is None,
        reason="needs lightkit-train[spark] and Java 17",
    ),
    "ray": pytest.mark.skipif(find_spec("ray") is None, reason="needs lightkit-train[ray]"),
}


def engine(name: str, *values: Any, is_long: bool = False) -> Any:
    """Make a parameter of an engine and values, with the marks of what the engine needs."""
    marks = [mark for need, mark in NEEDS.items() if need in name] + (
        [pytest.mark.long] if is_long else []
    )
    label = "-".join([name.replace(" ", "_"), *map(str, values)])
    return pytest.param(name, *values, id=label, marks=marks)


def write_job(workspace: Workspace, name: str, **changes: Mapping[str, Any]) -> None:
    """Write `job.yaml` for an engine, and `my_ranks.py`.

    Changes are sections whose keys are merged into those of the job.
    """
    sections = {**JOB, **ENGINES[name]}
    for key, section in changes.items():
        sections[key] = {**sections.get(key, {}), **section}
    workspace.write("my_ranks.py", MY_RANKS)
    workspace.write("job.yaml", sections)


def failing(kind: str, step: int = 3) -> dict[str, Any]:
    """Make the callbacks of a job whose rank 1 fails once."""
    fault = {
        "class_path": "my_project.FailOnRank",
        "init_args": {"kind": kind, "rank": 1, "step": step},
    }
    return {**JOB["callbacks"], "fault": fault}


def run_joined(
    workspace: Workspace,
    *words: str,
    folder: Path | None = None,
    environ: Mapping[str, str] | None = None,
    code: int = 0,
) -> list[Result]:
    """Run a command on two ranks that find each other by torch's variables.

    A launcher of the user's own sets them so.

    Both are forks of a process with the heavy imports, which a launcher of lightkit's would import
    for each of them.

    Args:
        workspace: Where they run.
        words: The command.
        folder: Their working directory, if not the workspace's.
        environ: More variables of both.
        code: The exit code of both.
    """
    torchs = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    ranks = [
        workspace.start(
            *words,
            environ={**(environ or {}), **torchs, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            folder=folder,
        )
        for rank in range(2)
    ]
    results = [rank.result() for rank in ranks]
    assert [result.code for result in results] == [code] * 2, [result.err for result in results]
    assert results[1].out == "", "the first rank alone has the screen"
    return results


def train_alone(workspace: Workspace) -> None:
    """Train the job in one process with twice the batch."""
    workspace.write("job.yaml", JOB)
    workspace.run("fit", "-c", "job.yaml", *ALONE).ok()


def assert_same_weights(run: Path, alone: Path) -> None:
    """Assert that weights agree to 1e-6, and that they have been trained."""
    found, expected = (load_checkpoint(each / "checkpoints" / "last.ckpt") for each in (run, alone))
    assert found["global_step"] == expected["global_step"] == 12
    for name, weight in expected["state_dict"].items():
        torch.testing.assert_close(
            found["state_dict"][name], weight, atol=1e-6, rtol=1e-6, msg=name
        )


def assert_same_metrics(run: Path, alone: Path) -> None:
    """Assert that metrics.csv agrees to 1e-5."""
    found, expected = read_metrics(run), read_metrics(alone)
    assert [row["epoch"] for row in found] == ["0", "1"]
    for one, other in zip(found, expected, strict=True):
        wanted = {key: float(value) for key, value in other.items() if value}
        assert {key: float(value) for key, value in one.items() if value} == pytest.approx(
            wanted, rel=1e-5
        )


def processes_in(folder: Path) -> list[int]:
    """List living processes that work in a folder or below, whatever their session."""
    found = psutil.process_iter(["cwd", "status"])
    inside = (
        process
        for process in found
        if process.info["cwd"] and Path(process.info["cwd"]).is_relative_to(folder)
    )
    return [process.pid for process in inside if process.info["status"] != psutil.STATUS_ZOMBIE]


def wait_until_nobody_works_in(folder: Path) -> None:
    """Wait until no process is left in a folder; kill those that stay, and fail."""
    deadline = time.monotonic() + 30
    while (left := processes_in(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in left:
        psutil.Process(pid).kill()
    assert left == []
