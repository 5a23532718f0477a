"""Start all ranks of a launch, follow their output and status, end them together.

Find which failed first.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from lightkit.errors import OutputLost
from lightkit.launch.cluster import Job
from lightkit.launch.plan import THREADS, Plan
from lightkit.launch.process_tree import ProcessTree, search_path
from lightkit.launch.ranks import LAUNCH
from lightkit.launch.torchrun import agent_command
from lightkit.launch.worker import (
    RankStatus,
    list_ranks,
    log_path,
    make_launch_folder,
    request_stop,
)
from lightkit.runs.files import read_json

_POLL_S = 0.05
_STATUS_POLL_S = 0.25  # the folder may be on a slow disk of many machines
_PEERS_S = 10.0  # for the other ranks to end after a failure
_RESTART_S = 90.0  # for all ranks to begin again after a failure
# for the launcher to end after all ranks: torch's agents wait for one another, sometimes for
# minutes
_EXIT_S = 20.0
# After Ctrl-C all is to be over within ten seconds, with the time that killing takes. Senders of
# SIGTERM, such as a scheduler, often wait for no more than fifteen; a rank that is not done by then
# ends itself a little earlier.
_SAVE_S = {signal.SIGINT: 7.0, signal.SIGTERM: 14.0, signal.SIGHUP: 14.0}

# Raised by a rank because another one is gone: Horovod 0.28, torch 2.9 to 2.15 over gloo and NCCL,
# their stores.
_CONSEQUENCES = (
    *("HorovodInternalError", "DistBackendError", "DistNetworkError", "DistStoreError"),
    *("Interrupted", "LeftAlone"),
)
_LOST_PEER = re.compile(
    r"connection (?:was )?(?:closed by|reset by) (?:remote )?peer|connectfullmesh"
    r" failed|\bgloo\b.*(?:timed out|error)"
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


@dataclass
class _Moments:
    """Moments of a launch by the monotonic clock, in seconds; None for those that have not come.

    Args:
        began_s: The start of the launch, or of its ranks where they have started again.
        looked_s: The last look at the states of the ranks.
        start: Start of the ranks that was seen last.
        asked_s: The first signal, when the ranks were asked to save.
        since_s: The first look at which a condition held that has held ever since, by its name.
    """

    began_s: float
    looked_s: float
    start: object = None
    asked_s: float | None = None
    since_s: dict[str, float] = field(default_factory=dict)

    def lasts_s(self, name: str, *, holds: bool, now_s: float) -> float:
        """Return for how long a condition has held; 0 where it does not hold."""
        if not holds:
            self.since_s.pop(name, None)
            return 0.0
        return now_s - self.since_s.setdefault(name, now_s)


class Supervisor:
    """The process that a user has started and that starts the ranks.

    A signal asks all ranks to save and to end: after Ctrl-C they have 7 s for that, after SIGTERM,
    and SIGHUP, which a closed terminal sends, 14 s. A second signal ends them at once. A signal
    that this process was started to ignore, as with `nohup`, is ignored.

    Args:
        plan: The launch.
        words: The command line after `lightkit`, which each rank gets.
        root: Folder of all runs; the folder of the launch is below it while it lasts. With several
            machines, each of which has a supervisor, all of them must see it.
        num_cores: Cores of this machine.

    Raises:
        OSError: If the folder of the launch cannot be made.
    """

    def __init__(
        self, plan: Plan, words: Sequence[str], *, root: Path | str, num_cores: int
    ) -> None:
        self._plan = plan
        self._words = list(words)
        self._num_cores = num_cores
        # Torchrun has a supervisor on each machine, for the ranks there.
        self._is_one_of_many = plan.engine == "torchrun" and plan.settings.num_nodes[1] > 1
        self._size = plan.local_processes if self._is_one_of_many else plan.processes
        fewest, most = plan.settings.num_nodes
        self._is_elastic = fewest < most
        self._made_root = not Path(root).exists()
        self.folder = make_launch_folder(root)
        self.launcher_log = self.folder / "launcher.log"
        self._signals: list[int] = []
        self._output_error: Exception | None = None
        self._followers: list[_Follower] = []

    @property
    def signum(self) -> int | None:
        """The signal that has ended the launch, if one has."""
        return self._signals[0] if self._signals else None

    def run(self) -> LaunchResult:
        """Start all ranks, wait for their end, leave none behind."""
        # Nohup has it ignore SIGHUP, and a script that runs it in the background SIGINT.
        handled = [each for each in _SAVE_S if signal.getsignal(each) != signal.SIG_IGN]
        before = {
            each: signal.signal(each, lambda signum, _: self._signals.append(signum))
            for each in handled
        }
        try:
            tree = self._start()
            try:
                end = self._watch(tree)
            finally:
                tree.end(timeout_s=0.0 if self._signals[1:] else 2.0)
            self._copy_output(to_end=True)
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)
        if self._output_error is not None:
            raise self._output_error
        if isinstance(end, LaunchResult):
            return end
        return collect_result(
            self.folder, launcher_code=end, size=None if self._is_elastic else self._size
        )

    def remove(self) -> None:
        """Remove the folder of the launch; the run's folder has the logs."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):  # other launches are under way
            self.folder.parent.rmdir()
            if self._made_root:
                self.folder.parent.parent.rmdir()

    def newest_run(self) -> dict[str, Any] | None:
        """Return the run that rank 0 has announced, if this launch has got so far."""
        return read_json(self.folder / "run.json")

    def _start(self) -> ProcessTree:
        plan = self._plan
        folder = self.folder
        environment = {LAUNCH: str(folder), **plan.environment(self._num_cores)}
        command = launcher_command(plan, self._words, folder=folder, environment=environment)
        variables = {**os.environ, "PATH": search_path(), **environment}
        if plan.settings.all_ranks:
            self._followers = [
                _Follower(log_path(folder, rank), sys.stderr.buffer, prefix=f"[{rank}] ".encode())
                for rank in range(1, plan.processes)
            ]
        if plan.engine == "local":  # rank 0 has the terminal
            return ProcessTree(command, environment=variables)
        self._followers.append(_Follower(log_path(folder, 0, "out"), sys.stdout.buffer))
        self._followers.append(_Follower(log_path(folder, 0, "err"), sys.stderr.buffer))
        with self.launcher_log.open("ab") as log:
            return ProcessTree(command, environment=variables, stdout=log, stderr=log)

    def _watch(self, tree: ProcessTree) -> int | LaunchResult:
        """Wait for the end of the launcher, or until it has to be ended.

        Return its exit code or the result.
        """
        now_s = time.monotonic()
        moments = _Moments(began_s=now_s, looked_s=now_s)
        while (code := tree.poll()) is None:
            time.sleep(_POLL_S)
            self._copy_output()
            now_s = time.monotonic()
            end: int | LaunchResult | None = None
            if self._signals:
                end = self._stop_ranks(tree, moments, now_s=now_s)
            elif now_s - moments.looked_s >= _STATUS_POLL_S:
                moments.looked_s = now_s
                end = self._judge_ranks(moments, now_s=now_s)
            if end is not None:
                return end
        return code

    def _stop_ranks(self, tree: ProcessTree, moments: _Moments, *, now_s: float) -> int | None:
        """Ask all ranks to save after a signal; return the exit code once their time is over."""
        first = signal.Signals(self._signals[0])
        if moments.asked_s is None:
            moments.asked_s = now_s
            request_stop(self.folder, first if first == signal.SIGINT else signal.SIGTERM)
            if all(status.has_ended for status in list_ranks(self.folder)):
                tree.program.terminate()
        is_repeated = len(self._signals) > 1
        is_late = now_s - moments.asked_s > _SAVE_S[first]
        return 128 + first if is_repeated or is_late else None

    def _judge_ranks(self, moments: _Moments, *, now_s: float) -> int | LaunchResult | None:
        """Return the launch's exit code or result where the launcher does not end in time.

        None to wait on.
        """
        settings = self._plan.settings
        ranks = list_ranks(self.folder)

        # After a restart all of them begin anew, and have the time to meet once more.
        if ranks and ranks[0].start != moments.start:
            moments.start = ranks[0].start
            moments.began_s = now_s

        # A failed rank takes the others with it, or is started again.
        has_failed = any(status.has_failed for status in ranks)
        restarts = self._is_elastic or settings.max_restarts + settings.max_failures > 0
        peers_s = max(_RESTART_S, settings.timeout_s) if restarts else _PEERS_S
        if moments.lasts_s("failed", holds=has_failed, now_s=now_s) > peers_s:
            return 1

        # All have ended well, but the launcher waits.
        is_done = len(ranks) >= self._size and all(
            status.code == 0 and status.has_ended for status in ranks
        )
        if moments.lasts_s("done", holds=is_done, now_s=now_s) > _EXIT_S:
            return 0

        # A machine that may be one too many waits for as long as the others train.
        is_late = len(ranks) < self._size and now_s - moments.began_s > settings.timeout_s
        if is_late and not self._is_elastic:
            return self._describe_late_ranks(ranks)
        return None

    def _copy_output(self, *, to_end: bool = False) -> None:
        try:
            for follower in self._followers:
                follower.follow(to_end=to_end)
        except OSError as error:
            # `| head`, a full disk, or a terminal that was closed: all ranks save before they end
            is_left = isinstance(error, BrokenPipeError)
            lost = OutputLost(
                f"the output of the ranks cannot be written: {error.strerror or error}"
            )
            self._output_error = error if is_left else lost
            self._followers = []
            self._signals.append(signal.SIGTERM)

    def _describe_late_ranks(self, ranks: Sequence[RankStatus]) -> LaunchResult:
        late = sorted(set(range(self._size)) - {status.rank for status in ranks})
        names = f"rank{'s' if late[1:] else ''} {', '.join(map(str, late))} of {self._size}"
        # the numbers of this machine's ranks are unknown before they arrive
        if self._is_one_of_many:
            late = []
            names = f"{self._size - len(ranks)} of the {self._size} ranks of this machine"
        summary = f"{names} did not arrive within {self._plan.settings.timeout_s:g} s"
        arrived = ", ".join(map(str, ranks)) or "none"
        folder = self.folder.parent.parent
        message = (
            f"error: {summary} (launch.timeout_s); arrived: {arrived}\nAll of them must see the"
            f" folder {folder}"
        )
        return LaunchResult(1, message, summary, late[0] if late else None)


