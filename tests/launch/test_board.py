"""What ranks tell each other through files."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lightkit.launch import Board, Rank
from lightkit.launch.board import shared_folder
from lightkit.launch.ranks import SUPERVISOR


def test_ranks_stand_as_they_have_written(tmp_path: Path) -> None:
    board = Board(tmp_path / "launch")
    board.begin(Rank(1, 2))
    board.begin(Rank(0, 2))
    board.end(Rank(0, 2), code=3, kind="DataError", words="error: no data")
    first, second = board.standings()
    assert (first.rank, first.state, first.code, first.kind, first.words) == (
        0,
        "ended",
        3,
        "DataError",
        "error: no data",
    )
    assert (second.rank, second.state, second.is_gone) == (1, "began", False)


def test_a_rank_that_has_died_without_a_word_is_gone(tmp_path: Path) -> None:
    code = "import sys; from lightkit.launch import Board, Rank; Board(sys.argv[1]).begin(Rank(0, 1))"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60)
    (standing,) = Board(tmp_path).standings()
    assert standing.is_gone


def test_a_rank_that_was_ended_for_hanging_stays_so(tmp_path: Path) -> None:
    board = Board(tmp_path)
    board.stall(Rank(0, 1), code=70, words="here", waits_for=None)
    board.end(Rank(0, 1), code=1)
    (standing,) = board.standings()
    assert (standing.state, standing.code, standing.words) == ("stalled", 70, "here")


def test_the_newest_start_counts(tmp_path: Path) -> None:
    board = Board(tmp_path)
    board.end(Rank(0, 1), code=1)
    board.begin(Rank(0, 1, attempt=1))
    assert [standing.attempt for standing in board.standings()] == [1]
    assert [standing.code for standing in board.standings(attempt=0)] == [1]


def test_a_rank_waits_until_rank_0_has_a_run(tmp_path: Path) -> None:
    board, late = Board(tmp_path), threading.Timer(0.2, lambda: board.tell_run(Rank(0, 2), {"folder": "runs/a/1"}))
    late.start()
    told = board.wait_for_run(Rank(1, 2), 30, since_s=0)
    late.join()
    assert told is not None
    assert told["folder"] == "runs/a/1"


def test_a_rank_does_not_wait_for_one_that_has_ended_or_for_an_older_launch(tmp_path: Path) -> None:
    board = Board(tmp_path)
    board.tell_run(Rank(0, 2), {"folder": "runs/a/1"})
    board.end(Rank(0, 2), code=2)
    began = time.monotonic()
    assert board.wait_for_run(Rank(1, 2), 0.3, since_s=time.time() + 100) is None
    board.folder.joinpath("run-0.json").unlink()
    assert board.wait_for_run(Rank(1, 2), 60, since_s=0) is None
    assert time.monotonic() - began < 30


def test_the_last_to_leave_takes_the_folder_away(tmp_path: Path) -> None:
    board = Board(tmp_path / "launch")
    for rank in (Rank(0, 2), Rank(1, 2)):
        board.begin(rank)
    board.tell_run(Rank(0, 2), {"folder": "x"})
    board.end(Rank(0, 2), code=0)
    board.leave(Rank(0, 2), is_over=True)
    assert board.standings()
    board.end(Rank(1, 2), code=0)
    board.leave(Rank(1, 2), is_over=True)
    assert not board.folder.exists()


def begun(board: Board, supervisor: str, rank: Rank, monkeypatch: pytest.MonkeyPatch) -> Rank:
    """A rank that a supervisor has started, with the number of its start."""
    monkeypatch.setenv(SUPERVISOR, supervisor)
    rank = board.numbered(rank)
    board.begin(rank)
    return rank


def test_all_ranks_of_a_start_have_its_number(tmp_path: Path) -> None:
    board = Board(tmp_path)
    for number, port in enumerate(("a-1", "a-2", "a-3")):
        ranks = [Rank(rank, 8, engine="torchrun", attempt=rank, key=port) for rank in range(8)]
        with ThreadPoolExecutor(8) as pool:
            assert {rank.attempt for rank in pool.map(board.numbered, ranks)} == {number}
    assert board.numbered(Rank(0, 1, key="a-2")).attempt == 1


def test_a_start_whose_file_was_never_written_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightkit.launch.generations._WRITTEN_S", 0.1)
    (tmp_path / "generation-4.txt").touch()
    assert Board(tmp_path).numbered(Rank(0, 1, key="a-1")).attempt == 5


def test_an_earlier_run_is_that_of_the_same_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board(shared_folder(tmp_path, "a-1", "job"))
    stale = begun(board, "yesterday", Rank(0, 1, key="a-1"), monkeypatch)
    board.tell_run(stale, {"folder": "runs/yesterday"})
    first = begun(board, "b", Rank(0, 2, key="a-2"), monkeypatch)
    begun(board, "c", Rank(1, 2, key="a-2"), monkeypatch)
    assert first.attempt == 1
    assert board.earlier_run(first, 30) is None
    board.tell_run(first, {"folder": "runs/today"})
    joined = begun(board, "d", Rank(0, 2, key="a-3"), monkeypatch)  # a machine that was not there before has rank 0
    begun(board, "c", Rank(1, 2, key="a-3"), monkeypatch)
    told = board.earlier_run(joined, 30)
    assert told is not None
    assert told["folder"] == "runs/today"
    assert board.newest_run(supervisors=["e"]) is None


def test_the_last_supervisor_takes_away_what_all_have_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board(shared_folder(tmp_path, "a-1", "job"))
    for port in ("a-1", "a-2"):
        board.tell_run(begun(board, "b", Rank(0, 2, key=port), monkeypatch), {"folder": "runs/a"})
        begun(board, "c", Rank(1, 2, key=port), monkeypatch)
    board.ask_to_stop(15)
    board.forget("b")
    assert [standing.supervisor for standing in board.standings()] == ["c"]
    assert board.newest_run(supervisors=["c"]) is not None
    board.forget("c")
    assert not board.folder.exists()


def test_launches_of_other_jobs_at_the_same_place_share_no_folder(tmp_path: Path) -> None:
    assert shared_folder(tmp_path, "a-1", "job") == shared_folder(tmp_path, "a-1", "job")
    assert shared_folder(tmp_path, "a-1", "job") != shared_folder(tmp_path, "a-1", "other")


def test_a_rank_that_gets_the_signal_is_not_asked_to_stop_as_well(tmp_path: Path) -> None:
    board = Board(tmp_path)
    assert board.asked_to_stop(Rank(0, 2)) is None
    board.begin(Rank(0, 2))
    board.ask_to_stop(15, but=board.standings())
    assert board.asked_to_stop(Rank(0, 2)) is None
    assert board.asked_to_stop(Rank(0, 2, attempt=1)) == 15
    assert board.asked_to_stop(Rank(1, 2)) == 15
