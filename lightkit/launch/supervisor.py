"""Starts all ranks of a launch, follows what they write and how they stand, and ends all of them together."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from lightkit.launch.blame import Verdict, judge, missing
from lightkit.launch.board import Board, Standing, new_folder, shared_folder
from lightkit.launch.commands import launch_command, search_path
from lightkit.launch.output import Follower, prefixed, writer
from lightkit.launch.patience import Patience, saving_s
from lightkit.launch.plan import Plan
from lightkit.launch.processes import Tree, started_tree
from lightkit.launch.ranks import LAUNCH, SUPERVISOR
from lightkit.runs.process import is_gone

__all__ = ["Supervisor"]

_POLL_S = 0.05


class Supervisor:
    """The process that a user has started and that starts the ranks.

    A signal asks all ranks to save and to end: after Ctrl-C they have 7 s for that, after SIGTERM, and SIGHUP, which a
    closed terminal sends, 14 s. A second signal ends them at once. A signal that this process was started to ignore,
    as `nohup` has it, is ignored.

    Args:
        plan: What to start.
        words: The command line after `lightkit`, which each rank gets.
        root: Folder of all runs; the folder of the launch is below it while it lasts. With several machines, each of
            which has a supervisor, all of them must see it.
        job: Tells this job from others with which it may share the place where several machines meet.
        num_cores: Cores of this machine.
    """

    def __init__(self, plan: Plan, words: Sequence[str], *, root: Path | str, num_cores: int, job: str = "") -> None:
        self._plan = plan
        self._words = list(words)
        self._num_cores = num_cores
        self._name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
        self._is_one_of_many = plan.engine == "torchrun" and plan.settings.num_nodes[1] > 1
        meeting = str(plan.settings.rendezvous).replace(":", "-")
        self._made_root = not Path(root).exists()
        self.board = Board(shared_folder(root, meeting, job) if self._is_one_of_many else new_folder(root))
        self.launcher_log = self.board.folder / f"launcher-{self._name}.log"
        self.torchrun_logs = self.board.folder / f"torchrun-{self._name}"
        self._patience = Patience(plan, self._num_here, time.monotonic())
        self._signals: list[int] = []
        self._asked_at: float | None = None
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
        fewest, most = self._plan.settings.num_nodes
        size = self._num_here if fewest == most else None
        return judge(self._standings(), self.board, launcher_code=code, launcher_log=self.launcher_log, size=size)

    def remove(self) -> None:
        """Remove the folder of the launch, or what is this supervisor's in it; the run's folder has the logs."""
        self.launcher_log.unlink(missing_ok=True)
        shutil.rmtree(self.torchrun_logs, ignore_errors=True)
        if self._is_one_of_many:
            self.board.forget(self._name)
        else:
            shutil.rmtree(self.board.folder, ignore_errors=True)
        with suppress(OSError):  # other launches are under way
            self.board.folder.parent.rmdir()
            if self._made_root:
                self.board.folder.parent.parent.rmdir()

    def newest_run(self) -> dict[str, Any] | None:
        """What rank 0 has told of the run, if this launch has got so far."""
        return self.board.newest_run(supervisors=[self._name] if self._is_one_of_many else None)

    @property
    def _num_here(self) -> int:
        """Number of ranks whose end this supervisor waits for."""
        return self._plan.local_processes if self._is_one_of_many else abs(self._plan.processes)

    def _own(self, standings: Sequence[Standing]) -> list[Standing]:
        """Those of the ranks that this supervisor has started."""
        return [s for s in standings if s.supervisor == self._name] if self._is_one_of_many else list(standings)

    def _standings(self) -> list[Standing]:
        return self._own(self.board.standings())

    def _end_well(self, tree: Tree) -> None:
        """Let all ranks save before they end."""
        self._signals.append(signal.SIGTERM)
        deadline = time.monotonic() + saving_s(signal.SIGTERM)
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
            Follower(self.board.log(0, "out"), writer(sys.stdout.buffer), skip=True),
            Follower(self.board.log(0, "err"), writer(sys.stderr.buffer), skip=True),
        ]
        self._follow_others()
        self.board.folder.mkdir(parents=True, exist_ok=True)  # where another supervisor was the last of its launch
        with self.launcher_log.open("ab") as log:
            return started_tree(command, environment=variables, stdout=log, stderr=log)

    def _follow_others(self) -> None:
        if not self._plan.settings.all_ranks:
            return
        for rank in range(1, abs(self._plan.processes)):
            write = prefixed(writer(sys.stderr.buffer), f"[{rank}] ".encode())
            self._followers.append(Follower(self.board.log(rank), write, by_line=True, skip=True))

    def _follow(self, *, to_end: bool = False) -> None:
        for follower in self._followers:
            follower.follow(to_end=to_end)

    def _watch(self, tree: Tree) -> int:
        while (code := tree.poll()) is None:
            time.sleep(_POLL_S)
            self._follow()
            now = time.monotonic()
            if not (self._signals and self._asked_at is None) and not self._patience.is_due(now):
                continue
            everywhere = self.board.standings()
            standings = self._own(everywhere)
            self._patience.note(max((s.attempt for s in everywhere), default=-1), now)
            if self._signals:
                if self._is_overdue(tree, standings, now):
                    return 128 + self._signals[0]
            elif self._patience.is_over(standings, now):
                return 1
            elif self._patience.misses(standings, len(everywhere), now):
                self._overdue = missing(
                    standings,
                    self._num_here,
                    timeout_s=self._plan.settings.timeout_s,
                    folder=self.board.folder.parent.parent,
                    is_share=self._is_one_of_many,
                )
                return 1
            elif self._patience.is_done(standings, now):
                return 0
        return code

    def _is_overdue(self, tree: Tree, standings: Sequence[Standing], now: float) -> bool:
        """Ask all ranks to save and to end; tell whether that has taken too long, or a second signal has come."""
        if self._asked_at is None:
            self._asked_at = now
            # Ranks know no SIGHUP; and Ray's own handler for signals would end its worker.
            signum = signal.SIGTERM if self._signals[0] == signal.SIGHUP else self._signals[0]
            here = [s for s in standings if is_gone(s.process) is False and self._plan.engine != "ray"]
            if not self._is_one_of_many:  # else those on other machines stop after the same batch, and save first
                self.board.ask_to_stop(signum, but=here)
            for standing in here:
                _send(int(standing.process["pid"]), signum)
            if all(standing.has_ended for standing in standings):
                tree.terminate()
        return len(self._signals) > 1 or now - self._asked_at > saving_s(self._signals[0])

    @contextmanager
    def _catching_signals(self) -> Iterator[None]:
        def note(signum: int, _frame: FrameType | None) -> None:
            self._signals.append(signum)

        # Nohup has it ignore SIGHUP, and a script that runs it in the background SIGINT.
        heeded = [each for each in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(each) != signal.SIG_IGN]
        asked = [signal.SIGTERM, *heeded]
        before = {signum: signal.signal(signum, note) for signum in asked}
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)


def _send(pid: int, signum: int) -> None:
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return