def launcher_command(
    plan: Plan, words: Sequence[str], *, folder: Path, environment: Mapping[str, str]
) -> list[str]:
    """Return the command that starts all ranks of a launch.

    Args:
        plan: The launch.
        words: The command line after `lightkit`, which each rank gets.
        folder: Folder of the launch.
        environment: Variables that each rank needs in addition to those of this process.
    """
    settings = plan.settings
    rank = [sys.executable, "-m", "lightkit", *words]
    if plan.engine in ("spark", "ray"):
        threads = os.environ.get(THREADS) or "1"
        job = Job(
            plan, list(words), {THREADS: threads, **environment}, str(Path.cwd()), str(folder)
        )
        return [sys.executable, "-m", f"lightkit.launch.{plan.engine}", json.dumps(asdict(job))]
    if plan.engine == "horovod":
        return [
            *(sys.executable, "-m", "horovod.runner.launch", f"--{settings.controller}"),
            *(
                "--num-proc",
                str(plan.processes),
                "--hosts",
                settings.hosts or f"localhost:{plan.processes}",
            ),
            *("--start-timeout", str(max(1, round(settings.timeout_s)))),
            *(
                ["--network-interfaces", settings.network_interface]
                if settings.network_interface
                else []
            ),
            *rank,
        ]
    if plan.engine == "torchrun":
        return agent_command(plan, words, folder=folder, environ=os.environ)
    if plan.forks:
        return [sys.executable, "-m", "lightkit.cli.forked_ranks", str(plan.processes), *words]
    return rank


