"""Who is named when several ranks have ended badly."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lightkit.launch.ranks import Rank
from lightkit.launch.supervisor import LaunchResult, collect_result
from lightkit.launch.worker import RankContext

TRACE = "Traceback (most recent call last):\n  File 'mine.py', line 3\nValueError: out of stock\n"
LOST = (
    "Traceback:\nRuntimeError: [../gloo/transport/tcp/pair.cc:547] Connection closed by peer"
    " [127.0.0.1]:10421\n"
)


@dataclass
class Store:
    """Status files of a launch."""

    folder: Path

    def record(self, rank: Rank, state: Any, **fields: Any) -> None:
        RankContext(rank, self.folder, supervised=True).record(state, **fields)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def result_of(store: Store, code: int = 1, size: int | None = 2) -> LaunchResult:
    return collect_result(store.folder, launcher_code=code, size=size)


def dead(store: Store, rank: int) -> None:
    """A rank that began in a process that is gone."""
    program = (
        "import pathlib, sys; from lightkit.launch.ranks import Rank; from lightkit.launch.worker"
        f" import RankContext; RankContext(Rank({rank}, 2), pathlib.Path(sys.argv[1]),"
        " supervised=True).record('began')"
    )
    subprocess.run([sys.executable, "-c", program, str(store.folder)], check=True, timeout=60)


def test_all_well(store: Store) -> None:
    for rank in range(2):
        store.record(Rank(rank, 2), "ended", code=0)
    assert result_of(store, 0) == LaunchResult(0)


def test_the_rank_that_raised_comes_before_those_that_lost_it(store: Store) -> None:
    store.record(
        Rank(0, 2),
        "ended",
        code=1,
        kind="HorovodInternalError",
        message="Traceback:\nError: shut down\n",
    )
    store.record(Rank(1, 2), "ended", code=1, kind="ValueError", message=TRACE)
    found = result_of(store)
    assert (found.code, found.rank) == (1, 1)
    assert found.message is not None
    assert found.message.startswith("rank 1 (process ")
    assert found.message.index("out of stock") < found.message.index("rank 0")
    assert "HorovodInternalError" in found.message
    assert "shut down" not in found.message


def test_a_lost_connection_is_no_cause(store: Store) -> None:
    store.record(Rank(0, 2), "ended", code=1, kind="RuntimeError", message=LOST)
    dead(store, 1)
    found = result_of(store)
    assert (found.code, found.rank) == (1, 1)
    assert "rank 1" in str(found.message)
    assert "ended without a message" in str(found.message)
    assert found.summary == "rank 1 was killed or crashed"


def test_a_runtime_error_of_the_user_is_a_cause(store: Store) -> None:
    store.record(Rank(0, 2), "ended", code=1, kind="RuntimeError", message=LOST)
    store.record(
        Rank(1, 2),
        "ended",
        code=1,
        kind="RuntimeError",
        message="Traceback:\nRuntimeError: shapes\n",
    )
    assert result_of(store).rank == 1


def test_the_rank_that_hangs_comes_before_those_that_wait_for_it(store: Store) -> None:
    store.record(Rank(0, 2), "stalled", code=70, message="in synchronize", waits_for="all-reduce")
    store.record(Rank(1, 2), "stalled", code=70, message="in sleep", waits_for=None)
    found = result_of(store)
    assert (found.code, found.rank) == (70, 1)
    assert "in sleep" in str(found.message)


def test_a_rank_that_is_stopped_comes_before_those_that_wait_for_it(store: Store) -> None:
    store.record(Rank(0, 2), "stalled", code=70, message="in synchronize", waits_for="all-reduce")
    store.record(Rank(1, 2), "began")
    found = result_of(store)
    assert (found.code, found.rank) == (70, 1)
    assert "rank 1" in str(found.message).splitlines()[0]
    assert "did not answer" in str(found.message)


def test_an_error_that_all_ranks_meet_is_reported_once(store: Store) -> None:
    for rank in range(2):
        store.record(
            Rank(rank, 2),
            "ended",
            code=2,
            kind="ConfigError",
            message="error: model: expected a class",
        )
    found = result_of(store)
    assert (found.code, found.message) == (2, "error: model: expected a class")


def test_an_interruption_is_no_failure(store: Store) -> None:
    for rank in range(2):
        store.record(
            Rank(rank, 2),
            "ended",
            code=75,
            kind="Interrupted",
            message="SIGINT; resumes from last.ckpt",
        )
    found = result_of(store, 0)
    assert (found.code, found.message) == (75, "SIGINT; resumes from last.ckpt")


def test_a_launcher_that_knows_better_is_believed(store: Store) -> None:
    said = "error: spark needs pyspark: pip install 'lightkit-train[spark]'"
    (store.folder / "launcher.log").write_text(f"starting\n{said}\n", encoding="utf-8")
    assert result_of(store, 2) == LaunchResult(2, said, said)


def test_a_launcher_that_has_started_nobody_is_quoted(store: Store) -> None:
    (store.folder / "launcher.log").write_text(
        "ssh: Could not resolve hostname b\n", encoding="utf-8"
    )
    found = result_of(store, 255)
    assert found.code == 1
    assert "0 of 2 ranks have arrived" in str(found.message)
    assert "Could not resolve hostname b" in str(found.message)


def test_ranks_that_have_done_their_work_are_not_said_to_be_missing(store: Store) -> None:
    for rank in range(2):
        store.record(Rank(rank, 2), "ended", code=0)
    found = result_of(store, 1)
    assert found.code == 1
    assert "2 of 2 ranks have arrived, and none has failed" in str(found.message)


def test_a_launcher_that_is_content_without_ranks_is_no_success(store: Store) -> None:
    assert result_of(store, 0).code == 1
    store.record(Rank(0, 2), "ended", code=0)
    assert "1 of 2 ranks have arrived" in str(result_of(store, 0).message)


def test_a_lock_is_reported_without_those_who_waited_for_it(store: Store) -> None:
    store.record(Rank(1, 2), "ended", code=1, kind="LeftAlone", message="error: rank 0 has ended")
    store.record(
        Rank(0, 2), "ended", code=75, kind="RunLocked", message="error: Job 'a' is being run"
    )
    assert result_of(store) == LaunchResult(
        75, "error: Job 'a' is being run", "rank 0: error: Job 'a' is being run", 0, "RunLocked"
    )
