"""The folder of a launch: each rank writes there how it stands, and rank 0 which run it is."""

from __future__ import annotations

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

from lightkit.launch.generations import generation_of
from lightkit.launch.ranks import SUPERVISOR, Rank
from lightkit.runs.files import read_json, write_json
from lightkit.runs.process import describe_process, is_gone

__all__ = ["Board", "Standing"]

_POLL_S = 0.05
_DAY_S = 86400.0
_SHARED = "torchrun-"


@dataclass(frozen=True)
class Standing:
    """How one rank stands.

    Args:
        rank: Its number.
        attempt: How often all ranks have been started again.
        state: `began`; `ended`, whatever its exit code; or `stalled`, where its watchdog has ended it.
        process: What tells whether it still lives.
        code: Its exit code once it has ended.
        kind: Name of the exception that ended it.
        words: What is printed of it: an error in words, or a traceback.
        waits_for: Collective in which it waited for the others when it ended.
        at: Line at which it stood still.
        at_s: When it ended, seconds since 1970.
        supervisor: Which supervisor has started it.
    """

    rank: int
    attempt: int = 0
    state: Literal["began", "ended", "stalled"] = "began"
    process: dict[str, Any] = field(default_factory=dict)
    code: int | None = None
    kind: str | None = None
    words: str | None = None
    waits_for: str | None = None
    at_s: float | None = None
    supervisor: str | None = None
    at: str | None = None

    @property
    def has_ended(self) -> bool:
        """Whether its process has ended, as far as this machine can tell."""
        return is_gone(self.process) is True

    @property
    def is_gone(self) -> bool:
        """Whether its process has ended without a word, as far as this machine can tell."""
        return self.state == "began" and self.has_ended

    @property
    def told(self) -> str:
        """Who it is, for people."""
        return f"rank {self.rank} (process {self.process.get('pid')} on {self.process.get('host')})"