# -- output ----------------------------------------------------------------------------------------


class _Follower:
    """Copies new lines of a file, which may not exist yet, to a stream.

    Args:
        path: The file.
        stream: Takes the lines.
        prefix: Put before each line.
    """

    def __init__(self, path: Path, stream: BinaryIO, *, prefix: bytes = b"") -> None:
        self._path = path
        self._stream = stream
        self._prefix = prefix
        self._offset = 0

    def follow(self, *, to_end: bool = False) -> None:
        """Copy new lines.

        Args:
            to_end: The file is complete: copy a last line without its end, too.
        """
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return
        text = text if to_end else text[: text.rfind(b"\n") + 1]
        self._offset += len(text)
        if text:
            self._stream.write(
                b"".join(self._prefix + line for line in text.splitlines(keepends=True))
            )
            self._stream.flush()


# -- the result ------------------------------------------------------------------------------------


def collect_result(folder: Path, *, launcher_code: int, size: int | None) -> LaunchResult:
    """Collect how a launch ended, once all of its processes have.

    Args:
        folder: Folder of the launch.
        launcher_code: Exit code of the launcher.
        size: Number of ranks, if it was known before.
    """
    ranks = list_ranks(folder)
    failed = [status for status in ranks if status.state == "began" or status.code != 0]
    if failed:
        if all(status.kind == "Interrupted" for status in failed):
            return LaunchResult(failed[0].code or 130, failed[0].message, None, failed[0].rank)
        return _describe_failure(folder, failed)
    if launcher_code == 0 and ranks and len(ranks) >= (size or 0):
        return LaunchResult(0)
    summary = f"{len(ranks)} of {size or 'all'} ranks have arrived, and none has failed"
    return _describe_launcher(_read_log(folder / "launcher.log"), launcher_code, summary)


