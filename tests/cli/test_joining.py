"""Which processes are ranks, and what each says of its end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightkit.cli.joining import LeftAlone, Seat, seat_of
from lightkit.cli.stages import note_preemption
from lightkit.errors import ConfigError, Interrupted
from lightkit.launch import Board, Rank
from lightkit.runs.signals import SignalWatch

LAUNCHERS = {
    "torchrun": {"TORCHELASTIC_RUN_ID": "none", "RANK": "0", "WORLD_SIZE": "1"},
    "horovod": {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"},
    "slurm": {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "1", "SLURM_JOB_ID": "4711"},
    "mpi": {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
}


@pytest.mark.parametrize("engine", LAUNCHERS)
def test_a_launcher_that_starts_one_process_has_started_it(tmp_path: Path, engine: str) -> None:
    seat = seat_of(LAUNCHERS[engine], tmp_path)
    assert seat is not None
    assert (seat.rank.engine, seat.rank.rank, seat.rank.size) == (engine, 0, 1)


def test_one_process_of_lightnings_own_is_alone(tmp_path: Path) -> None:
    assert seat_of({}, tmp_path) is None
    assert seat_of({"LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost"}, tmp_path) is None


@pytest.mark.parametrize(
    ("signum", "saved", "goes_back"),
    [(signal.SIGUSR1, True, True), (signal.SIGTERM, True, False), (signal.SIGUSR1, False, False)],
    ids=["preempted", "cancelled", "nothing saved"],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_only_a_job_that_is_preempted_goes_back_into_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int, signum: int, saved: bool, goes_back: bool
) -> None:
    marker = tmp_path / "preempted"
    monkeypatch.setenv("_LIGHTKIT_PREEMPTED", str(marker))
    seat = Seat(Rank(rank, 2, engine="slurm"), Board(tmp_path / ".launch" / "job"), supervised=False)

    def stage() -> int:
        raise Interrupted(signum, checkpoint=tmp_path / "last.ckpt" if saved else None)

    with pytest.raises(Interrupted):
        seat.run(stage)
    assert marker.exists() == goes_back


class Screen:
    """What a rank whose output goes to a file writes to its launcher's standard error."""

    def __init__(self, folder: Path, rank: int = 1) -> None:
        self.path = folder / "screen"
        self.board = Board(folder / ".launch" / "torchrun-1")
        self.seat = Seat(Rank(rank, 2, engine="torchrun"), self.board, supervised=False)
        self.board.begin(self.seat.rank)
        self.board.log(rank).touch()
        self.seat._screen = os.open(self.path, os.O_WRONLY | os.O_CREAT)

    def after(self, error: Exception) -> str:
        def stage() -> int:
            raise error

        with pytest.raises(type(error)):
            self.seat.run(stage)
        return self.path.read_text(encoding="utf-8")

    def when_it_looks_again(self, do: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
        """Do something before its second look at the others, for which it has all the time that it needs."""
        looks = iter((lambda: None, do))
        standings = self.board.standings

        def look(attempt: int | None = None) -> Any:
            next(looks, lambda: None)()
            return standings(attempt)

        monkeypatch.setattr(self.board, "standings", look)
        monkeypatch.setattr("lightkit.cli.joining._SAME_S", 60.0)


def test_a_rank_that_raises_says_so_where_no_supervisor_does(tmp_path: Path) -> None:
    screen = Screen(tmp_path)
    (tmp_path / "run").mkdir()
    screen.seat.keep_log(tmp_path / "run")
    told = screen.after(ValueError("out of stock")).splitlines()
    assert told[:2] == ["rank 1:", "Traceback (most recent call last):"]
    assert told[-2:] == ["ValueError: out of stock", f"log   {tmp_path}/run/logs/rank-1.log"]
    assert not (tmp_path / ".launch").exists()


def test_a_rank_that_ends_because_of_another_says_one_line(tmp_path: Path) -> None:
    screen = Screen(tmp_path)
    screen.board.end(Rank(0, 2, engine="torchrun"), code=1, kind="ValueError", words="Traceback ...")
    told = screen.after(RuntimeError("Connection closed by peer"))
    assert told == "rank 1 has ended because of it: RuntimeError: Connection closed by peer\n"


def test_a_mistake_that_all_ranks_meet_is_told_by_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(tmp_path)
    rank, words = Rank(0, 2, engine="torchrun"), "error: trainer: no"
    screen.board.begin(rank)
    screen.when_it_looks_again(lambda: screen.board.end(rank, code=2, kind="ConfigError", words=words), monkeypatch)
    assert screen.after(ConfigError("trainer: no")) == ""


def test_a_rank_that_the_launcher_ends_for_anothers_mistake_has_nothing_to_add(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Screen(tmp_path)
    screen.when_it_looks_again(lambda: os.kill(os.getpid(), signal.SIGTERM), monkeypatch)
    assert screen.after(ConfigError("trainer: no")) == ""
    assert not (tmp_path / ".launch").exists()


def test_a_job_that_is_preempted_before_it_trains_goes_on_until_it_can_save() -> None:
    with SignalWatch() as watch:
        note_preemption(watch)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert watch.received == signal.SIGUSR1
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_a_mistake_of_one_rank_is_told(tmp_path: Path) -> None:
    assert Screen(tmp_path).after(ConfigError("data: no")) == "rank 1: error: data: no\n"


def test_a_rank_that_is_left_alone_has_nothing_to_say(tmp_path: Path) -> None:
    assert Screen(tmp_path).after(LeftAlone("rank 0 has begun no run")) == ""
    assert not (tmp_path / ".launch").exists()
