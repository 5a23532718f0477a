"""One rank of a launch, and the folder in which ranks and supervisor exchange their status.

One protocol for all engines. `torch.distributed.elastic` keeps error files too, but knows neither exit codes, nor ranks
that hang, nor which of two errors within a second came first; and Horovod, Spark and Ray do not write them.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from lightkit.errors import ConfigError, Interrupted, LightkitError, format_interruption
from lightkit.launch.ranks import ATTEMPT, LAUNCH, PREEMPTED, SUPERVISOR, Rank, this_rank
from lightkit.launch.watchdog import STALLED, Stall
from lightkit.runs.files import read_json, write_json
from lightkit.runs.lock import describe_process, is_gone
from lightkit.runs.signals import SignalWatch

DATA_CHANGED = "DataChanged"
"""Name of the exception after which all ranks have to begin again, in a new run."""
INHERITED = "_LIGHTKIT_RUN"
"""Environment variable with which the process that begins a run passes it to the ranks that Lightning starts."""

_LAUNCHES = ".launch"  # folder below that of all runs, for the folders of launches
_SHARED = "torchrun-"
_DAY_S = 86400.0
_POLL_S = 0.05
_STOP_POLL_S = 0.3
_WRITTEN_S = 5.0  # a rank may be killed before it has written its file
_CLOCK_SKEW_S = 60.0  # clocks of machines differ, and ranks do not begin together
_SAME_ERROR_S = 2.0  # ranks meet the same error at about the same time


@dataclass(frozen=True)
class RankStatus:
    """Status of one rank.

    Args:
        rank: Its number.
        attempt: How often all ranks have been started again.
        state: `began`; `ended`, with any exit code; or `stalled`, if its watchdog has ended it.
        process: Result of `describe_process` in it.
        code: Its exit code once it has ended.
        kind: Name of the exception that ended it.
        message: Error message or traceback.
        waits_for: Collective in which it waited for the others when it ended.
        at_s: When it ended, seconds since 1970.
        supervisor: Supervisor that has started it.
        line: Line of code at which it hung.
    """

    rank: int
    attempt: int = 0
    state: Literal["began", "ended", "stalled"] = "began"
    process: dict[str, Any] = field(default_factory=dict)
    code: int | None = None
    kind: str | None = None
    message: str | None = None
    waits_for: str | None = None
    at_s: float | None = None
    supervisor: str | None = None
    line: str | None = None

    @property
    def has_ended(self) -> bool:
        """Whether its process has ended, as far as this machine can tell."""
        return is_gone(self.process) is True

    @property
    def is_lost(self) -> bool:
        """Whether its process has ended without a status, as far as this machine can tell."""
        return self.state == "began" and self.has_ended

    @property
    def is_done(self) -> bool:
        """Whether it has ended with code 0."""
        return self.state == "ended" and self.code == 0

    def __str__(self) -> str:
        """Format rank, process and host."""
        return f"rank {self.rank} (process {self.process.get('pid')} on {self.process.get('host')})"


class StatusStore:
    """The files of one launch; with several machines in a folder that all of them see.

    Args:
        folder: Folder of the launch.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    @classmethod
    def make(cls, root: Path | str, shared: str | None = None) -> StatusStore:
        """Make the folder of a launch, and remove those of launches whose supervisor was killed more than a day ago.

        Args:
            root: Folder of all runs.
            shared: Rendezvous and digest of the job, where supervisors of several machines share the folder.

        Raises:
            OSError: If it cannot be made.
        """
        unique = f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{os.getpid()}-{secrets.token_hex(2)}"
        launches = Path(root).absolute() / _LAUNCHES
        store = cls(launches / (f"{_SHARED}{shared.replace(':', '-')}" if shared else unique))
        launches.mkdir(parents=True, exist_ok=True)
        for folder in launches.iterdir():
            with suppress(OSError):
                if time.time() - folder.stat().st_mtime > _DAY_S and all(
                    status.state != "began" or status.has_ended for status in cls(folder).list_ranks()
                ):
                    shutil.rmtree(folder)
        store.folder.mkdir(exist_ok=shared is not None)
        return store

    def agree_on_attempt(self, rank: Rank) -> Rank:
        """Return a rank of torchrun with the number of its start that all ranks have.

        Each agent counts its own restarts, and not those that another one causes. The port at which the ranks meet is
        new with each start of all ranks, so the first rank to come names the next attempt after it.

        Raises:
            OSError: If the folder cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        for number in itertools.count():
            path = self.folder / f"attempt-{number}.txt"
            try:
                with path.open("x", encoding="utf-8") as file:
                    file.write(f"{rank.key}\n")
            except FileExistsError:
                deadline_s = time.monotonic() + _WRITTEN_S
                while not (key := path.read_text(encoding="utf-8")).endswith("\n") and time.monotonic() < deadline_s:
                    time.sleep(_POLL_S)
                if key.strip() != rank.key:
                    continue
            return replace(rank, attempt=number)
        raise AssertionError

    def record(self, rank: Rank, state: Literal["began", "ended", "stalled"], **fields: Any) -> None:
        """Write the status of this process; a rank that its watchdog has ended stays so."""
        path = self._path(rank.rank, rank.attempt)
        before = read_json(path)
        if before is None or before["state"] != "stalled":
            at_s, supervisor = None if state == "began" else time.time(), os.environ.get(SUPERVISOR)
            status = RankStatus(
                rank.rank, rank.attempt, state, describe_process(), at_s=at_s, supervisor=supervisor, **fields
            )
            write_json(path, asdict(status))

    def list_ranks(self, attempt: int | None = None) -> list[RankStatus]:
        """List the status of all ranks that have arrived, by rank.

        Args:
            attempt: Of this start of all ranks; None for the newest.
        """
        found = self._list_all()
        newest = max((status.attempt for status in found), default=0) if attempt is None else attempt
        return sorted((status for status in found if status.attempt == newest), key=lambda status: status.rank)

    def announce_run(self, rank: Rank, run: Mapping[str, Any]) -> None:
        """Write for the other ranks which run it is. Only rank 0 does."""
        record = {**run, "process": describe_process(), "at_s": time.time()}
        write_json(self.folder / f"run-{rank.attempt}.json", record)

    def newest_run(self, *, since_s: float = 0.0, supervisors: Collection[str] | None = None) -> dict[str, Any] | None:
        """Return the run of the newest attempt that has begun one.

        Args:
            since_s: A run that was announced before belongs to another launch; seconds since 1970.
            supervisors: Only an attempt in which ranks of one of them took part; others belong to another launch.
        """
        attempts = (int(path.stem.rpartition("-")[2]) for path in self.folder.glob("run-*.json"))
        for attempt in sorted(attempts, reverse=True):
            if supervisors is None or any(each.supervisor in supervisors for each in self.list_ranks(attempt)):
                run = read_json(self.folder / f"run-{attempt}.json")
                return run if run is not None and run["at_s"] >= since_s else None
        return None

    def earlier_run(self, rank: Rank, timeout_s: float) -> dict[str, Any] | None:
        """Return the run of an earlier attempt of this launch.

        In a folder that launches share, it belongs to this one if a supervisor of the ranks that begin now had ranks in
        it: machines come and go.

        Args:
            rank: One of the ranks that begin now.
            timeout_s: Seconds to wait until all of them have arrived in a shared folder.
        """
        if not self.folder.name.startswith(_SHARED):
            return self.newest_run()
        deadline_s = time.monotonic() + timeout_s
        while any(self.folder.glob("run-*.json")) and time.monotonic() < deadline_s:
            if len(self.list_ranks(rank.attempt)) >= rank.size:
                break
            time.sleep(_POLL_S)
        return self.newest_run(supervisors={str(each.supervisor) for each in self.list_ranks(rank.attempt)})

    def wait_for_run(self, rank: Rank, timeout_s: float, *, since_s: float) -> dict[str, Any] | None:
        """Wait until rank 0 has announced its run; None if it has ended instead, or the time is over.

        Args:
            rank: The rank that waits.
            timeout_s: Seconds to wait.
            since_s: A run that was announced before belongs to another launch; seconds since 1970.
        """
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            run = read_json(self.folder / f"run-{rank.attempt}.json")
            if run is not None and run["at_s"] >= since_s and is_gone(run["process"]) is not True:
                return run
            first = read_json(self._path(0, rank.attempt))
            if first is not None and first["state"] != "began" and (first["at_s"] or 0) >= since_s:
                return None
            time.sleep(_POLL_S)
        return None

    def request_stop(self, signum: int, *, exclude: Sequence[RankStatus] = ()) -> None:
        """Ask ranks that no signal reaches to save and to end, as after this signal.

        Args:
            signum: The signal.
            exclude: Ranks that get the signal itself: a second request would end them at once.
        """
        write_json(self.folder / "stop.json", {"signum": signum, "exclude": [[s.rank, s.attempt] for s in exclude]})

    def requested_stop(self, rank: Rank) -> int | None:
        """Return the signal that a rank is to act upon without having got it, if there is one."""
        request = read_json(self.folder / "stop.json")
        return None if request is None or [rank.rank, rank.attempt] in request["exclude"] else int(request["signum"])

    def log(self, rank: int, stream: str = "log") -> Path:
        """Name the file with a rank's output: stream `log`, or for rank 0 `out` and `err`."""
        return self.folder / f"rank-{rank}.{stream}"

    def leave(self, *, is_over: bool) -> None:
        """Remove the ranks' files once all of them have ended, if no supervisor does.

        Args:
            is_over: Whether no further start of all ranks needs the run.
        """
        ranks = self.list_ranks()
        if any(status.state == "began" and not status.is_lost for status in ranks):
            return  # they may wait for a run that rank 0 has ended without
        paths = [self._path(status.rank, status.attempt) for status in ranks]
        for path in (*paths, *(self.folder.glob("run-*.json") if is_over else ())):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # others are still there
            self.folder.rmdir()
            self.folder.parent.rmdir()

    def forget(self, supervisor: str) -> None:
        """Remove the files of the ranks of a supervisor, of all attempts; the last supervisor removes the folder."""
        for status in self._list_all():
            if status.supervisor == supervisor:
                self._path(status.rank, status.attempt).unlink(missing_ok=True)
        if not any((*self.folder.glob("rank-*.json"), *self.folder.glob("launcher-*"))):
            shutil.rmtree(self.folder, ignore_errors=True)

    def _list_all(self) -> list[RankStatus]:
        records = [read_json(path) for path in sorted(self.folder.glob("rank-*.json"))]
        return [RankStatus(**record) for record in records if record is not None]

    def _path(self, rank: int, attempt: int) -> Path:
        return self.folder / f"rank-{rank}-{attempt}.json"


