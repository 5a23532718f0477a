"""The folder of a launch: each rank writes its status there, and rank 0 which run it is.

One protocol for all engines. `torch.distributed.elastic` keeps error files too, but knows neither exit codes, nor ranks
that hang, nor which of two errors within a second came first; and Horovod, Spark and Ray do not write them.
"""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from lightkit.launch.ranks import SUPERVISOR, Rank
from lightkit.runs.files import read_json, write_json
from lightkit.runs.lock import describe_process, is_gone

__all__ = ["LAUNCHES", "RankStatus", "StatusStore", "make_folder", "make_shared_folder"]

LAUNCHES = ".launch"
"""Name of the folder below the folder of all runs that has the folders of launches."""

_POLL_S = 0.05
_DAY_S = 86400.0
_WRITTEN_S = 5.0  # a rank may be killed before it has written its file
_SHARED = "torchrun-"


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
    def is_here(self) -> bool:
        """Whether its process runs on this machine."""
        return is_gone(self.process) is False

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

    @property
    def is_shared(self) -> bool:
        """Whether several supervisors use the folder, also those of later launches of the same job."""
        return self.folder.name.startswith(_SHARED)

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

    def begin(self, rank: Rank) -> None:
        """Write that a rank has arrived."""
        self._write(RankStatus(rank.rank, rank.attempt, process=describe_process()))

    def end(self, rank: Rank, *, code: int, kind: str | None = None, message: str | None = None) -> None:
        """Write how a rank has ended; a rank that its watchdog has ended stays so."""
        record = read_json(self._path(rank.rank, rank.attempt))
        if record is None or record["state"] != "stalled":
            process = describe_process()
            self._write(RankStatus(rank.rank, rank.attempt, "ended", process, code, kind, message, at_s=time.time()))

    def stall(self, rank: Rank, *, code: int, message: str, waits_for: str | None, line: str | None = None) -> None:
        """Write that a rank hangs and is being ended."""
        status = RankStatus(rank.rank, rank.attempt, "stalled", describe_process(), code, "Stalled", message)
        self._write(replace(status, waits_for=waits_for, at_s=time.time(), line=line))

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
        """Return the run of an earlier attempt of this launch, in a folder that launches share.

        It belongs to this launch if a supervisor of the ranks that begin now had ranks in it: machines come and go.

        Args:
            rank: One of the ranks that begin now.
            timeout_s: Seconds to wait until all of them have arrived.
        """
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

    def leave(self, *, is_over: bool) -> None:
        """Remove the ranks' files once all of them have ended, if no supervisor does.

        Args:
            is_over: Whether no further start of all ranks needs the run.
        """
        ranks = self.list_ranks()
        if any(status.state == "began" and not status.is_lost for status in ranks):
            return  # they may wait for a run that rank 0 has ended without
        for status in ranks:
            self._path(status.rank, status.attempt).unlink(missing_ok=True)
        for path in self.folder.glob("run-*.json") if is_over else ():
            path.unlink(missing_ok=True)
        with suppress(OSError):  # others are still there
            self.folder.rmdir()
            self.folder.parent.rmdir()

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
        if request is None or [rank.rank, rank.attempt] in request["exclude"]:
            return None
        return int(request["signum"])

    def log(self, rank: int, stream: str = "log") -> Path:
        """Name the file with a rank's output: stream `log`, or for rank 0 `out` and `err`."""
        return self.folder / f"rank-{rank}.{stream}"

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

    def _write(self, status: RankStatus) -> None:
        status = replace(status, supervisor=os.environ.get(SUPERVISOR))
        write_json(self._path(status.rank, status.attempt), asdict(status))

    def _path(self, rank: int, attempt: int) -> Path:
        return self.folder / f"rank-{rank}-{attempt}.json"


def make_folder(root: Path | str) -> Path:
    """Make the folder of a new launch below the folder of all runs.

    Raises:
        OSError: If it cannot be made.
    """
    name = f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{os.getpid()}-{secrets.token_hex(2)}"
    folder = Path(root).absolute() / LAUNCHES / name
    folder.mkdir(parents=True)
    _remove_old(folder.parent)
    return folder


def make_shared_folder(root: Path | str, rendezvous: str, job: str) -> Path:
    """Make the folder of a launch that has a supervisor on each of several machines.

    Args:
        root: Folder of all runs, which all of them see.
        rendezvous: Address at which the ranks meet, the same for all.
        job: Digest that tells this job from others at the same address, the same for all.

    Raises:
        OSError: If it cannot be made.
    """
    folder = Path(root).absolute() / LAUNCHES / f"{_SHARED}{rendezvous.replace(':', '-')}-{job}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_old(folder.parent)
    folder.mkdir(exist_ok=True)
    return folder


def _remove_old(launches: Path) -> None:
    """Remove the folders of launches whose supervisor was killed more than a day ago."""
    for folder in launches.iterdir():
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > _DAY_S and all(
                status.state != "began" or status.has_ended for status in StatusStore(folder).list_ranks()
            ):
                shutil.rmtree(folder)
