"""Start all ranks of a launch, follow their output and status, end all of them together, and say which failed first."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, Literal

from lightkit.launch.local import ProcessTree, launcher_command, search_path
from lightkit.launch.plan import Plan
from lightkit.launch.ranks import LAUNCH, SUPERVISOR
from lightkit.launch.worker import RankStatus, StatusStore
from lightkit.runs.lock import is_gone

_POLL_S = 0.05
_STATUS_POLL_S = 0.25  # the folder may be on a slow disk of many machines
_PEERS_S = 10.0  # for the other ranks to end after a failure
_RESTART_S = 90.0  # for all ranks to begin again after a failure
_EXIT_S = 20.0  # torch's agents wait for one another at the end, sometimes for minutes

# Raised by a rank because another one is gone: Horovod 0.28, torch 2.9 to 2.15 over gloo and NCCL, their stores.
_CONSEQUENCES = (
    *("HorovodInternalError", "DistBackendError", "DistNetworkError", "DistStoreError"),
    *("Interrupted", "LeftAlone"),
)
_LOST_PEER = re.compile(
    r"connection (?:was )?(?:closed by|reset by) (?:remote )?peer|connectfullmesh failed|\bgloo\b.*(?:timed out|error)"
    r"|broken pipe|socket (?:timeout|closed)|recvvalue failed|peer .* (?:closed|lost)",
    re.IGNORECASE,
)
_TAIL_LINES = 20
_MISTAKES = (2, 3, 75)  # of the config, the data or the moment: the other ranks have nothing to add


@dataclass(frozen=True)
class LaunchResult:
    """How a launch ended.

    Args:
        code: Exit code.
        message: Text to print, that of the failing rank first; None if all is well.
        summary: One line of it for the run's records.
        rank: The failing rank.
        kind: Name of the exception that ended it.
    """

    code: int
    message: str | None = None
    summary: str | None = None
    rank: int | None = None
    kind: str | None = None


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
        if not failed:
            self._failed = None
        elif self._failed is None or self._failed[0] != failed[0]:
            self._failed = failed[0], now_s
        may_restart = settings.max_restarts + settings.max_failures > 0 or fewest < most
        limit_s = max(_RESTART_S, settings.timeout_s) if may_restart else _PEERS_S
        if self._failed is not None and now_s - self._failed[1] > limit_s:
            return "failed"
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

    Raises:
        OSError: If the folder of the launch cannot be made.
    """

    def __init__(self, plan: Plan, words: Sequence[str], *, root: Path | str, num_cores: int, job: str = "") -> None:
        self._plan = plan
        self._words = list(words)
        self._num_cores = num_cores
        self._name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
        self._is_one_of_many = plan.engine == "torchrun" and plan.settings.num_nodes[1] > 1
        self._size = plan.local_processes if self._is_one_of_many else abs(plan.processes)
        self._made_root = not Path(root).exists()
        shared = f"{plan.settings.rendezvous}-{job}" if self._is_one_of_many else None
        self.store = StatusStore.make(root, shared)
        self.launcher_log = self.store.folder / f"launcher-{self._name}.log"
        self._signals: list[int] = []
        self._asked_s: float | None = None
        self._followers: list[_Follower] = []

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
                while tree.poll() is None and not self._is_overdue(tree, self._list_own(), time.monotonic()):
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
        plan, store = self._plan, self.store
        environment = {LAUNCH: str(store.folder), SUPERVISOR: self._name, **plan.environment(self._num_cores)}
        command = launcher_command(plan, self._words, folder=store.folder, environment=environment)
        variables = {**os.environ, "PATH": search_path(), **environment}
        errors = make_writer(sys.stderr.buffer)
        if plan.settings.all_ranks:
            self._followers = [
                _Follower(store.log(rank), errors, prefix=f"[{rank}] ".encode())
                for rank in range(1, abs(plan.processes))
            ]
        if plan.engine == "local":  # rank 0 has the terminal
            return ProcessTree(command, environment=variables)
        self._followers.append(_Follower(store.log(0, "out"), make_writer(sys.stdout.buffer)))
        self._followers.append(_Follower(store.log(0, "err"), errors))
        store.folder.mkdir(parents=True, exist_ok=True)  # another supervisor may have been the last of its launch
        with self.launcher_log.open("ab") as log:
            return ProcessTree(command, environment=variables, stdout=log, stderr=log)

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
                    return self._describe_late_ranks(ranks)
        return code

    def _is_overdue(self, tree: ProcessTree, ranks: Sequence[RankStatus], now_s: float) -> bool:
        """Ask all ranks to save and to end; tell whether that takes too long, or a second signal has come.

        After Ctrl-C all is to be over within ten seconds, with the time that killing takes. Senders of SIGTERM, such as
        a scheduler, often wait for no more than fifteen; a rank that is not done by then ends itself a little earlier.
        """
        if self._asked_s is None:
            self._asked_s = now_s
            # Ranks know no SIGHUP; and Ray's own handler for signals would end its worker.
            signum = signal.SIGTERM if self._signals[0] == signal.SIGHUP else self._signals[0]
            here = [s for s in ranks if self._plan.engine != "ray" and is_gone(s.process) is False]
            if not self._is_one_of_many:  # else those on other machines stop after the same batch, and save first
                self.store.request_stop(signum, exclude=here)
            for status in here:
                with suppress(ProcessLookupError):
                    os.kill(int(status.process["pid"]), signum)
            if all(status.has_ended for status in ranks):
                tree.terminate()
        limit_s = 7.0 if self._signals[0] == signal.SIGINT else 14.0
        return len(self._signals) > 1 or now_s - self._asked_s > limit_s

    def _describe_late_ranks(self, ranks: Sequence[RankStatus]) -> LaunchResult:
        late = sorted(set(range(self._size)) - {status.rank for status in ranks})
        names = f"{_format_ranks(late)} of {self._size}"
        if self._is_one_of_many:  # the numbers of this machine's ranks are unknown before they arrive
            late, names = [], f"{self._size - len(ranks)} of the {self._size} ranks of this machine"
        summary = f"{names} did not arrive within {self._plan.settings.timeout_s:g} s"
        arrived, folder = ", ".join(map(str, ranks)) or "none", self.store.folder.parent.parent
        message = f"error: {summary} (launch.timeout_s); arrived: {arrived}\nAll of them must see the folder {folder}"
        return LaunchResult(1, message, summary, late[0] if late else None)