class LeftAlone(LightkitError):
    """Rank 0 has ended, so that this rank has no run to join."""


class RankContext:
    """This process among the ranks of a launch.

    Args:
        rank: Which rank it is.
        store: Status of all ranks.
        supervised: Whether lightkit's supervisor reads the status: it then reports failures, and chooses the exit code.
    """

    def __init__(self, rank: Rank, store: StatusStore, *, supervised: bool) -> None:
        self.rank = rank
        self.store = store
        self.supervised = supervised
        self._began_s = time.time()
        self._screen: int | None = None
        self._log: Path | None = None

    def open(self) -> None:
        """Write that this rank has arrived, and send its output to its own file unless the screen is its own.

        Raises:
            ConfigError: If the folder of the launch cannot be written.
        """
        number = self.rank.rank
        try:
            if self.supervised and self.rank.engine == "torchrun":
                self.rank = self.store.agree_on_attempt(self.rank)
                os.environ[ATTEMPT] = str(self.rank.attempt)
            self.store.record(self.rank, "began")
            if number != 0:
                self._screen = None if self.supervised else os.dup(2)
                _redirect(self.store.log(number), 1, 2)
            elif self.supervised and self.rank.engine != "local":
                _redirect(self.store.log(0, "out"), 1)
                _redirect(self.store.log(0, "err"), 2)
        except OSError as error:
            raise ConfigError(
                f"run.root: rank {number} cannot write {self.store.folder}: {error.strerror or error}. All ranks must "
                "see that folder."
            ) from error

    def watch_stop_requests(self, watch: SignalWatch) -> None:
        """Act on the supervisor's request to stop: it may be on another machine, and under Ray a rank is a thread."""

        def poll() -> None:
            while (signum := self.store.requested_stop(self.rank)) is None:
                time.sleep(_STOP_POLL_S)
            watch.note(signum)

        threading.Thread(target=poll, name="lightkit-stop", daemon=True).start()

    def run(self, stage: Callable[[], int], format_traceback: Callable[[BaseException], str]) -> int:
        """Run a stage and write how it has ended.

        Args:
            stage: Function that returns an exit code.
            format_traceback: Formats an exception without secrets.

        Returns:
            Exit code of this process. After an interruption it is 0 under a supervisor, which knows the code: a
            launcher that sees another code kills the rank that is saving the checkpoint.
        """
        try:
            code = stage()
        except Interrupted as interruption:
            # Any rank: the others may have stopped with it before the signal has reached them.
            is_preempted = interruption.signum == signal.SIGUSR1 and interruption.checkpoint is not None
            if is_preempted and (marker := os.environ.get(PREEMPTED)):
                Path(marker).touch()
            return self._fail(interruption, format_interruption(interruption), interruption.exit_code, process_code=0)
        except LightkitError as error:
            # Torch's agent and Ray would start all ranks again, to meet the same error.
            is_final = self.rank.engine in ("torchrun", "ray") and (
                error.exit_code != 1 or type(error).__name__ in (DATA_CHANGED, LeftAlone.__name__)
            )
            process_code = 0 if is_final else error.exit_code
            return self._fail(error, f"error: {error}", error.exit_code, process_code=process_code)
        except Exception as error:  # noqa: BLE001 (the supervisor prints it, or it is raised again)
            return self._fail(error, format_traceback(error), 1, process_code=1)
        except BaseException as error:
            code = 130 if isinstance(error, KeyboardInterrupt) else 1
            if isinstance(error, SystemExit):
                code = error.code if isinstance(error.code, int) else int(error.code is not None)
            self._record_end(error, code, format_traceback(error))
            raise
        self.store.record(self.rank, "ended", code=code)
        if not self.supervised:
            self._leave(is_over=code == 0)
        return code

    def end_by_force(self, interruption: Interrupted) -> int:
        """Write the end of a rank that has not ended in time after a signal; return the exit code of its process."""
        self._record_end(interruption, interruption.exit_code, format_interruption(interruption))
        return 0 if self.supervised else interruption.exit_code

    def end_stalled(self, stall: Stall) -> None:
        """Write that this rank makes no progress and is being ended."""
        fields = {"message": stall.stacks, "waits_for": stall.waits_for, "line": stall.line}
        self.store.record(self.rank, "stalled", code=STALLED, kind="Stalled", **fields)
        if not self.supervised or self.rank.rank != 0:
            waits = "" if stall.waits_for is None else f"; it waits in {stall.waits_for}"
            message = f"error: rank {self.rank.rank} has hung for {stall.limit_s:g} s{waits}\n{stall.stacks}"
            print(message, file=sys.stderr, flush=True)  # noqa: T201 (the process ends)

    def earlier_run(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the run of all ranks before they were started again, if they were and its folder still exists.

        Args:
            timeout_s: Seconds to wait for the other ranks if several launches share the folder.
        """
        if self.supervised:
            run = self.store.earlier_run(self.rank, timeout_s)
        else:
            run = self.store.newest_run(since_s=self._began_s - _DAY_S) if self.rank.attempt else None
        return run if run is not None and Path(run["folder"]).is_dir() else None

    def wait_for_run(self, timeout_s: float) -> dict[str, Any]:
        """Wait until rank 0 has announced its run.

        Raises:
            LeftAlone: If it has ended instead, or the time is over.
        """
        since_s = 0.0 if self.supervised else self._began_s - _CLOCK_SKEW_S
        run = self.store.wait_for_run(self.rank, timeout_s, since_s=since_s)
        if run is None:
            raise LeftAlone(
                f"rank 0 has begun no run within {timeout_s:g} s, or has ended; rank {self.rank.rank} ends too"
            )
        return run

    def keep_log(self, folder: Path) -> None:
        """Let the run's folder have the output of this rank, also later output."""
        if self.rank.rank == 0:
            return
        kept = self._log = folder / "logs" / f"rank-{self.rank.rank}.log"
        kept.parent.mkdir(exist_ok=True)
        written = self.store.log(self.rank.rank)
        if kept.exists() and not kept.samefile(written):  # that of an earlier launch of the same run
            num_earlier = len([*kept.parent.glob(f"{kept.stem}.*.log")])
            kept.rename(kept.with_name(f"{kept.stem}.{num_earlier + 1}.log"))
        if not kept.exists():
            try:
                os.link(written, kept)
            except OSError:  # on another file system
                kept.write_bytes(written.read_bytes())
                _redirect(kept, 1, 2)

    def _record_end(self, error: BaseException, code: int, message: str) -> None:
        self.store.record(self.rank, "ended", code=code, kind=type(error).__name__, message=message)

    def _fail(self, error: BaseException, message: str, code: int, *, process_code: int) -> int:
        with _delay_signals() as signals:
            self._record_end(error, code, message)
            if not self.supervised:
                self._print(error, message, signals)
                self._leave(is_over=False)
        if not self.supervised:
            raise error
        if self.rank.rank != 0:
            print(message, file=sys.stderr)  # noqa: T201 (into its log)
        sys.stdout.flush()
        sys.stderr.flush()
        return process_code

    def _print(self, error: BaseException, message: str, signals: Collection[int]) -> None:
        """Print to the screen what has ended this rank, whose output goes to a file, unless others have printed it."""
        if self._screen is None or isinstance(error, (Interrupted, LeftAlone)):
            return
        number = self.rank.rank
        if isinstance(error, LightkitError):
            # A lower rank may end with the same message, or the launcher may end this one.
            deadline_s = time.monotonic() + _SAME_ERROR_S
            while time.monotonic() < deadline_s:
                if signals or any(s.message == message for s in self.store.list_ranks() if s.rank < number):
                    return
                time.sleep(_STOP_POLL_S)
            text = f"rank {number}: {message}"
        elif any(status.code for status in self.store.list_ranks() if status.rank != number):
            text = f"rank {number} has ended because of it: {message.rstrip().splitlines()[-1]}"
        else:
            text = f"rank {number}:\n{message.rstrip()}"
        log = f"\nlog   {self._log}" if self._log is not None else ""
        os.write(self._screen, f"{text}{log}\n".encode())

    def _leave(self, *, is_over: bool) -> None:
        """Remove the files that only a supervisor would read."""
        if self.store.folder.parent.name == _LAUNCHES:  # else it is where the run keeps its logs
            for rank in (self.rank.rank, *(status.rank for status in self.store.list_ranks() if status.is_lost)):
                self.store.log(rank).unlink(missing_ok=True)
        restarts = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) if self.rank.engine == "torchrun" else 0
        self.store.leave(is_over=is_over or self.rank.attempt >= restarts)


