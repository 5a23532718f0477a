"""What ranks tell each other through files."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

from lightkit.launch import Board, Rank


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