# -- output --------------------------------------------------------------------------------------------------------


class _Follower:
    """Copies new text of a file, which may not exist yet, to a function; text that exists already is left out.

    Args:
        path: The file.
        write: Takes the text.
        prefix: Put before each line; only whole lines are copied then.
    """

    def __init__(self, path: Path, write: Callable[[bytes], None], *, prefix: bytes = b"") -> None:
        self._path = path
        self._offset = path.stat().st_size if path.is_file() else 0
        self._write = write
        self._prefix = prefix

    def follow(self, *, to_end: bool = False) -> None:
        """Copy new text.

        Args:
            to_end: The file is complete: copy a last line without its end, too.
        """
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return
        if self._prefix and not to_end:
            text = text[: text.rfind(b"\n") + 1]
        self._offset += len(text)
        if text:
            lines = text.splitlines(keepends=True) if self._prefix else [text]
            self._write(b"".join(self._prefix + line for line in lines))


def make_writer(stream: BinaryIO) -> Callable[[bytes], None]:
    """Return a function that writes to a stream at once, and nothing more once its terminal has been closed."""

    def write(text: bytes) -> None:
        try:
            stream.write(text)
            stream.flush()
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

    return write


# -- the result ----------------------------------------------------------------------------------------------------


def collect_result(
    ranks: Sequence[RankStatus], store: StatusStore, *, launcher_code: int, launcher_log: Path, size: int | None
) -> LaunchResult:
    """Collect how a launch ended, once all of its processes have.

    Args:
        ranks: Status of the ranks.
        store: Where their logs are.
        launcher_code: Exit code of the launcher.
        launcher_log: Its output.
        size: Number of ranks, if it was known before.
    """
    failed = [status for status in ranks if not status.is_done]
    if launcher_code == 0 and ranks and not failed and len(ranks) >= (size or 0):
        return LaunchResult(0)
    if failed and all(status.kind == "Interrupted" for status in failed):
        first = min(failed, key=lambda status: status.rank)
        return LaunchResult(first.code or 130, first.message, None, first.rank)
    if failed:
        return _describe_failure(store, failed)
    log = launcher_log.read_text(encoding="utf-8", errors="replace") if launcher_log.is_file() else ""
    if launcher_code == 2 and (error := re.search(r"^error:(?!.*^error:).*", log, re.MULTILINE | re.DOTALL)):
        return LaunchResult(2, error[0].rstrip("\n"))  # a launcher of lightkit's own: a package is missing, ...
    missing = sorted(set(range(size or 0)) - {status.rank for status in ranks})
    summary = "every rank has reported success"
    if not ranks:
        summary = "no rank has begun"
    elif missing:
        verb = "have" if missing[1:] else "has"
        summary = f"{_format_ranks(missing)} {verb} not arrived; arrived: {', '.join(map(str, ranks))}"
    message = f"error: {summary}; the launcher ended with code {launcher_code}{_format_tail(log)}"
    return LaunchResult(1, message, summary)


