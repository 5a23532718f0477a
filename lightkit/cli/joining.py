"""One rank of several: where its output goes, and what the others learn of its beginning and its end."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from lightkit.cli.tracebacks import format_traceback
from lightkit.errors import ConfigError, Interrupted, LightkitError, told_interruption
from lightkit.launch import ATTEMPT, LAUNCH, PREEMPTED, STALLED, Board, Rank, Stall, redirect, this_rank
from lightkit.runs.signals import SignalWatch

__all__ = ["DATA_CHANGED", "INHERITED", "Seat", "seat_of"]

DATA_CHANGED = "DataChanged"
"""Name of the exception after which all ranks have to begin again, in a new run."""
INHERITED = "_LIGHTKIT_RUN"
"""Variable by which the process that begins a run tells the ranks that Lightning starts from it which run it is."""

_DAY_S = 86400.0
_LAUNCHES = ".launch"
_LOOK_S = 0.3
_OLDER_S = 60.0  # clocks of machines differ, and ranks do not begin together
_SAME_S = 2.0  # ranks meet the same mistake at about the same time


class Seat:
    """This process's place among the ranks of a launch.

    Args:
        rank: Which one it is.
        board: Where the ranks tell each other how they stand.
        supervised: Whether lightkit's supervisor reads the board: it then says what has failed, and how all end.
    """

    def __init__(self, rank: Rank, board: Board, *, supervised: bool) -> None:
        self.rank = rank
        self.board = board
        self.supervised = supervised
        self._began_s = time.time()
        self._screen: int | None = None
        self._log: Path | None = None
        self._is_shared = supervised and board.is_shared

    def open(self) -> None:
        """Say that this rank has arrived, and write to its own file from here on unless the screen is its own.

        Raises:
            ConfigError: If the folder of the launch cannot be written.
        """
        try:
            if self.supervised and self.rank.engine == "torchrun":
                self.rank = self.board.numbered(self.rank)
                os.environ[ATTEMPT] = str(self.rank.attempt)
            self.board.begin(self.rank)
            if self.rank.rank != 0:
                self._screen = None if self.supervised else os.dup(2)
                redirect(self.board.log(self.rank.rank), 1, 2)
            elif self.supervised and self.rank.engine != "local":
                redirect(self.board.log(0, "out"), 1)
                redirect(self.board.log(0, "err"), 2)
        except OSError as error:
            says = f"run.root: rank {self.rank.rank} cannot write {self.board.folder}: {error.strerror or error}"
            raise ConfigError(f"{says}. All ranks must see that folder.") from error

    def listen(self, watch: SignalWatch) -> None:
        """Look for the supervisor's wish to stop where a launcher runs this rank in a thread, which gets no signals."""

        def look() -> None:
            while (signum := self.board.asked_to_stop(self.rank)) is None:
                time.sleep(_LOOK_S)
            watch.note(signum)

        threading.Thread(target=look, name="lightkit-stop", daemon=True).start()

    def run(self, stage: Callable[[], int]) -> int:
        """Run a stage and tell how it has ended.

        Returns:
            Exit code of this process. Of an interruption that is 0 under a supervisor, which knows better: a launcher
            that sees another code kills the rank that is saving the checkpoint.
        """
        try:
            code = stage()
        except Interrupted as interruption:
            # Any rank: the others may have stopped with it before the signal has reached them.
            is_preempted = interruption.signum == signal.SIGUSR1 and interruption.checkpoint is not None
            if is_preempted and (marker := os.environ.get(PREEMPTED)):
                Path(marker).touch()
            return self._end(interruption, told_interruption(interruption), interruption.exit_code, process_code=0)
        except LightkitError as error:
            # Torch's agent and Ray would start all ranks again, to meet the same mistake.
            is_final = self.rank.engine in ("torchrun", "ray") and (
                error.exit_code != 1 or type(error).__name__ in (DATA_CHANGED, LeftAlone.__name__)
            )
            return self._end(error, f"error: {error}", error.exit_code, process_code=0 if is_final else None)
        except Exception as error:  # noqa: BLE001 (told to the supervisor, which prints it, or raised again)
            return self._end(error, format_traceback(error), 1)
        except BaseException as error:
            self.board.end(self.rank, code=_exit_code(error), kind=type(error).__name__, words=format_traceback(error))
            raise
        self.board.end(self.rank, code=code)
        if not self.supervised:
            self._leave(is_over=code == 0)
        return code

    def end_by_force(self, interruption: Interrupted) -> int:
        """Tell how this rank ends that has not ended in time after a signal, and give the exit code of its process."""
        words = told_interruption(interruption)
        self.board.end(self.rank, code=interruption.exit_code, kind=type(interruption).__name__, words=words)
        return 0 if self.supervised else interruption.exit_code

    def _end(self, error: BaseException, words: str, code: int, process_code: int | None = None) -> int:
        with _unhurried() as signals:
            self.board.end(self.rank, code=code, kind=type(error).__name__, words=words)
            if not self.supervised:
                self._tell(error, words, signals)
                self._leave(is_over=False)
        if not self.supervised:
            raise error
        if self.rank.rank != 0:
            print(words, file=sys.stderr)  # into its log
        sys.stdout.flush()
        sys.stderr.flush()
        return code if process_code is None else process_code

    def _tell(self, error: BaseException, words: str, signals: Collection[int]) -> None:
        """Say on the screen what has ended this rank, whose output goes to a file, unless others have said it."""
        if self._screen is None or isinstance(error, (Interrupted, LeftAlone)):
            return
        if isinstance(error, LightkitError):
            if self._is_told(words, signals):
                return
            told = f"rank {self.rank.rank}: {words}"
        elif any(other.code for other in self.board.standings() if other.rank != self.rank.rank):
            told = f"rank {self.rank.rank} has ended because of it: {words.rstrip().splitlines()[-1]}"
        else:
            told = f"rank {self.rank.rank}:\n{words.rstrip()}"
        log = f"\nlog   {self._log}" if self._log is not None else ""
        os.write(self._screen, f"{told}{log}\n".encode())

    def _is_told(self, words: str, signals: Collection[int]) -> bool:
        """Wait a moment for a lower rank to end with the same words, or so early that the launcher ends this one."""
        deadline = time.monotonic() + _SAME_S
        while time.monotonic() < deadline:
            lower = [standing for standing in self.board.standings() if standing.rank < self.rank.rank]
            if signals or any(standing.words == words for standing in lower):
                return True
            time.sleep(_LOOK_S)
        return False

    def tell_stall(self, stall: Stall) -> None:
        """Say that this rank makes no progress and is being ended."""
        self.board.stall(self.rank, code=STALLED, words=stall.stacks, waits_for=stall.waits_for, at=stall.line)
        if not self.supervised or self.rank.rank != 0:
            waits = "" if stall.waits_for is None else f"; it waits in {stall.waits_for}"
            says = f"error: rank {self.rank.rank} has hung for {stall.limit_s:g} s{waits}\n{stall.stacks}"
            print(says, file=sys.stderr, flush=True)

    def tell_run(self, told: Mapping[str, Any]) -> None:
        """Tell the others which run it is; only rank 0 does."""
        self.board.tell_run(self.rank, told)

    def earlier_run(self, timeout_s: float) -> dict[str, Any] | None:
        """The run that all ranks were in before they were started again, if they were and it is still there.

        Args:
            timeout_s: Seconds to wait for the other ranks where only they can tell whose run it was.
        """
        if self._is_shared:
            told = self.board.earlier_run(self.rank, timeout_s)
        else:
            told = self.board.newest_run(since_s=0.0 if self.supervised else self._began_s - _DAY_S)
        if told is None or not (self.rank.attempt or self.supervised) or not Path(told["folder"]).is_dir():
            return None
        return told

    def wait_for_run(self, timeout_s: float) -> dict[str, Any]:
        """Wait until rank 0 has told which run it is.

        Raises:
            LeftAlone: If it has ended instead, or the time is over.
        """
        since_s = 0.0 if self.supervised else self._began_s - _OLDER_S
        told = self.board.wait_for_run(self.rank, timeout_s, since_s=since_s)
        if told is None:
            raise LeftAlone(
                f"rank 0 has begun no run within {timeout_s:g} s, or has ended; rank {self.rank.rank} ends too"
            )
        return told

    def keep_log(self, folder: Path) -> None:
        """Let the run's folder have what this rank writes, also what comes later."""
        if self.rank.rank == 0:
            return
        kept = folder / "logs" / f"rank-{self.rank.rank}.log"
        kept.parent.mkdir(exist_ok=True)
        written = self.board.log(self.rank.rank)
        if kept.exists():
            if kept.samefile(written):
                self._log = kept
                return
            _set_aside(kept)
        try:
            os.link(written, kept)
        except OSError:  # on another file system
            kept.write_bytes(written.read_bytes())
            redirect(kept, 1, 2)
        self._log = kept

    def _leave(self, *, is_over: bool) -> None:
        """Take away what only a supervisor would read."""
        if self.board.folder.parent.name == _LAUNCHES:  # else it is where the run keeps its logs
            gone = [standing.rank for standing in self.board.standings() if standing.is_gone]
            for rank in (self.rank.rank, *gone):
                self.board.log(rank).unlink(missing_ok=True)
        restarts = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) if self.rank.engine == "torchrun" else 0
        self.board.leave(self.rank, is_over=is_over or self.rank.attempt >= restarts)


