"""Two ranks that a local Ray runs: one is killed and all go on; Ctrl-C saves."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import (
    LEASHED_PICTURES,
    ended,
    events,
    fit,
    leash,
    rows,
    runs_in,
    started,
    summary,
    wait_for,
    workplace,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed: lightkit[ray]"),
]

JOB: dict[str, Any] = {
    **LEASHED_PICTURES,
    "accelerator": {"strategy": "ddp", "gpus": 0},
    "launch": {"engine": "ray", "processes": 2, "max_failures": 1},
}


def test_a_rank_that_is_killed_costs_the_work_since_the_last_checkpoint(tmp_path: Path) -> None:
    folder = workplace(tmp_path, JOB, pictures=60)
    held = leash(folder, 4)
    with started(folder, "fit", "-c", "job.yaml") as process:
        assert wait_for(lambda: len(events(folder, "checkpoint")) >= 2, process)
        (standing,) = folder.glob("runs/.launch/*/rank-1-0.json")
        os.kill(json.loads(standing.read_text(encoding="utf-8"))["process"]["pid"], signal.SIGKILL)
        held.unlink()
        end = ended(process, 200)
    assert end.code == 0, end.err
    assert len(events(folder, "resume")) == 1
    assert [row["epoch"] for row in rows(folder)] == ["0", "1", "2"]
    assert summary(folder)["status"] == "done"


def test_an_interrupt_saves_and_the_same_command_resumes(tmp_path: Path) -> None:
    folder = workplace(tmp_path, JOB, pictures=60)
    held = leash(folder, 4)
    with started(folder, "fit", "-c", "job.yaml") as process:
        assert wait_for(lambda: len(events(folder, "checkpoint")) >= 2, process)
        began = time.monotonic()
        os.kill(process.pid, signal.SIGINT)
        end = ended(process)
        # Less than ten on an idle machine. On a busy one Ray's own half dozen of processes are slow to end.
        assert time.monotonic() - began < 60
    assert end.code == 75, end.err
    assert summary(folder)["status"] == "preempted"
    held.unlink(missing_ok=True)
    resumed = fit(folder)
    assert resumed.code == 0, resumed.err
    assert "resumes" in resumed.err


def test_a_mistake_in_the_data_is_told_once_and_nothing_is_started_again(tmp_path: Path) -> None:
    folder = workplace(tmp_path, JOB)
    end = fit(folder)
    assert end.code == 3, end.err
    assert "error: data.init_args.root: there is no folder pictures" in end.err
    assert end.err.lower().count("error") == 1
    assert "Traceback" not in end.err
    assert runs_in(folder) == []
