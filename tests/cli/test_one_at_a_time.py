"""Real processes of one job: one trains, the others end, wait, or go on where a dead one has stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import (
    SMALL,
    Ended,
    ended,
    events,
    fit,
    leash,
    only_run,
    runs_in,
    started,
    summary,
    wait_for,
    workplace,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # on a busy machine

WAIT = {"wait": {"class_path": "mine.Pause", "init_args": {"seconds": 0, "until": "go"}}}
JOB: dict[str, Any] = {**SMALL, "callbacks": WAIT}


@dataclass(frozen=True)
class Crowd:
    """Eight that have started at once, and a ninth that waited.

    Args:
        folder: Their working directory.
        pids: Process numbers of the eight.
        ends: How the eight ended.
        ninth: How the ninth did.
    """

    folder: Path
    pids: list[int]
    ends: list[Ended]
    ninth: Ended


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Crowd:
    folder = workplace(tmp_path_factory.mktemp("crowd"), JOB)
    with ExitStack() as stack:
        eight = [stack.enter_context(started(folder, "fit", "-c", "job.yaml")) for _ in range(8)]
        wait_for_seven(eight)
        (trains,) = (process for process in eight if process.poll() is None)
        said = folder / "said"
        with said.open("w") as err:
            ninth = stack.enter_context(
                started(folder, "fit", "-c", "job.yaml", "--run.wait_s=600", stderr=err, stdout=subprocess.DEVNULL)
            )
        assert wait_for(lambda: "waits up to 600 s" in said.read_text(encoding="utf-8"), ninth, timeout_s=600)
        assert trains.poll() is None
        (folder / "go").touch()
        ends = [ended(process, 600) for process in eight]
        code = ninth.wait(timeout=600)
    return Crowd(folder, [process.pid for process in eight], ends, Ended(code, "", said.read_text(encoding="utf-8")))


def wait_for_seven(eight: Sequence[subprocess.Popen[str]]) -> None:
    """Wait until all but one have ended."""
    for process in eight:
        wait_for(lambda: sum(other.poll() is not None for other in eight) == 7, process, timeout_s=600)
    assert sum(process.poll() is None for process in eight) == 1


def test_of_eight_that_start_at_once_one_trains_and_seven_try_again_later(crowd: Crowd) -> None:
    (winner,) = (end for end in crowd.ends if end.code == 0)
    losers = [end for end in crowd.ends if end is not winner]
    assert [end.code for end in losers] == [75] * 7
    trained = crowd.pids[crowd.ends.index(winner)]
    for end in losers:
        assert f"Job 'job' is being run by process {trained} on" in end.err
        assert end.err.count("\n") == 1
        assert end.out == ""


def test_one_that_waits_says_for_whom_and_begins_when_that_has_ended(crowd: Crowd) -> None:
    trained = next(pid for pid, end in zip(crowd.pids, crowd.ends, strict=True) if end.code == 0)
    assert crowd.ninth.code == 0, crowd.ninth.err
    assert crowd.ninth.err.count("waits up to 600 s: Job 'job' is being run by process") == 1
    assert f"process {trained} on" in crowd.ninth.err


def test_nothing_is_broken_by_a_crowd(crowd: Crowd) -> None:
    assert len(runs_in(crowd.folder)) == 2, "that of the one that trained, and that of the one that waited"
    for run in runs_in(crowd.folder):
        lines = (run / "events.jsonl").read_text(encoding="utf-8").splitlines()
        kinds = [json.loads(line)["event"] for line in lines]
        assert [kind for kind in kinds if kind in ("start", "epoch", "end")] == [
            "start", "epoch", "epoch", "epoch", "end",
        ]  # fmt: skip
        assert json.loads((run / "summary.json").read_text(encoding="utf-8"))["status"] == "done"
    assert not list((crowd.folder / "runs" / "job").glob("*lock*"))
    assert not list((crowd.folder / "runs" / "job").glob(".*lock*"))


def test_a_holder_on_another_host_is_believed_until_it_is_silent_and_then_its_run_goes_on(tmp_path: Path) -> None:
    folder = workplace(tmp_path, {**SMALL, "callbacks": {"leash": {"class_path": "mine.Leash"}}})
    held_back = leash(folder, 8)  # six are an epoch
    with started(folder, "fit", "-c", "job.yaml") as process:
        assert wait_for(lambda: events(folder, "checkpoint"), process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    held_back.unlink()
    lock = folder / "runs" / "job" / "lock.json"
    held = json.loads(lock.read_text(encoding="utf-8"))
    lock.write_text(json.dumps({**held, "host": "other-host"}), encoding="utf-8")
    refused = fit(folder)
    assert refused.code == 75
    assert f"is being run by process {held['pid']} on other-host since {held['started']}, in " in refused.err
    assert "counts as dead after 300 s (run.stale_s)" in refused.err

    long_ago = lock.stat().st_mtime - 100
    os.utime(lock, (long_ago, long_ago))
    taken = fit(folder, "--run.stale_s=60")
    assert taken.code == 0, taken.err
    assert f"resumes {only_run(folder)} from " in taken.err
    assert summary(folder)["status"] == "done"
    assert not lock.exists()