class LeftAlone(LightkitError):
    """Rank 0 has ended, so that this rank has nothing to join."""


def seat_of(environ: Mapping[str, str], root: Path | str | None = None) -> Seat | None:
    """Give this process's seat, if a launcher has started it.

    Args:
        environ: Environment variables.
        root: Folder of all runs, in which ranks of a launcher of the user's own meet; None before it is known.
    """
    rank = this_rank(environ)
    if folder := environ.get(LAUNCH):  # without a launcher's variables it is the one that starts the others itself
        return Seat(rank or Rank(0, 1), Board(folder), supervised=True)
    if rank is None or root is None or (rank.engine == "local" and rank.size == 1):
        return None
    if told := environ.get(INHERITED):
        return Seat(rank, Board(Path(json.loads(told)["folder"]) / "logs"), supervised=False)
    return Seat(rank, Board(Path(root).absolute() / _LAUNCHES / f"{rank.engine}-{rank.key}"), supervised=False)


def _exit_code(error: BaseException) -> int:
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 130 if isinstance(error, KeyboardInterrupt) else 1


@contextmanager
def _unhurried() -> Iterator[list[int]]:
    """Let a rank that ends say so: launchers send SIGTERM to all ranks as soon as one of them has ended.

    Gives the signals that have come meanwhile.
    """
    come: list[int] = []

    def note(signum: int, _frame: FrameType | None) -> None:
        come.append(signum)

    is_main = threading.current_thread() is threading.main_thread()  # Python allows handlers nowhere else
    before = {signum: signal.signal(signum, note) for signum in (signal.SIGINT, signal.SIGTERM)} if is_main else {}
    try:
        yield come
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _set_aside(log: Path) -> None:
    """Keep the log of an earlier launch of the same run."""
    number = 1
    while (earlier := log.with_name(f"{log.stem}.{number}{log.suffix}")).exists():
        number += 1
    log.rename(earlier)
