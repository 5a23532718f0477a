"""Two hosts want the same job.

One is suspended, the other takes the job over, and the first one wakes.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.contract.examples import SMALL
from tests.contract.fault_examples import HOLD, release
from tests.contract.workspace import (
    Process,
    Workspace,
    load_checkpoint,
    read_events,
    read_json,
    read_metrics,
)

ON_HOST = '''\
"""lightkit on a host of another name."""

import os
import socket
import sys

socket.gethostname = lambda: os.environ["NAME_OF_HOST"]

from lightkit.main import main

sys.exit(main())
'''

BATCH, SAVE, VALIDATED, END = (
    "on_train_batch_start",
    "on_save_checkpoint",
    "on_validation_end",
    "on_train_end",
)
FIT = ("fit", "-c", "job.yaml", HOLD)
JOB = {
    **SMALL,
    "trainer": {**SMALL["trainer"], "max_epochs": 3},
    "run": {**SMALL["run"], "name": "job"},
}

CASES = {
    "the other has ended, this one is in a batch": (BATCH, False, False),
    "the other has ended, this one fails": (BATCH, False, True),
    "the other has ended, this one writes a checkpoint": (SAVE, False, False),
    "the other has ended, this one is at its end": (END, False, False),
    "the other trains, this one is in a batch": (BATCH, True, False),
    "the other trains, this one fails": (BATCH, True, True),
    "the other trains, this one writes a checkpoint": (SAVE, True, False),
    "the other trains, this one has validated": (VALIDATED, True, False),
}
cases = pytest.mark.parametrize(("hook", "trains", "fails"), CASES.values(), ids=CASES)


def start(workspace: Workspace, host: str, *words: str) -> Process:
    return workspace.start(*FIT, *words, script="on_host.py", environ={"NAME_OF_HOST": host})


@pytest.fixture
def suspended(workspace: Workspace, request: pytest.FixtureRequest) -> Process:
    """A fit on host A that has stopped itself, in the hook that the test's case names."""
    parameters = request.node.callspec.params
    stop = {"hook": parameters["hook"], "step": 8, "signum": int(signal.SIGSTOP)}
    fail = {"kind": "raise", "rank": 0, "step": 8}
    workspace.write("on_host.py", ON_HOST)
    callbacks = {
        "stop": {"class_path": "my_project.SendSignal", "init_args": stop},
        "fail": {"class_path": "my_project.FailOnRank", "init_args": fail},
    }
    workspace.write("job.yaml", {**JOB, "callbacks": callbacks})
    workspace.write("failed", "")
    process = start(workspace, "host-a", *parameters.get("words", ()))
    process.wait_for(lambda: _is_stopped(process))
    return process


def _is_stopped(process: Process) -> bool:
    stat = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8", errors="replace")
    return stat.rpartition(")")[2].split()[0] == "T"


def read_files(run: Path) -> dict[str, bytes]:
    """Read every file of a run, and which run is the latest."""
    found = {
        str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()
    }
    return {**found, "latest": os.fsencode((run.parent / "latest").readlink())}


def take_over(workspace: Workspace, first: Process, *words: str, trains: bool, fails: bool) -> None:
    """Run the job on host B, wake host A before or after its end: A ends by 75, unchanged."""
    (run,) = workspace.runs
    if trains:
        workspace.write("hold", "14")
    second = start(workspace, "host-b", "--run.wait_s=100", *words)
    if trains:
        second.wait_for((workspace.folder / "held").exists)
    else:
        assert second.wait() == 0, second.err
    files = read_files(run)
    if fails:
        (workspace.folder / "failed").unlink()

    first.signal(signal.SIGCONT)
    assert first.wait(timeout_s=60) == 75, first.err
    assert "this process has lost its job" in first.err
    assert ("host-b" in first.err) == trains
    assert read_files(run) == files

    workspace.write("failed", "")
    if trains:
        release(workspace)
        assert second.wait() == 0, second.err
    assert workspace.runs == [run]
    assert [row["epoch"] for row in read_metrics(run)] == ["0", "1", "2"]
    summary = read_json(run / "summary.json")
    assert (summary["status"], summary["epochs"]) == ("done", 3)
    assert load_checkpoint(run / "checkpoints" / "best.ckpt")["epoch"] == summary["best"]["epoch"]
    events = read_events(run)
    began = max(number for number, event in enumerate(events) if event["event"] == "resume")
    assert {event["token"] for event in events[began:]} == {events[began]["token"]}
    assert not [path for path in run.parent.iterdir() if path.name not in (run.name, "latest")]
    checked = workspace.run("test", "--run", str(run), "--ckpt_path=best")
    assert checked.code == 0, checked.err


def set_lock_back(workspace: Workspace) -> None:
    """Set the time of the lock back.

    As if its owner had been suspended for so long by the clock of the file server.
    """
    long_ago = time.time() - 400
    os.utime(workspace.folder / "runs" / "job" / "lock.json", (long_ago, long_ago))


@cases
def test_who_was_suspended_longer_than_stale_s_ends_with_75_and_changes_nothing(
    hook: str, trains: bool, fails: bool, workspace: Workspace, suspended: Process
) -> None:
    set_lock_back(workspace)
    take_over(workspace, suspended, trains=trains, fails=fails)


@pytest.mark.long
@pytest.mark.parametrize("time_number", range(3))
@cases
def test_who_was_suspended_longer_than_the_default_stale_s_ends_with_75_each_time(
    hook: str, trains: bool, fails: bool, time_number: int, workspace: Workspace, suspended: Process
) -> None:
    set_lock_back(workspace)
    take_over(workspace, suspended, trains=trains, fails=fails)


@pytest.mark.long
@pytest.mark.parametrize("time_number", range(20))
@pytest.mark.parametrize("words", [("--run.stale_s=1",)], ids=["a second"])
@cases
def test_who_was_suspended_longer_than_a_short_stale_s_ends_with_75_each_time(
    hook: str,
    trains: bool,
    fails: bool,
    words: tuple[str],
    time_number: int,
    workspace: Workspace,
    suspended: Process,
) -> None:
    take_over(workspace, suspended, *words, trains=trains, fails=fails)
