"""One rank of a launch, and the folder in which ranks and supervisor exchange their status.

::

    rank-N.json  status of rank N in its newest start
    rank-N.log   output of rank N (rank 0: .out, .err)
    run.json     the run that rank 0 began or this folder's joined
    stop.json    the supervisor's request to save and to end

One protocol for all engines. `torch.distributed.elastic` keeps error files too, but knows neither
exit codes, nor ranks that hang, nor which of two errors within a second came first; and Horovod,
Spark and Ray do not write them.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from lightkit.errors import (
    ConfigError,
    Interrupted,
    LightkitError,
    exit_code_of,
    format_interruption,
)
from lightkit.launch.ranks import LAUNCH, PREEMPTED, Rank, this_rank
from lightkit.launch.watchdog import STALLED, Stall
from lightkit.runs.files import read_json, write_json
from lightkit.runs.lock import describe_process, is_gone

DATA_CHANGED = "DataChanged"
"""Name of the exception after which all ranks have to begin again, in a new run."""
INHERITED = "_LIGHTKIT_RUN"
"""Environment variable with which the process that begins a run passes it to the ranks that
Lightning starts."""
PREEMPTING = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals by which Slurm announces the end of a job: USR1 by default, USR2 where NCCL or the site
catches that one."""

_LAUNCHES = ".launch"  # folder below that of all runs, for the folders of launches
_DAY_S = 86400.0
_POLL_S = 0.05
_STOP_POLL_S = 0.3
_CLOCK_SKEW_S = 60.0  # clocks of machines differ, and ranks do not begin together


@dataclass(frozen=True)
class RankStatus:
    """Status of one rank.

    Args:
        rank: Its number.
        start: Name of this start of all ranks; each restart has another one.
        began_s: When it began, seconds since 1970.
        process: Result of `describe_process` in it.
        state: `began`; `ended`, with any exit code; or `stalled`, if its watchdog has ended it.
        at_s: When it ended, seconds since 1970.
        code: Its exit code once it has ended.
        kind: Name of the exception that ended it.
        message: Error message or traceback.
        waits_for: Collective in which it waited for the others when it ended.
        line: Line of code at which it hung.
    """

    rank: int
    start: str
    began_s: float
    process: dict[str, Any]
    state: Literal["began", "ended", "stalled"] = "began"
    at_s: float = 0.0
    code: int | None = None
    kind: str | None = None
    message: str = ""
    waits_for: str | None = None
    line: str | None = None

    @property
    def has_ended(self) -> bool:
        """Return whether its process has ended, as far as this machine knows."""
        return is_gone(self.process) is True

    @property
    def has_failed(self) -> bool:
        """Return whether it has ended with another code than 0, or without a status."""
        return self.has_ended if self.state == "began" else self.code != 0

    def __str__(self) -> str:
        """Format rank, process and host."""
        return f"rank {self.rank} (process {self.process.get('pid')} on {self.process.get('host')})"


def make_launch_folder(root: Path | str) -> Path:
    """Make the folder of a launch below that of all runs.

    Raises:
        OSError: If it cannot be made.
    """
    name = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}-{secrets.token_hex(2)}"
    folder = Path(root).absolute() / _LAUNCHES / name
    folder.mkdir(parents=True)
    return folder


def list_ranks(folder: Path) -> list[RankStatus]:
    """List the status of the ranks of a launch since their last start, by rank.

    There are none where the last rank to end has removed the folder.
    """
    try:
        paths = list(folder.iterdir())
    except FileNotFoundError:
        return []
    records = [read_json(path) for path in paths if path.match("rank-*.json")]
    found = [RankStatus(**record) for record in records if record is not None]
    newest = max(found, key=lambda status: status.began_s).start if found else None
    return sorted(
        (status for status in found if status.start == newest), key=lambda status: status.rank
    )


def log_path(folder: Path, rank: int, stream: str = "log") -> Path:
    """Name the file with a rank's output: stream `log`, or for rank 0 `out` and `err`."""
    return folder / f"rank-{rank}.{stream}"


def request_stop(folder: Path, signum: int) -> None:
    """Ask the ranks of a launch to save and to end, as after this signal, on any machine."""
    write_json(folder / "stop.json", {"signum": signum})


class LeftAlone(LightkitError):
    """Rank 0 has ended, so that this rank has no run to join."""


