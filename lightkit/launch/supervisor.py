"""Starts all ranks of a launch, follows what they write and how they stand, and ends all of them together."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from lightkit.launch.blame import Verdict, judge, missing_ranks
from lightkit.launch.board import Board, Standing, new_folder, shared_folder
from lightkit.launch.commands import launch_command, search_path
from lightkit.launch.output import Follower
from lightkit.launch.plan import Plan
from lightkit.launch.processes import Tree, started_tree
from lightkit.launch.ranks import LAUNCH, SUPERVISOR
from lightkit.runs.process import is_gone

__all__ = ["Supervisor"]

_POLL_S = 0.05
_LOOK_S = 0.25
_SAVE_S = 7.0  # with the time that killing takes, all is over within ten seconds of a signal
_PEERS_S = 10.0
_RESTART_S = 90.0
_EXIT_S = 20.0


class Supervisor:
    """The process that a user has started and that starts the ranks.

    Args:
        plan: What to start.
        words: The command line after `lightkit`, which each rank gets.
        root: Folder of all runs; the folder of the launch is below it while it lasts. With several machines, each of
            which has a supervisor, all of them must see it.
        num_cores: Cores of this machine.
    """

    def __init__(self, plan: Plan, words: Sequence[str], *, root: Path | str, num_cores: int) -> None:
        self._plan = plan
        self._words = list(words)
        self._num_cores = num_cores
        self._name = f"{os.getpid()}@{socket.gethostname()}"
        self._is_one_of_many = plan.engine == "torchrun" and plan.settings.num_nodes[1] > 1
        meeting = str(plan.settings.rendezvous).replace(":", "-")
        self.board = Board(shared_folder(root, meeting) if self._is_one_of_many else new_folder(root))
        self.launcher_log = self.board.folder / f"launcher-{os.getpid()}.log"
        self.torchrun_logs = self.board.folder / f"torchrun-{os.getpid()}"
        self._clock = _Clock(time.monotonic())
        self._signals: list[int] = []
        self._asked_at: float | None = None
        self._failed_at: float | None = None
        self._done_at: float | None = None
        self._failed_attempt = -1
        self._overdue: Verdict | None = None

    @property
    def signum(self) -> int | None:
        """The signal that has ended the launch, if one has."""
        return self._signals[0] if self._signals else None

    def run(self) -> Verdict:
        """Start all ranks, wait for their end, leave none behind."""
        with self._catching_signals():
            tree = self._start()
            try:
                code = self._watch(tree)
            except BrokenPipeError:  # nobody reads any more: as `| head` does
                self._end_well(tree)
                raise
            finally:
                tree.terminate()
                tree.end(timeout_s=0.0 if self._signals[1:] else 2.0)
            self._follow(to_end=True)
        if self._overdue is not None:
            return self._overdue
        size = self._num_here if self._is_fixed else None
        return judge(self._standings(), self.board, launcher_code=code, launcher_log=self.launcher_log, size=size)

    def remove(self) -> None:
        """Remove the folder of the launch, or what is this supervisor's in it; the run's folder has the logs."""
        self.launcher_log.unlink(missing_ok=True)
        shutil.rmtree(self.torchrun_logs, ignore_errors=True)
        if not self._is_one_of_many:
            shutil.rmtree(self.board.folder, ignore_errors=True)
        for standing in self._standings():
            self.board.forget(standing)
        with suppress(OSError):  # other supervisors, or other launches, are under way
            self.board.folder.rmdir()
        with suppress(OSError):
            self.board.folder.parent.rmdir()
            self.board.folder.parent.parent.rmdir()

    @property
    def _is_fixed(self) -> bool:
        fewest, most = self._plan.settings.num_nodes
        return fewest == most and self._plan.processes > 0

    @property
    def _num_here(self) -> int:
        """Number of ranks whose end this supervisor waits for."""
        return self._plan.local_processes if self._is_one_of_many else self._plan.processes

    def _standings(self) -> list[Standing]:
        """How the ranks stand that this supervisor has started."""
        found = self.board.standings()
        return [s for s in found if s.supervisor == self._name] if self._is_one_of_many else found

    def _end_well(self, tree: Tree) -> None:
        """Let all ranks save before they end."""
        self._signals.append(signal.SIGTERM)
        deadline = time.monotonic() + _SAVE_S
        self._is_overdue(tree, self._standings(), time.monotonic())
        while tree.poll() is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def _start(self) -> Tree:
        environment = {
            LAUNCH: str(self.board.folder),
            SUPERVISOR: self._name,
            **self._plan.environment(self._num_cores),
        }
        command = launch_command(self._plan, self._words, folder=self.board.folder, environment=environment)
        variables = {**os.environ, "PATH": search_path(), **environment}
        if self._plan.engine == "local":  # rank 0 has the terminal
            self._followers: list[Follower] = []
            self._follow_others()
            return started_tree(command, environment=variables)
        self._followers = [
            Follower(self.board.log(0, "out"), _writer(sys.stdout.buffer)),
            Follower(self.board.log(0, "err"), _writer(sys.stderr.buffer)),
        ]
        self._follow_others()
        with self.launcher_log.open("ab") as log:
            return started_tree(command, environment=variables, stdout=log, stderr=log)

    def _follow_others(self) -> None:
        if not self._plan.settings.all_ranks:
            return
        for rank in range(1, abs(self._plan.processes)):
            write = _prefixed(_writer(sys.stderr.buffer), f"[{rank}] ".encode())
            self._followers.append(Follower(self.board.log(rank), write, by_line=True))

    def _follow(self, *, to_end: bool = False) -> None:
        for follower in self._followers:
            follower.follow(to_end=to_end)

    def _watch(self, tree: Tree) -> int:
        while (code := tree.poll()) is None:
            time.sleep(_POLL_S)
            self._follow()
            now = time.monotonic()
            if not (self._signals and self._asked_at is None) and not self._clock.is_due(now):
                continue
            standings = self._standings()
            self._clock.note(standings, now)
            if self._signals:
                if self._is_overdue(tree, standings, now):
                    return 128 + self._signals[0]
            elif self._has_failed_for_long(standings, now) or self._is_missing_ranks(standings, now):
                return 1
            elif self._is_done_for_long(standings, now):
                return 0
        return code

    def _is_overdue(self, tree: Tree, standings: Sequence[Standing], now: float) -> bool:
        """Ask all ranks to save and to end; tell whether that has taken too long, or a second signal has come."""
        if self._asked_at is None:
            self._asked_at = now
            here = [standing for standing in standings if is_gone(standing.process) is False]
            self.board.ask_to_stop(self._signals[0])
            for standing in here if self._plan.engine != "ray" else ():  # Ray's own handler would end its worker
                _send(int(standing.process["pid"]), self._signals[0])
            if not here:  # else those on other machines stop after the same batch, and save first
                tree.terminate()
        return len(self._signals) > 1 or now - self._asked_at > _SAVE_S

    def _has_failed_for_long(self, standings: Sequence[Standing], now: float) -> bool:
        failed = [s for s in standings if s.is_gone or (s.state != "began" and s.code != 0)]
        if not failed:
            self._failed_at = None
            return False
        if self._failed_at is None or failed[0].attempt != self._failed_attempt:
            self._failed_at, self._failed_attempt = now, failed[0].attempt
        restarts = self._plan.settings.max_restarts + self._plan.settings.max_failures
        return now - self._failed_at > (_RESTART_S if restarts else _PEERS_S)

    def _is_missing_ranks(self, standings: Sequence[Standing], now: float) -> bool:
        settings = self._plan.settings
        if not self._is_fixed or len(standings) >= self._num_here or self._clock.seconds(now) <= settings.timeout_s:
            return False
        there = ", ".join(standing.told for standing in standings) or "none"
        missing = [] if self._is_one_of_many else missing_ranks(standings, self._plan.processes)
        who = f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(map(str, missing))} of {self._plan.processes}"
        if self._is_one_of_many:
            who = f"{self._num_here - len(standings)} of the {self._num_here} ranks of this machine"
        told = f"{who} did not arrive within {settings.timeout_s:g} s"
        self._overdue = Verdict(
            1,
            f"error: {told} (launch.timeout_s); arrived: {there}\n"
            f"All of them must see the folder {self.board.folder.parent.parent}",
            told,
            missing[0] if missing else None,
        )
        return True

    def _is_done_for_long(self, standings: Sequence[Standing], now: float) -> bool:
        """Torch's agents wait for one another at the end, and sometimes for minutes, though every rank is done."""
        done = [s for s in standings if s.state == "ended" and s.code == 0]
        if not self._is_fixed or len(done) < self._num_here:
            return False
        self._done_at = self._done_at or now
        return now - self._done_at > _EXIT_S

    @contextmanager
    def _catching_signals(self) -> Iterator[None]:
        def note(signum: int, _frame: FrameType | None) -> None:
            self._signals.append(signum)

        before = {signum: signal.signal(signum, note) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)


class _Clock:
    """When to look how the ranks stand, and since when the newest start of all of them is under way."""

    def __init__(self, now: float) -> None:
        self._began_at = now
        self._looked_at = now
        self._attempt = 0

    def is_due(self, now: float) -> bool:
        """Tell whether it is time to look again: the folder may be on a slow disk of many machines."""
        return now - self._looked_at >= _LOOK_S

    def note(self, standings: Sequence[Standing], now: float) -> None:
        """Begin anew with a new start of all ranks."""
        self._looked_at = now
        attempt = max((standing.attempt for standing in standings), default=0)
        if attempt != self._attempt:
            self._attempt, self._began_at = attempt, now

    def seconds(self, now: float) -> float:
        """Seconds since all ranks were started."""
        return now - self._began_at


def _send(pid: int, signum: int) -> None:
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return


def _writer(stream: BinaryIO) -> Callable[[bytes], None]:
    def write(text: bytes) -> None:
        stream.write(text)
        stream.flush()

    return write


def _prefixed(write: Callable[[bytes], None], prefix: bytes) -> Callable[[bytes], None]:
    def prefixed(text: bytes) -> None:
        write(b"".join(prefix + line for line in text.splitlines(keepends=True)))

    return prefixed