def _describe_failure(store: StatusStore, failed: Sequence[RankStatus]) -> LaunchResult:
    """Describe the rank that failed first: an error of its own, a hang, an end without a message, a consequence."""

    def order(status: RankStatus) -> tuple[int, float, int]:
        if status.state == "stalled":
            place = 1 if status.waits_for is None else 3
        elif status.state == "began":
            place = 2
        else:
            is_lost_peer = status.kind == "RuntimeError" and _LOST_PEER.search(_last_line(status.message or ""))
            place = 4 if status.kind in _CONSEQUENCES or is_lost_peer else 0
        return place, status.at_s or 0.0, status.rank

    first, *others = sorted(failed, key=order)
    consequences = [
        f"{status} ended because of it{f': {status.kind}' if status.kind else ''}"
        for status in sorted(others, key=lambda status: status.rank)
        if status.state == "ended" and status.message != first.message and first.code not in _MISTAKES
    ]
    text = (first.message or "").rstrip()
    code = first.code or 1
    if first.state == "stalled":
        waits = "" if first.waits_for is None else f"; it waits for the others in {first.waits_for}"
        message = f"error: {first} hangs{waits}. Its stacks:\n{text}"
        summary = f"rank {first.rank} hung{f' at {first.line}' if first.line else ''}"
    elif first.state == "ended":
        message = text if first.rank == 0 and text.startswith("error:") else f"{first}:\n{text}"
        summary = f"rank {first.rank}: {_last_line(text)}"
    elif waiting := next((status for status in others if status.state == "stalled"), None):
        message = (
            f"error: {first} did not answer: it was stopped, or hung where even its watchdog could not run; "
            f"{waiting} waited for it in {waiting.waits_for or 'its own code'}:\n{(waiting.message or '').rstrip()}"
        )
        summary, code = f"rank {first.rank} hung", waiting.code or 1
    else:
        path = store.log(first.rank)
        log = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        message = (
            f"error: {first} ended without a message: it was killed (kill -9, or by the kernel for want of memory), "
            f"or native code has crashed{_format_tail(log)}"
        )
        summary = f"rank {first.rank} was killed or crashed"
    return LaunchResult(code, "\n".join([message, *consequences]), summary, first.rank, first.kind)


def _format_ranks(numbers: Sequence[int]) -> str:
    return f"rank{'s' if numbers[1:] else ''} {', '.join(map(str, numbers))}"


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _format_tail(log: str) -> str:
    lines = log.splitlines()[-_TAIL_LINES:]
    return ". The end of its output:\n" + "\n".join(f"  {line}" for line in lines) if lines else ""