def _describe_launcher(log: str, launcher_code: int, summary: str) -> LaunchResult:
    """Describe the end of a launcher without a rank that failed.

    Its own error, else what it left of the ranks.
    """
    if launcher_code and (
        error := re.search(r"^error:(?!.*^error:).*", log, re.MULTILINE | re.DOTALL)
    ):
        # Of a launcher of lightkit's own: a package is missing, ...
        return LaunchResult(
            2 if launcher_code == 2 else 1, error[0].rstrip("\n"), error[0].splitlines()[0]
        )
    message = f"error: {summary}; the launcher ended with code {launcher_code}{_format_tail(log)}"
    return LaunchResult(1, message, summary)


def _describe_failure(folder: Path, failed: Sequence[RankStatus]) -> LaunchResult:
    """Describe the rank that failed first.

    An error of its own, a hang, an end without a message, a consequence.
    """
    first, *others = sorted(failed, key=_order_failure)
    code, message, summary = _describe_first(folder, first, others)
    for status in failed if code not in _MISTAKES else ():
        if status is not first and status.state == "ended" and status.message != first.message:
            message += f"\n{status} ended because of it{f': {status.kind}' if status.kind else ''}"
    return LaunchResult(code, message, summary, first.rank, first.kind)


def _order_failure(status: RankStatus) -> tuple[int, float, int]:
    """Order failed ranks: causes before consequences, then by time and number."""
    if status.state == "ended":
        is_lost_peer = status.kind == "RuntimeError" and _LOST_PEER.search(
            _last_line(status.message)
        )
        place = 4 if status.kind in _CONSEQUENCES or is_lost_peer else 0
    elif status.state == "began":
        place = 2
    else:
        place = 3 if status.waits_for else 1
    return place, status.at_s, status.rank


def _describe_first(
    folder: Path, first: RankStatus, others: Sequence[RankStatus]
) -> tuple[int, str, str]:
    """Return code, message and summary of the rank that failed first.

    Another may have waited for it.
    """
    text = first.message.rstrip()
    code = first.code or 1
    if first.state == "stalled":
        waits = "" if first.waits_for is None else f"; it waits for the others in {first.waits_for}"
        message = f"error: {first} hangs{waits}. Its stacks:\n{text}"
        summary = f"rank {first.rank} hung{f' at {first.line}' if first.line else ''}"
        return code, message, summary
    if first.state == "ended":
        message = text if first.rank == 0 and text.startswith("error:") else f"{first}:\n{text}"
        return code, message, f"rank {first.rank}: {_last_line(text)}"

    # without a message of its own: another that waited for it saw it stop, or it ended
    for waiting in others:
        if waiting.state == "stalled":
            message = (
                f"error: {first} did not answer: it was stopped, or hung where even its watchdog"
                f" could not run; {waiting} waited for it in"
                f" {waiting.waits_for or 'its own code'}:\n{waiting.message.rstrip()}"
            )
            return waiting.code or 1, message, f"rank {first.rank} hung"
    message = (
        f"error: {first} ended without a message: it was killed (kill -9, or by the kernel for want"
        " of memory), or native code has"
        f" crashed{_format_tail(_read_log(log_path(folder, first.rank)))}"
    )
    return code, message, f"rank {first.rank} was killed or crashed"


def _read_log(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _format_tail(log: str) -> str:
    lines = log.splitlines()[-_TAIL_LINES:]
    return ". The end of its output:\n" + "\n".join(f"  {line}" for line in lines) if lines else ""
