"""Who is named when several ranks have ended badly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lightkit.launch import Board, Rank, Verdict, judge

TRACE = "Traceback (most recent call last):\n  File 'mine.py', line 3\nValueError: out of stock\n"
LOST = "Traceback:\nRuntimeError: [../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:10421\n"


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path)


def verdict(board: Board, code: int = 1, size: int | None = 2) -> Verdict:
    return judge(board.standings(), board, launcher_code=code, launcher_log=board.folder / "launcher.log", size=size)


def dead(board: Board, rank: int) -> None:
    """A rank that began in a process that is gone."""
    program = f"import sys; from lightkit.launch import Board, Rank; Board(sys.argv[1]).begin(Rank({rank}, 2))"
    subprocess.run([sys.executable, "-c", program, str(board.folder)], check=True, timeout=60)


def test_all_well(board: Board) -> None:
    for rank in range(2):
        board.end(Rank(rank, 2), code=0)
    assert verdict(board, 0) == Verdict(0)


def test_the_rank_that_raised_comes_before_those_that_lost_it(board: Board) -> None:
    board.end(Rank(0, 2), code=1, kind="HorovodInternalError", words="Traceback:\nHorovodInternalError: shut down\n")
    board.end(Rank(1, 2), code=1, kind="ValueError", words=TRACE)
    found = verdict(board)
    assert (found.code, found.rank) == (1, 1)
    assert found.words is not None
    assert found.words.startswith("rank 1 (process ")
    assert found.words.index("out of stock") < found.words.index("rank 0")
    assert "HorovodInternalError" in found.words
    assert "shut down" not in found.words


def test_a_lost_connection_is_no_cause(board: Board) -> None:
    board.end(Rank(0, 2), code=1, kind="RuntimeError", words=LOST)
    dead(board, 1)
    found = verdict(board)
    assert (found.code, found.rank) == (1, 1)
    assert "rank 1" in str(found.words)
    assert "gone without a word" in str(found.words)
    assert found.summary == "rank 1 was killed or crashed"


def test_a_runtime_error_of_the_user_is_a_cause(board: Board) -> None:
    board.end(Rank(0, 2), code=1, kind="RuntimeError", words=LOST)
    board.end(Rank(1, 2), code=1, kind="RuntimeError", words="Traceback:\nRuntimeError: shapes do not match\n")
    assert verdict(board).rank == 1


def test_the_rank_that_hangs_comes_before_those_that_wait_for_it(board: Board) -> None:
    board.stall(Rank(0, 2), code=70, words="in synchronize", waits_for="all-reduce")
    board.stall(Rank(1, 2), code=70, words="in sleep", waits_for=None)
    found = verdict(board)
    assert (found.code, found.rank) == (70, 1)
    assert "in sleep" in str(found.words)


def test_a_rank_that_is_stopped_comes_before_those_that_wait_for_it(board: Board) -> None:
    board.stall(Rank(0, 2), code=70, words="in synchronize", waits_for="all-reduce")
    board.begin(Rank(1, 2))
    found = verdict(board)
    assert (found.code, found.rank) == (70, 1)
    assert "rank 1" in str(found.words).splitlines()[0]
    assert "did not answer" in str(found.words)


def test_a_mistake_that_all_ranks_meet_is_told_once(board: Board) -> None:
    for rank in range(2):
        board.end(Rank(rank, 2), code=2, kind="ConfigError", words="error: model: expected a class")
    found = verdict(board)
    assert (found.code, found.words) == (2, "error: model: expected a class")


def test_an_interruption_is_no_failure(board: Board) -> None:
    for rank in range(2):
        board.end(Rank(rank, 2), code=75, kind="Interrupted", words="interrupted by SIGINT; resumes from last.ckpt")
    found = verdict(board, 0)
    assert (found.code, found.words) == (75, "interrupted by SIGINT; resumes from last.ckpt")


def test_a_launcher_that_knows_better_is_believed(board: Board) -> None:
    said = "error: spark needs pyspark: pip install 'lightkit[spark]'"
    (board.folder / "launcher.log").write_text(f"starting\n{said}\n", encoding="utf-8")
    assert verdict(board, 2) == Verdict(2, said)


def test_a_launcher_that_has_started_nobody_is_quoted(board: Board) -> None:
    (board.folder / "launcher.log").write_text("ssh: Could not resolve hostname b\n", encoding="utf-8")
    found = verdict(board, 255)
    assert found.code == 1
    assert "no rank has begun" in str(found.words)
    assert "Could not resolve hostname b" in str(found.words)


def test_ranks_that_have_done_their_work_are_not_said_to_be_missing(board: Board) -> None:
    for rank in range(2):
        board.end(Rank(rank, 2), code=0)
    found = verdict(board, 1)
    assert found.code == 1
    assert "every rank has done its work" in str(found.words)


def test_a_launcher_that_is_content_without_ranks_is_no_success(board: Board) -> None:
    assert verdict(board, 0).code == 1
    board.end(Rank(0, 2), code=0)
    assert "rank 1 has not arrived" in str(verdict(board, 0).words)


def test_a_lock_is_told_without_those_who_waited_for_it(board: Board) -> None:
    board.end(Rank(1, 2), code=1, kind="LeftAlone", words="error: rank 0 has ended")
    board.end(Rank(0, 2), code=75, kind="RunLocked", words="error: Job 'a' is being run")
    assert verdict(board) == Verdict(
        75, "error: Job 'a' is being run", "rank 0: error: Job 'a' is being run", 0, "RunLocked"
    )