def join_launch(environ: Mapping[str, str], root: Path | str | None = None) -> RankContext | None:
    """Join the launch that has started this process; None if none has.

    Args:
        environ: Environment variables.
        root: Folder of all runs, in which ranks of a launcher of the user's own meet; None before it is known.
    """
    rank = this_rank(environ)
    if folder := environ.get(LAUNCH):  # without a launcher's variables this process starts the others itself
        return RankContext(rank or Rank(0, 1), StatusStore(folder), supervised=True)
    if rank is None or root is None or (rank.engine == "local" and rank.size == 1):
        return None
    if run := environ.get(INHERITED):
        return RankContext(rank, StatusStore(Path(json.loads(run)["folder"]) / "logs"), supervised=False)
    meeting = Path(root).absolute() / _LAUNCHES / f"{rank.engine}-{rank.key}"
    return RankContext(rank, StatusStore(meeting), supervised=False)


def _redirect(path: Path, *descriptors: int) -> None:
    """Append standard output (1) or error (2) of this process, its children and its native code to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for descriptor in descriptors:
        stream = {1: sys.stdout, 2: sys.stderr}[descriptor]
        if stream is not None:
            stream.flush()
        os.dup2(target, descriptor)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
    os.close(target)


@contextmanager
def _delay_signals() -> Iterator[list[int]]:
    """Let a rank write its end: launchers send SIGTERM to all ranks as soon as one has ended. Yield what has come."""
    signals: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()  # Python allows handlers nowhere else
    asking = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    before = {signum: signal.signal(signum, lambda signum, _: signals.append(signum)) for signum in asking}
    try:
        yield signals
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
