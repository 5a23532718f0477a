"""What a lock file says: who holds a job, when it was last heard of, and whether it still lives."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from lightkit.runs.files import aside_of
from lightkit.runs.process import is_from_another_boot, is_gone

__all__ = ["Holder", "claim_to", "last_claimant", "lock_holder", "now_of", "read_holder"]

_MISSED_BEATS = 3


@dataclass(frozen=True)
class Holder:
    """The process that a lock file names.

    Args:
        path: The file.
        said: Its content; empty where it cannot be read.
        key: Tells this holder from every other one, also where its file cannot be read.
        heard_s: When the file was last touched, by the clock of the file's server, in seconds.
    """

    path: Path
    said: Mapping[str, Any]
    key: str
    heard_s: float

    @property
    def token(self) -> str | None:
        """The word that only the holder and its heirs know as theirs."""
        return self.said.get("token")

    @property
    def process(self) -> Mapping[str, Any]:
        """The process to name: the holder, or the one that it has left the lock to and that outlives it."""
        heir = self.said.get("heir")
        return heir if isinstance(heir, dict) and is_gone(dict(self.said)) else self.said

    def lives(self, *, stale_s: float, now_s: float) -> bool:
        """Tell whether it may still run.

        A process of this host runs or is gone. Of another host the heartbeat tells; also of one with this name and
        this machine's number that was started at another time, for machines are cloned, until it misses three beats.

        Args:
            stale_s: Seconds without a heartbeat after which a process elsewhere counts as dead.
            now_s: What the clock of the file's server says.
        """
        return bool(self.is_known) or now_s - self.heard_s < self._believed_s(stale_s)

    def _believed_s(self, stale_s: float) -> float:
        """Seconds without a heartbeat after which a process counts as dead that nobody here can see."""
        beat_s = self.said.get("beat_s")
        least_s = _MISSED_BEATS * beat_s if isinstance(beat_s, int | float) else 0.0
        if self.is_known is None:
            return max(stale_s, least_s)
        return least_s if is_from_another_boot(self.said) else -math.inf

    @property
    def is_known(self) -> bool | None:
        """Whether a process here certainly lives, or all are certainly gone; None where that cannot be seen here."""
        if not self.said:
            return None
        gone = [is_gone(dict(process)) for process in (self.said, self.said.get("heir")) if process]
        if False in gone:
            return True
        return None if None in gone else False

    def words(self, name: str, *, stale_s: float, now_s: float) -> str:
        """Say who it is, and what to do about it.

        Args:
            name: Name of the job.
            stale_s: Seconds without a heartbeat after which a process elsewhere counts as dead.
            now_s: What the clock of the file's server says.
        """
        silent_s = max(0.0, now_s - self.heard_s)
        if not self.said:
            return (
                f"{self.path} cannot be read, so nobody can tell who runs {name!r}; it was last written "
                f"{silent_s:.0f} s ago. After {stale_s:g} s (run.stale_s) the same command takes the job over."
            )
        where = f", in {self.said['folder']}" if self.said.get("folder") else ""
        who = f"process {self.process.get('pid')} on {self.process.get('host')} since {self.said.get('started')}{where}"
        heard = (
            ""
            if self.is_known
            else f" It was last heard of {silent_s:.0f} s ago and counts as dead after "
            f"{self._believed_s(stale_s):g} s{' (run.stale_s)' if self.is_known is None else ''}."
        )
        return (
            f"Job {name!r} is being run by {who}.{heard} Try again when it has ended, wait for it "
            f"(--run.wait_s=600), or give this run another name (--run.name). Its lock is {self.path}."
        )

    def told(self) -> dict[str, Any]:
        """Give what programs and tables show of it."""
        return {
            "host": self.process.get("host"),
            "pid": self.process.get("pid"),
            "started": self.said.get("started"),
            "heartbeat": f"{datetime.fromtimestamp(self.heard_s, timezone.utc):%Y-%m-%d %H:%M:%S UTC}",
            "folder": self.said.get("folder"),
        }


def read_holder(path: Path) -> Holder | None:
    """Give the holder that a lock file names; None where there is no such file."""
    try:
        try:
            status, content = _status_and_content(path)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            status, content = _status_and_content(path)  # it was replaced on its server between the look and the read
    except FileNotFoundError:
        return None
    try:
        said = json.loads(content)
    except ValueError:
        said = None
    said = said if isinstance(said, dict) and "pid" in said else {}
    key = said.get("token") or f"{status.st_ino:x}-{status.st_mtime_ns:x}"
    return Holder(path, said, str(key), status.st_mtime)


def _status_and_content(path: Path) -> tuple[os.stat_result, bytes]:
    with path.open("rb") as file:
        return os.fstat(file.fileno()), file.read()


def claim_to(holder: Holder) -> Path:
    """Give the file that a process has to win before it may take over from a dead holder."""
    return holder.path.with_name(f".lock.{holder.key}.claim")


def last_claimant(holder: Holder) -> Holder:
    """Follow the claims: whoever was about to take over may have died as well."""
    while (claimant := read_holder(claim_to(holder))) is not None:
        holder = claimant
    return holder


def lock_holder(root: Path | str, name: str, stale_s: float = 300.0) -> dict[str, Any] | None:
    """Give the living holder of a job: host, pid, started, heartbeat, folder; None where nobody holds it.

    All of them are None where this user may not read the lock: somebody may hold the job.

    Args:
        root: Folder that holds the runs of all jobs.
        name: Name of the job.
        stale_s: Seconds without a heartbeat after which a holder on another host counts as dead.
    """
    path = (Path(root) / name / "lock.json").absolute()
    try:
        first = read_holder(path)
        holder = None if first is None else last_claimant(first)
    except OSError:
        return dict.fromkeys(("host", "pid", "started", "heartbeat", "folder"))
    if holder is None or not holder.lives(stale_s=stale_s, now_s=now_of(path.parent)):
        return None
    return holder.told()


def now_of(folder: Path) -> float:
    """Ask the file server of a folder for its time, in seconds: the clocks of two machines differ."""
    probe = aside_of(folder / "lock.json")
    try:
        probe.touch(exist_ok=False)
        os.utime(probe)
        return probe.stat().st_mtime
    except OSError:  # a folder that can only be read
        return datetime.now(timezone.utc).timestamp()
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