class Board:
    """The files of one launch; on several machines a folder that all of them see.

    Args:
        folder: Where they are.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    @property
    def is_shared(self) -> bool:
        """Whether several supervisors meet there, also those of later launches of the same job."""
        return self.folder.name.startswith(_SHARED)

    def numbered(self, rank: Rank) -> Rank:
        """Give a rank of torchrun the number of its start that all ranks have: each agent counts for itself.

        Raises:
            OSError: If the folder cannot be written.
        """
        return replace(rank, attempt=generation_of(self.folder, rank.key))

    def begin(self, rank: Rank) -> None:
        """Say that a rank has arrived."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write(Standing(rank.rank, rank.attempt, process=describe_process()))

    def end(self, rank: Rank, *, code: int, kind: str | None = None, words: str | None = None) -> None:
        """Say how a rank has ended; a rank that its watchdog has ended stays so."""
        if (now := self._read(rank)) is not None and now.state == "stalled":
            return
        self._write(Standing(rank.rank, rank.attempt, "ended", describe_process(), code, kind, words, at_s=time.time()))

    def stall(self, rank: Rank, *, code: int, words: str, waits_for: str | None, at: str | None = None) -> None:
        """Say that a rank hangs and is being ended."""
        standing = Standing(rank.rank, rank.attempt, "stalled", describe_process(), code, "Stalled", words)
        self._write(replace(standing, waits_for=waits_for, at_s=time.time(), at=at))

    def standings(self, attempt: int | None = None) -> list[Standing]:
        """How all ranks stand that have arrived, by rank.

        Args:
            attempt: Of this start of all ranks; None for the newest.
        """
        standings = self._all_standings()
        newest = max((standing.attempt for standing in standings), default=0) if attempt is None else attempt
        return sorted((s for s in standings if s.attempt == newest), key=lambda standing: standing.rank)

    def tell_run(self, rank: Rank, told: Mapping[str, Any]) -> None:
        """Tell the other ranks which run it is. Only rank 0 does."""
        write_json(self._run_path(rank.attempt), {**told, "process": describe_process(), "at_s": time.time()})

    def read_run(self, attempt: int) -> dict[str, Any] | None:
        """What rank 0 has told in this attempt, if it has."""
        return read_json(self._run_path(attempt))

    def newest_run(self, *, since_s: float = 0.0, supervisors: Collection[str] | None = None) -> dict[str, Any] | None:
        """What rank 0 has told in the newest attempt that has got so far.

        Args:
            since_s: What was told before this moment is of another launch; seconds since 1970.
            supervisors: Only an attempt in which ranks of one of them took part; any other is of another launch.
        """
        for attempt in sorted((_attempt_of(path) for path in self.folder.glob("run-*.json")), reverse=True):
            if supervisors is None or any(s.supervisor in supervisors for s in self.standings(attempt)):
                told = self.read_run(attempt)
                return told if told is not None and told["at_s"] >= since_s else None
        return None

    def earlier_run(self, rank: Rank, timeout_s: float) -> dict[str, Any] | None:
        """What rank 0 has told in an earlier attempt of this launch, in a folder that launches share.

        It is this launch's where a supervisor of the ranks that begin now had ranks in it: machines come and go.

        Args:
            rank: One of the ranks that begin now.
            timeout_s: Seconds to wait until all of them have arrived.
        """
        deadline = time.monotonic() + timeout_s
        while any(self.folder.glob("run-*.json")) and time.monotonic() < deadline:
            if len(self.standings(rank.attempt)) >= rank.size:
                break
            time.sleep(_POLL_S)
        return self.newest_run(supervisors={str(s.supervisor) for s in self.standings(rank.attempt)})

    def wait_for_run(self, rank: Rank, timeout_s: float, *, since_s: float) -> dict[str, Any] | None:
        """Wait until rank 0 has told which run it is; None if it has ended instead, or the time is over.

        Args:
            rank: The rank that waits.
            timeout_s: Seconds to wait.
            since_s: What was told before this moment is of another launch; seconds since 1970.
        """
        deadline = time.monotonic() + timeout_s
        first = Rank(0, rank.size, attempt=rank.attempt)
        while time.monotonic() < deadline:
            told = self.read_run(rank.attempt)
            if told is not None and told["at_s"] >= since_s and is_gone(told["process"]) is not True:
                return told
            standing = self._read(first)
            if standing is not None and standing.state != "began" and (standing.at_s or 0) >= since_s:
                return None
            time.sleep(_POLL_S)
        return None

    def leave(self, rank: Rank, *, is_over: bool) -> None:
        """Take away what the ranks have written once all of them have ended, where no supervisor will.

        Args:
            rank: The rank.
            is_over: Whether no further start of all ranks needs to know the run.
        """
        standings = self.standings()
        if any(standing.state == "began" and not standing.is_gone for standing in standings):
            return  # they may wait for a run that rank 0 has ended without
        for standing in standings:
            self._path(standing.rank, standing.attempt).unlink(missing_ok=True)
        for path in self.folder.glob("run-*.json") if is_over else ():
            path.unlink(missing_ok=True)
        with suppress(OSError):  # others are still there
            self.folder.rmdir()
            self.folder.parent.rmdir()

    def ask_to_stop(self, signum: int, *, but: Sequence[Standing] = ()) -> None:
        """Ask ranks that no signal reaches to save and to end, as after this signal.

        Args:
            signum: The signal.
            but: Ranks that get the signal itself: a second wish would end them at once.
        """
        write_json(self.folder / "stop.json", {"signum": signum, "but": [[s.rank, s.attempt] for s in but]})

    def asked_to_stop(self, rank: Rank) -> int | None:
        """The signal that a rank is to act upon without having got it, if there is one."""
        asked = read_json(self.folder / "stop.json")
        return None if asked is None or [rank.rank, rank.attempt] in asked["but"] else int(asked["signum"])

    def log(self, rank: int, stream: str = "log") -> Path:
        """File that takes what a rank writes.

        Args:
            rank: Its number.
            stream: `log`, or for rank 0 `out` and `err`.
        """
        return self.folder / f"rank-{rank}.{stream}"

    def _read(self, rank: Rank) -> Standing | None:
        record = read_json(self._path(rank.rank, rank.attempt))
        return None if record is None else Standing(**record)

    def forget(self, supervisor: str) -> None:
        """Take away what the ranks of a supervisor have written, in all attempts; the last supervisor takes all.

        Args:
            supervisor: Its name.
        """
        for standing in self._all_standings():
            if standing.supervisor == supervisor:
                self._path(standing.rank, standing.attempt).unlink(missing_ok=True)
        if not any((*self.folder.glob("rank-*.json"), *self.folder.glob("launcher-*"))):
            shutil.rmtree(self.folder, ignore_errors=True)

    def _all_standings(self) -> list[Standing]:
        found = [read_json(path) for path in sorted(self.folder.glob("rank-*.json"))]
        return [Standing(**record) for record in found if record is not None]

    def _write(self, standing: Standing) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        standing = replace(standing, supervisor=os.environ.get(SUPERVISOR))
        write_json(self._path(standing.rank, standing.attempt), asdict(standing))

    def _path(self, rank: int, attempt: int) -> Path:
        return self.folder / f"rank-{rank}-{attempt}.json"

    def _run_path(self, attempt: int) -> Path:
        return self.folder / f"run-{attempt}.json"


def _attempt_of(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


def new_folder(root: Path | str) -> Path:
    """Make the folder of a new launch below the folder of all runs.

    Raises:
        OSError: If it cannot be made.
    """
    name = f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{os.getpid()}-{secrets.token_hex(2)}"
    launches = Path(root).absolute() / ".launch"
    folder = launches / name
    folder.mkdir(parents=True)
    _sweep(launches)
    return folder


def _sweep(launches: Path) -> None:
    """Take away what launches have left whose supervisor was killed, a day later."""
    for folder in launches.iterdir():
        with suppress(OSError):
            is_old = time.time() - folder.stat().st_mtime > _DAY_S
            standings = Board(folder).standings() if is_old else []
            if is_old and all(s.state != "began" or is_gone(s.process) is True for s in standings):
                shutil.rmtree(folder)


def shared_folder(root: Path | str, meeting: str, job: str) -> Path:
    """Make the folder of a launch that has a supervisor on each of several machines.

    Args:
        root: Folder of all runs, which all of them see.
        meeting: Where the ranks meet, the same for all.
        job: Tells this job from others that meet there at another time, the same for all.

    Raises:
        OSError: If it cannot be made.
    """
    launches = Path(root).absolute() / ".launch"
    launches.mkdir(parents=True, exist_ok=True)
    _sweep(launches)
    folder = launches / f"{_SHARED}{meeting}-{job}"
    folder.mkdir(exist_ok=True)
    return folder
