"""Two processes that train together are one run, which is interrupted, killed and resumed like any other."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.commands import (
    PICTURES,
    Ended,
    assert_equal,
    assert_near_rows,
    ended,
    events,
    fit,
    leash,
    only_run,
    processes_of,
    rows,
    started,
    summary,
    wait_for,
    workplace,
)

pytestmark = pytest.mark.slow

JOB: dict[str, Any] = {
    **PICTURES,
    "optimizer": {"class_path": "AdamW", "init_args": {"lr": 0.01}},
    "callbacks": {
        "checkpoint": {"init_args": {"save_last_every_n_steps": 1}},
        "leaving": {"class_path": "mine.Leaving"},
        "leash": {"class_path": "mine.Leash"},
    },
    "logger": {"tensorboard": {}, "mlflow": {}},
    "trainer": {"accelerator": "cpu", "strategy": "ddp", "devices": 2, "max_epochs": 3, "log_every_n_steps": 1},
}


def stopped(folder: Path, number: int, *, after_checkpoints: int) -> tuple[Ended, list[int]]:
    """Start the command, send its first process a signal, and give what it said and which processes it left."""
    before = events(folder, "checkpoint")
    enough = len(before) + after_checkpoints
    held = leash(folder, max((event["step"] for event in before), default=0) + after_checkpoints + 1)
    with started(folder, "fit", "-c", "job.yaml") as process:
        assert wait_for(lambda: len(events(folder, "checkpoint")) >= enough, process)
        assert len(processes_of(process.pid)) == 3  # two ranks, and their supervisor
        os.kill(process.pid, number)
        end, left = ended(process), processes_of(process.pid)
        held.unlink(missing_ok=True)
        return end, left


def has_left_its_group(folder: Path) -> bool:
    """Whether both ranks had left their process group before the interpreter ended.

    Gloo's threads otherwise abort one rank in 30 at its very end, with "terminate called without an active exception".
    """
    return [(folder / f"left-{rank}").read_text() for rank in (0, 1)] == ["True", "True"]


def test_two_processes_are_one_run_that_is_stopped_killed_and_resumed(tmp_path: Path) -> None:
    folder = workplace(tmp_path, JOB, pictures=60)
    preempted, left = stopped(folder, signal.SIGTERM, after_checkpoints=1)
    assert preempted.code == 75, preempted.err
    assert "Traceback" not in preempted.err
    assert left == []
    assert summary(folder)["status"] == "preempted"

    stopped(folder, signal.SIGKILL, after_checkpoints=2)
    done = fit(folder)
    assert done.code == 0, done.err
    assert "on    CPU on 2 devices" in done.out
    assert done.out.count("epoch 3/3") == 1
    assert has_left_its_group(folder)
    run = only_run(folder)
    assert summary(folder)["status"] == "done"
    assert [row["epoch"] for row in rows(folder)] == ["0", "1", "2"]
    assert len(events(folder, "resume")) == 2

    from mlflow.tracking import MlflowClient  # here, because only this test needs mlflow

    client = MlflowClient(f"sqlite:///{folder}/runs/mlflow.db")
    (experiment,) = (found for found in client.search_experiments() if found.name != "Default")
    (recorded,) = client.search_runs([experiment.experiment_id])
    assert recorded.data.metrics["val/loss"] == pytest.approx(float(rows(folder)[-1]["val/loss"]))

    whole = workplace(tmp_path / "whole", {**JOB, "logger": {}, "callbacks": PICTURES["callbacks"]}, pictures=60)
    expected = fit(whole)
    assert expected.code == 0, expected.err
    ends = [torch.load(path / "checkpoints" / "last.ckpt", weights_only=True) for path in (run, only_run(whole))]
    assert_equal(ends[0]["state_dict"], ends[1]["state_dict"], "state_dict")
    assert_near_rows(folder, whole)
