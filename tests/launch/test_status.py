"""What ranks tell each other through files."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lightkit.launch import Rank, StatusStore
from lightkit.launch.ranks import SUPERVISOR


def test_ranks_stand_as_they_have_written(tmp_path: Path) -> None:
    store = StatusStore(tmp_path / "launch")
    store.record(Rank(1, 2), "began")
    store.record(Rank(0, 2), "began")
    store.record(Rank(0, 2), "ended", code=3, kind="DataError", message="error: no data")
    first, second = store.list_ranks()
    assert (first.rank, first.state, first.code, first.kind, first.message) == (
        0,
        "ended",
        3,
        "DataError",
        "error: no data",
    )
    assert (second.rank, second.state, second.is_lost) == (1, "began", False)


def test_a_rank_that_has_died_without_a_word_is_gone(tmp_path: Path) -> None:
    code = (
        "import sys; from lightkit.launch import StatusStore, Rank; "
        "StatusStore(sys.argv[1]).record(Rank(0, 1), 'began')"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60)
    (status,) = StatusStore(tmp_path).list_ranks()
    assert status.is_lost


def test_a_rank_that_was_ended_for_hanging_stays_so(tmp_path: Path) -> None:
    store = StatusStore(tmp_path)
    store.record(Rank(0, 1), "stalled", code=70, message="here")
    store.record(Rank(0, 1), "ended", code=1)
    (status,) = store.list_ranks()
    assert (status.state, status.code, status.message) == ("stalled", 70, "here")


def test_the_newest_start_counts(tmp_path: Path) -> None:
    store = StatusStore(tmp_path)
    store.record(Rank(0, 1), "ended", code=1)
    store.record(Rank(0, 1, attempt=1), "began")
    assert [status.attempt for status in store.list_ranks()] == [1]
    assert [status.code for status in store.list_ranks(attempt=0)] == [1]


def test_a_rank_waits_until_rank_0_has_a_run(tmp_path: Path) -> None:
    store, late = (
        StatusStore(tmp_path),
        threading.Timer(0.2, lambda: store.announce_run(Rank(0, 2), {"folder": "runs/a/1"})),
    )
    late.start()
    told = store.wait_for_run(Rank(1, 2), 30, since_s=0)
    late.join()
    assert told is not None
    assert told["folder"] == "runs/a/1"


def test_a_rank_does_not_wait_for_one_that_has_ended_or_for_an_older_launch(tmp_path: Path) -> None:
    store = StatusStore(tmp_path)
    store.announce_run(Rank(0, 2), {"folder": "runs/a/1"})
    store.record(Rank(0, 2), "ended", code=2)
    began = time.monotonic()
    assert store.wait_for_run(Rank(1, 2), 0.3, since_s=time.time() + 100) is None
    store.folder.joinpath("run-0.json").unlink()
    assert store.wait_for_run(Rank(1, 2), 60, since_s=0) is None
    assert time.monotonic() - began < 30


def test_the_last_to_leave_takes_the_folder_away(tmp_path: Path) -> None:
    store = StatusStore(tmp_path / "launch")
    for rank in (Rank(0, 2), Rank(1, 2)):
        store.record(rank, "began")
    store.announce_run(Rank(0, 2), {"folder": "x"})
    store.record(Rank(0, 2), "ended", code=0)
    store.leave(is_over=True)
    assert store.list_ranks()
    store.record(Rank(1, 2), "ended", code=0)
    store.leave(is_over=True)
    assert not store.folder.exists()


def begun(store: StatusStore, supervisor: str, rank: Rank, monkeypatch: pytest.MonkeyPatch) -> Rank:
    """A rank that a supervisor has started, with the number of its start."""
    monkeypatch.setenv(SUPERVISOR, supervisor)
    rank = store.agree_on_attempt(rank)
    store.record(rank, "began")
    return rank


def test_all_ranks_of_a_start_have_its_number(tmp_path: Path) -> None:
    store = StatusStore(tmp_path)
    for number, port in enumerate(("a-1", "a-2", "a-3")):
        ranks = [Rank(rank, 8, engine="torchrun", attempt=rank, key=port) for rank in range(8)]
        with ThreadPoolExecutor(8) as pool:
            assert {rank.attempt for rank in pool.map(store.agree_on_attempt, ranks)} == {number}
    assert store.agree_on_attempt(Rank(0, 1, key="a-2")).attempt == 1


def test_a_start_whose_file_was_never_written_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightkit.launch.worker._WRITTEN_S", 0.1)
    (tmp_path / "attempt-0.txt").touch()
    assert StatusStore(tmp_path).agree_on_attempt(Rank(0, 1, key="a-1")).attempt == 1


def test_an_earlier_run_is_that_of_the_same_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = StatusStore.make(tmp_path, "a-1-job")
    stale = begun(store, "yesterday", Rank(0, 1, key="a-1"), monkeypatch)
    store.announce_run(stale, {"folder": "runs/yesterday"})
    first = begun(store, "b", Rank(0, 2, key="a-2"), monkeypatch)
    begun(store, "c", Rank(1, 2, key="a-2"), monkeypatch)
    assert first.attempt == 1
    assert store.earlier_run(first, 30) is None
    store.announce_run(first, {"folder": "runs/today"})
    joined = begun(store, "d", Rank(0, 2, key="a-3"), monkeypatch)  # a machine that was not there before has rank 0
    begun(store, "c", Rank(1, 2, key="a-3"), monkeypatch)
    told = store.earlier_run(joined, 30)
    assert told is not None
    assert told["folder"] == "runs/today"
    assert store.newest_run(supervisors=["e"]) is None


def test_the_last_supervisor_takes_away_what_all_have_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = StatusStore.make(tmp_path, "a-1-job")
    for port in ("a-1", "a-2"):
        store.announce_run(begun(store, "b", Rank(0, 2, key=port), monkeypatch), {"folder": "runs/a"})
        begun(store, "c", Rank(1, 2, key=port), monkeypatch)
    store.request_stop(15)
    store.forget("b")
    assert [status.supervisor for status in store.list_ranks()] == ["c"]
    assert store.newest_run(supervisors=["c"]) is not None
    store.forget("c")
    assert not store.folder.exists()


def test_launches_of_other_jobs_at_the_same_place_share_no_folder(tmp_path: Path) -> None:
    assert StatusStore.make(tmp_path, "a-1-job").folder == StatusStore.make(tmp_path, "a-1-job").folder
    assert StatusStore.make(tmp_path, "a-1-job").folder != StatusStore.make(tmp_path, "a-1-other").folder


def test_a_rank_that_gets_the_signal_is_not_asked_to_stop_as_well(tmp_path: Path) -> None:
    store = StatusStore(tmp_path)
    assert store.requested_stop(Rank(0, 2)) is None
    store.record(Rank(0, 2), "began")
    store.request_stop(15, exclude=store.list_ranks())
    assert store.requested_stop(Rank(0, 2)) is None
    assert store.requested_stop(Rank(0, 2, attempt=1)) == 15
    assert store.requested_stop(Rank(1, 2)) == 15
