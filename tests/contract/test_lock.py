"""A job is run by one process at a time."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contract.examples import MY_PROJECT, SMALL
from tests.contract.fault_examples import HOLD, kill_once_saved, release, start_held
from tests.contract.workspace import (
    ForkServer,
    Process,
    Result,
    Workspace,
    read_events,
    read_json,
    read_metrics,
    wait_until,
)

FIT = ("fit", "-c", "small.yaml", HOLD)


@dataclass(frozen=True)
class Crowd:
    """Four fits of a job that began at once, another that waited for the job, one of another job.

    Args:
        workspace: Where they ran.
        winner: The one of the four that trained.
        refused: The other three.
        waited: The one that waited until the first had ended.
        gave_up: One that waited for a moment only.
        other: The fit of the other job, which ran while the first trained.
    """

    workspace: Workspace
    winner: Process
    refused: list[Result]
    waited: Result
    gave_up: Result
    other: Result


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> Iterator[Crowd]:
    workspace = Workspace(tmp_path_factory.mktemp("crowd") / "work", fork_server)
    workspace.write("my_project.py", MY_PROJECT)
    workspace.write("small.yaml", SMALL)
    (workspace.folder / "hold").write_text("3", encoding="utf-8")
    four = [workspace.start(*FIT) for _ in range(4)]
    wait_until(lambda: sum(process.poll() is not None for process in four) == 3)
    (winner,) = (process for process in four if process.poll() is None)
    winner.wait_for((workspace.folder / "held").exists)
    gave_up = workspace.run(*FIT, "--run.wait_s=0.3")
    other = workspace.run("fit", "-c", "small.yaml", "--run.name=other")
    waiting = workspace.start(*FIT, "--run.wait_s=600")
    waiting.wait_for(lambda: "waits" in waiting.err)
    assert winner.poll() is None
    release(workspace)
    winner.wait()
    yield Crowd(
        workspace,
        winner,
        [process.result() for process in four if process is not winner],
        waiting.result(),
        gave_up,
        other,
    )
    workspace.close()


def job_runs(workspace: Workspace) -> list[Path]:
    return [run for run in workspace.runs if run.parent.name == "small"]


def test_of_four_that_start_at_once_one_trains_and_three_end_with_75(crowd: Crowd) -> None:
    assert crowd.winner.code == 0
    assert [(result.code, result.out) for result in crowd.refused] == [(75, "")] * 3


def test_a_second_start_says_who_runs_the_job_and_what_to_do(crowd: Crowd) -> None:
    run = job_runs(crowd.workspace)[0]
    for result in crowd.refused:
        (line,) = result.err.splitlines()
        who = (
            rf"'small' .*process {crowd.winner.pid} on {re.escape(socket.gethostname())} since"
            r" 20\d\d-\S+ \S+ UTC"
        )
        assert re.search(who, line)
        assert re.search(r"--run\.wait_s=\d+.*--run\.name.*runs/small/lock\.json", line)
    assert re.search(rf"in \S*runs/small/{run.name}\b", crowd.gave_up.err)


def test_wait_s_says_for_whom_it_waits_and_begins_when_that_has_ended(crowd: Crowd) -> None:
    waited = crowd.waited.ok()
    assert len(re.findall(rf"waits up to 600 s: .*process {crowd.winner.pid} on", waited.err)) == 1
    assert len(job_runs(crowd.workspace)) == 2, (
        "that of the one that trained, and that of the one that waited"
    )


def test_wait_s_that_is_over_ends_with_75(crowd: Crowd) -> None:
    assert crowd.gave_up.code == 75
    assert re.search(r"Waited 0\.3 s", crowd.gave_up.err)


def test_another_name_is_another_job(crowd: Crowd) -> None:
    assert crowd.other.code == 0


def test_records_of_a_job_that_many_started_are_whole_and_its_lock_is_gone(crowd: Crowd) -> None:
    for run in job_runs(crowd.workspace):
        kinds = [event["event"] for event in read_events(run)]
        assert [kind for kind in kinds if kind in ("start", "epoch", "end")] == [
            "start",
            "epoch",
            "epoch",
            "end",
        ]
        assert [row["epoch"] for row in read_metrics(run)] == ["0", "1"]
        assert read_json(run / "summary.json")["status"] == "done"
    assert not list((crowd.workspace.folder / "runs" / "small").glob("*lock*"))
    assert not list((crowd.workspace.folder / "runs" / "small").glob(".*"))


def test_the_job_of_a_dead_process_on_this_host_is_taken_over_at_once(workspace: Workspace) -> None:
    kill_once_saved(workspace, "-c", "small.yaml", step=8, saved=6)
    assert (workspace.folder / "runs" / "small" / "lock.json").exists()
    workspace.run(*FIT).ok()
    assert read_events(workspace.only_run, "resume")
    assert not (workspace.folder / "runs" / "small" / "lock.json").exists()


def test_a_holder_on_another_host_is_believed_until_it_is_silent_for_stale_s(
    workspace: Workspace,
) -> None:
    kill_once_saved(workspace, "-c", "small.yaml", step=8, saved=6)
    lock = workspace.folder / "runs" / "small" / "lock.json"
    move_to_another_host(lock)
    refused = workspace.run(*FIT)
    assert refused.code == 75
    assert re.search(r"on other-host since .*dead after 300 s \(run\.stale_s\)", refused.err)
    long_ago = lock.stat().st_mtime - 100
    os.utime(lock, (long_ago, long_ago))
    workspace.run(*FIT, "--run.stale_s=60").ok()
    assert read_events(workspace.only_run, "resume")
    assert not lock.exists()


def move_to_another_host(lock: Path) -> None:
    """Let a lock say that its holder is on another host."""
    content = lock.read_text(encoding="utf-8")
    assert content.count(socket.gethostname()) >= 1
    lock.write_text(content.replace(socket.gethostname(), "other-host"), encoding="utf-8")


def test_a_lock_that_somebody_deletes_under_a_living_process_comes_back(
    workspace: Workspace,
) -> None:
    process = start_held(workspace, "-c", "small.yaml", "--run.stale_s=0.5", step=3)
    lock = workspace.folder / "runs" / "small" / "lock.json"
    content = lock.read_text(encoding="utf-8")
    lock.unlink()
    process.wait_for(lock.exists)
    process.wait_for(lambda: lock.read_text(encoding="utf-8") == content)
    release(workspace)
    assert process.wait() == 0, process.err
    assert not lock.exists()


def test_a_process_whose_job_another_one_has_taken_over_ends_with_75(workspace: Workspace) -> None:
    kill_once_saved(workspace, "-c", "small.yaml", step=8, saved=6)
    lock = workspace.folder / "runs" / "small" / "lock.json"
    move_to_another_host(lock)
    lock.rename(workspace.folder / "another.json")
    process = start_held(workspace, "-c", "small.yaml", "--run.stale_s=0.5", step=8)
    process.signal(signal.SIGSTOP)  # as a machine that is suspended
    (workspace.folder / "another.json").replace(lock)
    process.signal(signal.SIGCONT)
    process.wait()
    assert process.code == 75
    assert re.search(r"other-host", process.err)
    assert lock.exists(), "it is the other one's"


@pytest.mark.parametrize("word", ["--run.wait_s=-1", "--run.stale_s=0", "--run.wait_s=.nan"])
def test_a_time_to_wait_that_is_none_is_an_error(word: str, workspace: Workspace) -> None:
    result = workspace.run("fit", "-c", "small.yaml", word)
    assert result.code == 2
    assert re.search(
        r"run\.(wait_s|stale_s): expected (a number|0 or more|more than 0)", result.err
    )
