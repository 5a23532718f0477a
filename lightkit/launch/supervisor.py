"""Start all ranks of a launch, follow their output and status, and end all of them together."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from lightkit.launch.driver import driver_command
from lightkit.launch.local import ProcessTree, launcher_command, search_path, start_tree
from lightkit.launch.output import Follower, writer
from lightkit.launch.plan import Plan
from lightkit.launch.ranks import LAUNCH, SUPERVISOR
from lightkit.launch.result import LaunchResult, collect_result, describe_late_ranks
from lightkit.launch.status import RankStatus, StatusStore, make_folder, make_shared_folder

__all__ = ["Supervisor"]

_POLL_S = 0.05
_STATUS_POLL_S = 0.25  # the folder may be on a slow disk of many machines
_PEERS_S = 10.0  # for the other ranks to end after a failure
_RESTART_S = 90.0  # for all ranks to begin again after a failure
_EXIT_S = 20.0  # torch's agents wait for one another at the end, sometimes for minutes


class Timeouts:
    """Timeouts of the ranks of a launch.

    Args:
        plan: The launch.
        size: Number of ranks that the supervisor has to see.
        now_s: Seconds on a monotonic clock.
    """

    def __init__(self, plan: Plan, size: int, now_s: float) -> None:
        self._plan, self._size = plan, size
        self._began_s = now_s
        self._attempt = -1
        self._failed: tuple[int, float] | None = None
        self._done_s: float | None = None

    def check(
        self, ranks: Sequence[RankStatus], everywhere: Sequence[RankStatus], now_s: float
    ) -> Literal["failed", "late", "done"] | None:
        """Tell whether to stop waiting.

        Args:
            ranks: Status of the supervisor's own ranks.
            everywhere: Status of the ranks on all machines.
            now_s: Seconds on a monotonic clock.

        Returns:
            `failed`: ranks have failed, and the others should have ended, or been started again, by now. `late`: ranks
            have not arrived in time. `done`: all ranks have ended, and only torch's agent has not.
        """
        settings = self._plan.settings
        fewest, most = settings.num_nodes
        attempt = max((status.attempt for status in everywhere), default=-1)
        if attempt != self._attempt:
            self._attempt, self._began_s = attempt, now_s
        failed = [s.attempt for s in ranks if s.is_lost or (s.state != "began" and s.code != 0)]
        if failed:
            if self._failed is None or self._failed[0] != failed[0]:
                self._failed = failed[0], now_s
            may_restart = settings.max_restarts + settings.max_failures > 0 or fewest < most
            limit_s = max(_RESTART_S, settings.timeout_s) if may_restart else _PEERS_S
            if now_s - self._failed[1] > limit_s:
                return "failed"
        else:
            self._failed = None
        is_full = fewest == most or len(everywhere) < abs(self._plan.processes)  # else they train without this machine
        if len(ranks) < self._size and now_s - self._began_s > settings.timeout_s and is_full:
            return "late"
        if self._plan.engine != "torchrun" or sum(s.is_done and s.has_ended for s in ranks) < self._size:
            self._done_s = None
            return None
        self._done_s = self._done_s or now_s
        return "done" if now_s - self._done_s > _EXIT_S else None


class Supervisor:
    """The process that a user has started and that starts the ranks.

    A signal asks all ranks to save and to end: after Ctrl-C they have 7 s for that, after SIGTERM, and SIGHUP, which a
    closed terminal sends, 14 s. A second signal ends them at once. A signal that this process was started to ignore,
    as with `nohup`, is ignored.

    Args:
        plan: The launch.
        words: The command line after `lightkit`, which each rank gets.
        root: Folder of all runs; the folder of the launch is below it while it lasts. With several machines, each of
            which has a supervisor, all of them must see it.
        job: Digest that tells this job from others which several machines may start with the same rendezvous.
        num_cores: Cores of this machine.
    """

    def __init__(self, plan: Plan, words: Sequence[str], *, root: Path | str, num_cores: int, job: str = "") -> None:
        self._plan = plan
        self._words = list(words)
        self._num_cores = num_cores
        self._name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
        self._is_one_of_many = plan.engine == "torchrun" and plan.settings.num_nodes[1] > 1
        self._size = plan.local_processes if self._is_one_of_many else abs(plan.processes)
        self._made_root = not Path(root).exists()
        rendezvous = str(plan.settings.rendezvous)
        self.store = StatusStore(
            make_shared_folder(root, rendezvous, job) if self._is_one_of_many else make_folder(root)
        )
        self.launcher_log = self.store.folder / f"launcher-{self._name}.log"
        self._signals: list[int] = []
        self._asked_s: float | None = None
        self._followers: list[Follower] = []

    @property
    def signum(self) -> int | None:
        """The signal that has ended the launch, if one has."""
        return self._signals[0] if self._signals else None

    def run(self) -> LaunchResult:
        """Start all ranks, wait for their end, leave none behind."""

        def note(signum: int, _frame: FrameType | None) -> None:
            self._signals.append(signum)

        # Nohup has it ignore SIGHUP, and a script that runs it in the background SIGINT.
        heeded = [each for each in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(each) != signal.SIG_IGN]
        before = {signum: signal.signal(signum, note) for signum in (signal.SIGTERM, *heeded)}
        try:
            tree = self._start()
            try:
                code = self._watch(tree)
            except BrokenPipeError:  # as with `| head`: let all ranks save before they end
                self._signals.append(signal.SIGTERM)
                deadline_s = time.monotonic() + _saving_s(signal.SIGTERM)
                self._is_overdue(tree, self._list_own(), time.monotonic())
                while tree.poll() is None and time.monotonic() < deadline_s:
                    time.sleep(_POLL_S)
                raise
            finally:
                tree.terminate()
                tree.end(timeout_s=0.0 if self._signals[1:] else 2.0)
            for follower in self._followers:
                follower.follow(to_end=True)
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)
        if isinstance(code, LaunchResult):
            return code
        fewest, most = self._plan.settings.num_nodes
        size = self._size if fewest == most else None
        return collect_result(
            self._list_own(), self.store, launcher_code=code, launcher_log=self.launcher_log, size=size
        )

    def remove(self) -> None:
        """Remove the folder of the launch, or this supervisor's files in it; the run's folder has the logs."""
        self.launcher_log.unlink(missing_ok=True)
        shutil.rmtree(self.store.folder / f"torchrun-{self._name}", ignore_errors=True)
        if self._is_one_of_many:
            self.store.forget(self._name)
        else:
            shutil.rmtree(self.store.folder, ignore_errors=True)
        with suppress(OSError):  # other launches are under way
            self.store.folder.parent.rmdir()
            if self._made_root:
                self.store.folder.parent.parent.rmdir()

    def newest_run(self) -> dict[str, Any] | None:
        """Return the run that rank 0 has announced, if this launch has got so far."""
        return self.store.newest_run(supervisors=[self._name] if self._is_one_of_many else None)

    def _list_own(self) -> list[RankStatus]:
        """List the status of the ranks that this supervisor has started."""
        ranks = self.store.list_ranks()
        return [each for each in ranks if each.supervisor == self._name] if self._is_one_of_many else ranks

    def _start(self) -> ProcessTree:
        plan, folder = self._plan, self.store.folder
        environment = {LAUNCH: str(folder), SUPERVISOR: self._name, **plan.environment(self._num_cores)}
        make_command = driver_command if plan.engine in ("spark", "ray") else launcher_command
        command = make_command(plan, self._words, folder=folder, environment=environment)
        variables = {**os.environ, "PATH": search_path(), **environment}
        errors = writer(sys.stderr.buffer)
        if plan.settings.all_ranks:
            self._followers = [
                Follower(self.store.log(rank), errors, prefix=f"[{rank}] ".encode())
                for rank in range(1, abs(plan.processes))
            ]
        if plan.engine == "local":  # rank 0 has the terminal
            return start_tree(command, environment=variables)
        self._followers.append(Follower(self.store.log(0, "out"), writer(sys.stdout.buffer)))
        self._followers.append(Follower(self.store.log(0, "err"), errors))
        folder.mkdir(parents=True, exist_ok=True)  # another supervisor may have been the last of its launch
        with self.launcher_log.open("ab") as log:
            return start_tree(command, environment=variables, stdout=log, stderr=log)

    def _watch(self, tree: ProcessTree) -> int | LaunchResult:
        """Wait for the end of the launcher, or until it has to be ended; return its exit code or the result."""
        timeouts = Timeouts(self._plan, self._size, time.monotonic())
        looked_s = time.monotonic()
        while (code := tree.poll()) is None:
            time.sleep(_POLL_S)
            for follower in self._followers:
                follower.follow()
            now_s = time.monotonic()
            if now_s - looked_s < _STATUS_POLL_S and not (self._signals and self._asked_s is None):
                continue
            looked_s = now_s
            ranks = self._list_own()
            if self._signals:
                if self._is_overdue(tree, ranks, now_s):
                    return 128 + self._signals[0]
                continue
            match timeouts.check(ranks, self.store.list_ranks() if self._is_one_of_many else ranks, now_s):
                case "failed":
                    return 1
                case "done":
                    return 0
                case "late":
                    return describe_late_ranks(
                        ranks,
                        self._size,
                        timeout_s=self._plan.settings.timeout_s,
                        folder=self.store.folder.parent.parent,
                        is_share=self._is_one_of_many,
                    )
        return code

    def _is_overdue(self, tree: ProcessTree, ranks: Sequence[RankStatus], now_s: float) -> bool:
        """Ask all ranks to save and to end; tell whether that takes too long, or a second signal has come."""
        if self._asked_s is None:
            self._asked_s = now_s
            # Ranks know no SIGHUP; and Ray's own handler for signals would end its worker.
            signum = signal.SIGTERM if self._signals[0] == signal.SIGHUP else self._signals[0]
            here = [s for s in ranks if self._plan.engine != "ray" and s.is_here]
            if not self._is_one_of_many:  # else those on other machines stop after the same batch, and save first
                self.store.request_stop(signum, exclude=here)
            for status in here:
                with suppress(ProcessLookupError):
                    os.kill(int(status.process["pid"]), signum)
            if all(status.has_ended for status in ranks):
                tree.terminate()
        return len(self._signals) > 1 or now_s - self._asked_s > _saving_s(self._signals[0])


def _saving_s(signum: int) -> float:
    """Return the seconds that ranks have to save and to end after a signal.

    After Ctrl-C all is to be over within ten seconds, with the time that killing takes. Senders of SIGTERM, such as a
    scheduler, often wait for no more than fifteen; a rank that is not done by then ends itself a little earlier.
    """
    return 7.0 if signum == signal.SIGINT else 14.0