class RankContext:
    """This process among the ranks of a launch.

    Args:
        rank: Which rank it is.
        folder: Folder of the launch.
        supervised: Whether lightkit's supervisor reads the status: it then reports failures, and
            chooses the exit code.
    """

    def __init__(self, rank: Rank, folder: Path, *, supervised: bool) -> None:
        self.rank = rank
        self.folder = folder
        self.supervised = supervised
        # Each of torch's agents counts only its own restarts, but the port in the key of ours is
        # new with each of all.
        has_own_key = supervised and rank.engine == "torchrun"
        self._start = rank.key if has_own_key else f"{folder.name}-{rank.attempt}"
        self._began_s = time.time()
        self._screen: int | None = None
        self._log: Path | None = None

    def open(self) -> None:
        """Write that this rank has arrived.

        Send its output to its own file unless the screen is its own.

        Raises:
            ConfigError: If the folder of the launch cannot be written.
        """
        number = self.rank.rank
        try:
            self.record("began")
            if not self.supervised and (log := log_path(self.folder, number)).is_symlink():
                log.unlink()  # of a launch with the same address that was killed
            if number != 0:
                self._screen = None if self.supervised else os.dup(2)
                _redirect(log_path(self.folder, number), 1, 2)
            elif self.supervised and self.rank.engine != "local":
                _redirect(log_path(self.folder, 0, "out"), 1)
                _redirect(log_path(self.folder, 0, "err"), 2)
        except OSError as error:
            raise ConfigError(
                f"run.root: rank {number} cannot write {self.folder}: {error.strerror or error}."
                " All ranks must see that folder."
            ) from error

    def record(self, state: Literal["began", "ended", "stalled"], **fields: Any) -> None:
        """Write the status of this process.

        Unless its watchdog has ended it, or another start has taken its place.

        Args:
            state: As in `RankStatus`, and so are the other arguments.
            fields: Exit code, exception, ...
        """
        path = self.folder / f"rank-{self.rank.rank}.json"
        process = describe_process()
        before = read_json(path) or {"state": "began", "process": process}
        if state == "began" or (before["state"] == "began" and before["process"] == process):
            known = {
                "rank": self.rank.rank,
                "start": self._start,
                "began_s": self._began_s,
                "process": process,
            }
            write_json(path, {**known, "state": state, "at_s": time.time(), **fields})

    def watch_stop_requests(self) -> None:
        """Act on the supervisor's request to stop, perhaps of another machine, as on a signal."""

        def poll() -> None:
            while (request := read_json(self.folder / "stop.json")) is None:
                time.sleep(_STOP_POLL_S)
            os.kill(os.getpid(), request["signum"])

        threading.Thread(target=poll, name="lightkit-stop", daemon=True).start()

    def run(
        self, stage: Callable[[], int], format_traceback: Callable[[BaseException], str]
    ) -> int:
        """Run a stage and write how it has ended.

        Args:
            stage: Function that returns an exit code.
            format_traceback: Formats an exception without secrets.

        Returns:
            Exit code of this process. After an interruption it is 0 under a supervisor, which knows
            the code: a launcher that sees another code kills the rank that is saving the
            checkpoint.
        """
        try:
            code = stage()
        except BaseException as error:  # noqa: BLE001 (recorded; raised again or printed by the supervisor)
            return self._fail(error, format_traceback)
        self.record("ended", code=code)
        if not self.supervised:
            self._leave(is_over=code == 0)
        return code

    def _fail(self, error: BaseException, format_traceback: Callable[[BaseException], str]) -> int:
        code = process_code = exit_code_of(error)
        if isinstance(error, Interrupted):
            message = format_interruption(error)
            process_code = 0
            # Any rank: the others may have stopped with it before the signal has reached them.
            is_preempted = error.signum in PREEMPTING and error.checkpoint is not None
            if is_preempted and (marker := os.environ.get(PREEMPTED)):
                Path(marker).touch()
        elif isinstance(error, LightkitError):
            message = f"error: {error}"
            is_final = code != 1 or isinstance(error, LeftAlone)
            if is_final and self.rank.engine == "torchrun":
                # else torch's agent would start all ranks again, to meet the same error
                process_code = 0
        else:
            message = format_traceback(error)
        self.record("ended", code=code, kind=type(error).__name__, message=message)
        if not self.supervised:
            if isinstance(error, Exception) and not isinstance(error, LeftAlone):
                self._show(message)
            self._leave(is_over=False)
            raise error
        if self.rank.rank != 0:
            print(message, file=sys.stderr)  # noqa: T201 (into its log)
        sys.stdout.flush()
        sys.stderr.flush()
        return process_code

    def _show(self, message: str) -> None:
        """Print the message of an error on the screen of the launch, where this rank has one."""
        if self._screen is not None:
            log = "" if self._log is None else f"log   {self._log}\n"
            os.write(self._screen, f"rank {self.rank.rank}:\n{message.rstrip()}\n{log}".encode())

    def end_by_force(self, interruption: Interrupted) -> int:
        """Write the end of a rank that has not ended in time after a signal.

        Return the exit code of its process.
        """
        message = format_interruption(interruption)
        self.record(
            "ended", code=interruption.exit_code, kind=type(interruption).__name__, message=message
        )
        return 0 if self.supervised else interruption.exit_code

    def end_stalled(self, stall: Stall) -> None:
        """Write that this rank makes no progress and is being ended."""
        fields = {
            "message": stall.stacks,
            "waits_for": stall.waits_for,
            "line": stall.culprit.own_line,
        }
        self.record("stalled", code=STALLED, kind="Stalled", **fields)
        if not self.supervised or self.rank.rank != 0:
            waits = "" if stall.waits_for is None else f"; it waits in {stall.waits_for}"
            message = (
                f"error: rank {self.rank.rank} has hung for {stall.limit_s:g}"
                f" s{waits}\n{stall.stacks}"
            )
            print(message, file=sys.stderr, flush=True)  # noqa: T201 (the process ends)

    def announce_run(self, run: Mapping[str, Any]) -> None:
        """Write for the other ranks which run it is. Only rank 0 does."""
        record = {**run, "start": self._start, "process": describe_process(), "at_s": time.time()}
        write_json(self.folder / "run.json", record)

    def earlier_run(self) -> dict[str, Any] | None:
        """Return the run of these ranks before they were started again.

        If they were and its folder still exists.
        """
        run = read_json(self.folder / "run.json")
        if run is None or run["start"] == self._start or not Path(run["folder"]).is_dir():
            return None
        is_ours = self.supervised or (
            self.rank.attempt > 0 and run["at_s"] > self._began_s - _DAY_S
        )
        return run if is_ours else None

    def wait_for_run(self, timeout_s: float) -> dict[str, Any]:
        """Wait until rank 0 has announced its run.

        Args:
            timeout_s: Seconds to wait.

        Raises:
            LeftAlone: If it has ended instead, or the time is over.
        """
        deadline_s = time.monotonic() + timeout_s
        since_s = self._began_s - _CLOCK_SKEW_S
        while time.monotonic() < deadline_s:
            run = self._find_run(since_s)
            if run is not None:
                return run
            if self._has_first_ended(since_s):
                break
            time.sleep(_POLL_S)
        raise LeftAlone(
            f"rank 0 has begun no run within {timeout_s:g} s, or has ended;"
            f" rank {self.rank.rank} ends too"
        )

    def _find_run(self, since_s: float) -> dict[str, Any] | None:
        """Return the run that rank 0 of this start has announced; None where it has not yet."""
        # With several machines rank 0 may have a supervisor of its own, and so another folder next
        # to this one.
        for path in self.folder.parent.glob("*/run.json"):
            run = read_json(path)
            if (
                run is None
                or run["start"] != self._start
                or run["at_s"] < since_s
                or is_gone(run["process"])
            ):
                continue
            if path.parent != self.folder:
                write_json(self.folder / "run.json", run)
            return run
        return None

    def _has_first_ended(self, since_s: float) -> bool:
        """Return whether rank 0 of this start has ended."""
        firsts = [read_json(path) for path in self.folder.parent.glob("*/rank-0.json")]
        ended = [first for first in firsts if first is not None and first["state"] != "began"]
        return any(first["start"] == self._start and first["at_s"] >= since_s for first in ended)

    def keep_log(self, folder: Path) -> None:
        """Move the output of this rank, also later output, into the run's folder.

        A link stays in the launch's.
        """
        number = self.rank.rank
        written = log_path(self.folder, self.rank.rank)
        if number == 0:
            return
        kept = self._log = folder / "logs" / f"rank-{number}.log"
        kept.parent.mkdir(exist_ok=True)
        if written.is_symlink():  # after a restart
            return
        if kept.exists():  # of an earlier launch of the same run
            num_earlier = len([*kept.parent.glob(f"{kept.stem}.*.log")])
            kept.rename(kept.with_name(f"{kept.stem}.{num_earlier + 1}.log"))
        kept.write_bytes(written.read_bytes())  # a copy, as the run may be on another disk
        written.unlink()
        _redirect(kept, 1, 2)
        with suppress(OSError):  # a file system without links
            written.symlink_to(kept)

    def _leave(self, *, is_over: bool) -> None:
        """Remove the files that only a supervisor would read, once all ranks have ended.

        Args:
            is_over: Whether no further start of all ranks needs the run.
        """
        if any(
            status.state == "began" and not status.has_ended for status in list_ranks(self.folder)
        ):
            return  # they may wait for a run that rank 0 has ended without
        restarts = (
            int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))
            if self.rank.engine == "torchrun"
            else 0
        )
        if is_over or self.rank.attempt >= restarts:
            shutil.rmtree(self.folder, ignore_errors=True)
            with suppress(OSError):  # others are still there
                self.folder.parent.rmdir()


def join_supervisor(environ: Mapping[str, str]) -> RankContext | None:
    """Join the launch whose supervisor has started this process; None if none has.

    Args:
        environ: Environment variables.
    """
    folder = environ.get(LAUNCH)
    if not folder:
        return None
    # without a launcher's variables this process starts the others itself
    return RankContext(this_rank(environ) or Rank(0, 1), Path(folder), supervised=True)


def join_launch(environ: Mapping[str, str], root: Path | str) -> RankContext | None:
    """Join the launch that has started this process; None if none has.

    Args:
        environ: Environment variables.
        root: Folder of all runs, in which ranks of a launcher of the user's own meet.
    """
    supervised = join_supervisor(environ)
    if supervised is not None:
        return supervised
    rank = this_rank(environ)
    if rank is None or (rank.engine == "local" and rank.size == 1):
        return None
    return RankContext(
        rank, Path(root).absolute() / _LAUNCHES / f"{rank.engine}-{rank.key}", supervised=False
    )


def _redirect(path: Path, *descriptors: int) -> None:
    """Append standard output (1) or error (2) of this process to a file.

    Also that of its children and its native code.
    """
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
