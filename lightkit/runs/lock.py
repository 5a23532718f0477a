"""One process per job.

``runs/<name>/lock.json`` names its owner, and the file's modification time is the heartbeat.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lightkit.errors import ConfigError, RunLocked, pass_on_full_disk
from lightkit.runs.clock import elapsed_s
from lightkit.runs.events import read_events
from lightkit.runs.fence import Fence, remove_staging
from lightkit.runs.files import flush, inspect_json, read_json, remove_leftovers, write_json

SHARED_LOCK = "_LIGHTKIT_LOCK"
"""Environment variable with the token of a lock: a process that has it works on the job together
with the owner."""

_HEARTBEAT_S = 15.0
_TICK_S = 1.0
_STARTS = ("start", "resume")
_GUARD_LEASE_S = 10.0  # of the file that guards a change of lock.json, which takes milliseconds
_STALE_S = 300.0  # where the job's own `run.stale_s` is not known
_log = logging.getLogger("lightkit")


class Lock:
    """Exclusive right of a process to run a job; a context manager.

    It holds on shared file systems without `flock`: ``lock.json`` is changed only under a
    `filelock.SoftFileLease`, which needs exclusive creation of a file, and it is written by a
    rename. The lease is not the lock itself, because a lease cannot be taken over without having
    watched it for its whole duration, and all who ask must agree on that.

    Its token is a fencing token: who has lost the lock changes no file of the job any more, see
    `lightkit.runs.fence`.

    Args:
        root: Folder that holds the runs of all jobs.
        name: Name of the job.
        wait_s: Seconds to wait for another owner.
        stale_s: Seconds without a heartbeat after which an owner on another host counts as dead.
        tell: Called once with a message that names the owner, if this process waits.
        lost: Called with a message that names the new owner, if the job was taken over because this
            process could not send heartbeats, such as after the machine was suspended: by the
            heartbeat thread, or by the thread that is about to write a file of the job.
    """

    def __init__(
        self,
        root: Path | str,
        name: str,
        wait_s: float = 0.0,
        stale_s: float = 300.0,
        *,
        tell: Callable[[str], None] = _log.info,
        lost: Callable[[str], None] = _log.error,
    ) -> None:
        for key, seconds, least in (("wait_s", wait_s, 0.0), ("stale_s", stale_s, 1e-3)):
            if not least <= seconds < math.inf:
                raise ConfigError(
                    f"run.{key}: expected a number of seconds, {least:g} or more, got {seconds!r}"
                )
        self.path = (Path(root) / name / "lock.json").absolute()
        self._wait_s = wait_s
        self._stale_s = stale_s
        self._tell = tell
        self._lost = lost
        self._record: dict[str, Any] = {}
        self._fence: Fence | None = None
        self._is_owner = False
        self._beat_s = elapsed_s()
        self._events: Path | None = None
        self._num_bytes = 0  # of the events when the run was noted
        self._ended = threading.Event()
        self._thread = threading.Thread()

    def acquire(self) -> None:
        """Take the lock, also from a dead owner, or share it with the owner that started this.

        Raises:
            RunLocked: If another process runs the job.
            ConfigError: If the lock cannot be written.
        """
        began_s = time.monotonic()
        has_told = False
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            while (owner := self._take()) is not None:
                if (left_s := began_s + self._wait_s - time.monotonic()) <= 0:
                    advice = (
                        "Try again when it has ended, wait for it (--run.wait_s=600), or give this"
                        " run another"
                    )
                    waited = f" Waited {self._wait_s:g} s for it." if self._wait_s else ""
                    raise RunLocked(
                        f"{owner} {advice} name (--run.name). Its lock is {self.path}.{waited}"
                    )
                if not has_told:
                    self._tell(f"waits up to {self._wait_s:g} s: {owner}")
                has_told = True
                time.sleep(min(0.5, left_s))
        except OSError as error:
            pass_on_full_disk(error, self.path)
            raise ConfigError(
                f"run.root: cannot write the lock {self.path}: {error.strerror or error}. Set"
                " run.root to a folder that can be written; then run the same command again."
            ) from error
        self._ended.clear()
        self._thread = threading.Thread(
            target=self._send_heartbeats, name="lightkit-lock", daemon=True
        )
        self._thread.start()

    def check(self) -> None:
        """Check that this process still holds the lock; before each write of the job's files.

        Raises:
            RunLocked: If another process has taken the job over, after `lost` was called.
        """
        if (reason := self._find_loss()) is not None:
            self._lost(reason)
            raise RunLocked(reason)

    def note_folder(self, folder: Path) -> None:
        """Add the run's folder to the description of the owner; only while the lock is held."""
        self._events = folder / "events.jsonl"
        self._num_bytes = self._events.stat().st_size if self._events.is_file() else 0
        with self._guard():
            if self._is_mine(record := read_json(self.path)):
                self._record = {**(record or {}), "folder": str(folder)}
                write_json(self.path, self._record)

    def delegate(self) -> dict[str, str]:
        """Return the variables with which a process that this one starts may work on the job."""
        return {SHARED_LOCK: self._record["token"]}

    def release(self) -> None:
        """Release the lock, unless this process shares it, is the owner's fork, or has lost it."""
        if self._fence is not None:
            self._fence.close()
        if not self._thread.is_alive():  # also in a fork, which has no other threads
            return
        self._ended.set()
        self._thread.join(timeout=5.0)
        assert self._fence is not None
        if not self._is_owner:
            return
        # A full disk, or a removed folder: the lock of a process that has ended is free.
        with suppress(OSError), self._guard():
            if self._is_mine(read_json(self.path)):
                # Into the staging folder, which is there as long as nobody else has the lock.
                self.path.rename(self._fence.staging / self.path.name)
                remove_staging(self.path.parent)

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @contextmanager
    def _guard(self) -> Iterator[float]:
        """Exclude all other changes of the lock file.

        Yield the current time by the clock of the file server.
        """
        from filelock import SoftFileLease  # 40 ms that commands without a job do not need

        guard = self.path.with_name(".lock")
        with SoftFileLease(guard, lease_duration=_GUARD_LEASE_S).acquire(
            timeout=6 * _GUARD_LEASE_S, poll_interval=0.02
        ):
            yield guard.stat().st_mtime

    def _take(self) -> str | None:
        """Write this process into the lock file.

        Else return a sentence that names the process which runs the job.
        """
        with self._guard() as now_s:
            remove_leftovers(self.path.parent, "lock.json")
            record, damage = inspect_json(self.path)
            if damage is not None:
                raise ConfigError(
                    f"run.root: the lock {self.path} cannot be read: {damage}. Delete it if no"
                    " process runs this job."
                )
            self._is_owner = record is None or record.get("token") != os.environ.get(
                SHARED_LOCK, ""
            )
            if (
                record is not None
                and self._is_owner
                and _is_held(self.path, record, self._stale_s, now_s)
            ):
                return _describe_owner(self.path, record, self._stale_s, now_s)
            if record is None or self._is_owner:
                started = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S UTC}"
                record = {
                    "started": started,
                    "folder": None,
                    "token": secrets.token_hex(8),
                    "processes": [],
                }
            processes = [
                process for process in record.get("processes", ()) if is_gone(process) is not True
            ]
            self._record = {**record, "processes": [*processes, describe_process()]}

            # The former owner writes nothing from here on, and reads in the lock file who has the
            # job.
            self._fence = Fence(self.path.parent, self._record["token"], self.check)
            remove_staging(self.path.parent, but=None if self._is_owner else self._fence.staging)
            self._fence.staging.mkdir(exist_ok=True)
            aside = self._fence.staging / self.path.name
            try:
                write_json(aside, self._record)
                aside.replace(self.path)
            except FileNotFoundError:
                # Suspended for so long within the guard that another process has come and removed
                # the folder.
                record = read_json(self.path)
                if record is None:
                    raise
                return _describe_owner(self.path, record, self._stale_s, now_s)
            flush(self.path.parent)
            self._beat_s = elapsed_s()
            self._fence.open()
        return None

    def _is_mine(self, record: Mapping[str, Any] | None) -> bool:
        return record is not None and record.get("token") == self._record["token"]

    def _find_loss(self) -> str | None:
        """Return a sentence that says how this process has lost the lock.

        None while it holds it.
        """
        assert self._fence is not None
        record = read_json(self.path)
        if record is not None and not self._is_mine(record):
            return _describe_owner(self.path, record, self._stale_s, time.time())

        job = self.path.parent
        silent_s = elapsed_s() - self._beat_s
        if not job.is_dir():
            return f"Its folder {job} was deleted."
        taken = (
            f"Another process has run job {job.name!r} meanwhile: this one sent no heartbeat for"
            f" {silent_s:.0f} s"
        )
        if not self._fence.staging.is_dir():
            return f"{taken}, and its folder {self._fence.staging} was removed."

        # A lock that a person has deleted is still this process's, unless another one may have come
        # and gone.
        if record is None and not self.path.exists():
            if silent_s >= self._stale_s:
                return f"{taken}, and its lock is gone."
            if self._is_seen_elsewhere():
                return f"{taken}, and {self._events} has the start of another."
        return None

    def _is_seen_elsewhere(self) -> bool:
        """Check whether the events since `note_folder` have another process's training start."""
        if self._events is None:
            return False
        starts = (
            each
            for each in read_events(self._events, start=self._num_bytes)
            if each["event"] in _STARTS
        )
        return any(
            each.get("stage") == "fit" and each.get("token") != self._record["token"]
            for each in starts
        )

    def _send_heartbeats(self) -> None:
        every_s = min(self._stale_s / 6, _HEARTBEAT_S)
        # Often, so that a process that was suspended notices soon after it wakes.
        while not self._ended.wait(min(every_s, _TICK_S)):
            if elapsed_s() - self._beat_s < every_s:
                continue
            with suppress(OSError):  # a file server that is away for a while
                try:
                    self.check()
                    if not self._beat() and self._is_owner:
                        self._write_again()
                except RunLocked:
                    return
                self._beat_s = elapsed_s()

    def _beat(self) -> bool:
        """Send a heartbeat; return False where there is no lock file."""
        try:
            os.utime(self.path)
        except FileNotFoundError:
            return False
        return True

    def _write_again(self) -> None:
        """Write the lock file that a person has deleted.

        Raises:
            RunLocked: If another process has come before.
        """
        with self._guard():
            self.check()
            if not self.path.exists() and not self._ended.is_set():
                write_json(self.path, self._record)


def lock_holder(root: Path | str, name: str) -> dict[str, Any] | None:
    """Read the lock of the process that runs a job: ``folder``, ``started``, ``processes``.

    None if no process does.

    It is empty if the lock cannot be read, since a process may hold it.

    Args:
        root: Folder that holds the runs of all jobs.
        name: Name of the job.
    """
    path = Path(root) / name / "lock.json"
    record, damage = inspect_json(path)
    with suppress(FileNotFoundError):  # released in this moment
        if record is None:
            return None if damage is None else {}
        return record if _is_held(path, record, _STALE_S, time.time()) else None
    return None


def _choose_process(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first process of a lock that has not ended, as far as this host can see."""
    processes: list[dict[str, Any]] = record.get("processes") or [{}]
    return next((process for process in processes if is_gone(process) is not True), processes[0])


def _is_held(path: Path, record: Mapping[str, Any], stale_s: float, now_s: float) -> bool:
    is_dead = is_gone(_choose_process(record))
    return now_s - path.stat().st_mtime < stale_s if is_dead is None else not is_dead


def _describe_owner(path: Path, record: Mapping[str, Any], stale_s: float, now_s: float) -> str:
    process = _choose_process(record)
    folder = f", in {record['folder']}" if record.get("folder") else ""
    lease = (
        f" Its last heartbeat was {max(0.0, now_s - path.stat().st_mtime):.0f} s ago; it counts as"
        f" dead after {stale_s:g} s (run.stale_s)."
        if is_gone(process) is None
        else ""
    )
    return (
        f"Job {path.parent.name!r} is being run by process {process.get('pid')} on"
        f" {process.get('host')} since {record.get('started')}{folder}.{lease}"
    )


def describe_process() -> dict[str, Any]:
    """Describe this process so that `is_gone` can recognize it later, also from another process."""
    start = _read_start(os.getpid())
    return {
        "host": socket.gethostname(),
        "kernel": _describe_kernel(),
        "pid": os.getpid(),
        "process_started": start,
    }


def is_gone(process: Mapping[str, Any]) -> bool | None:
    """Check whether a process has ended.

    None for another host, another container or an earlier boot.

    Args:
        process: Result of `describe_process` in that process.
    """
    here = (socket.gethostname(), _describe_kernel())
    if (process.get("host"), process.get("kernel")) != here or not isinstance(
        process.get("pid"), int
    ):
        return None
    started = _read_start(process["pid"])
    return started is None or started != process.get("process_started")


def _describe_kernel() -> str:
    """Name the boot and the PID namespace, within which a process number means one process."""
    with suppress(OSError):  # macOS has neither
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    return ""


def _read_start(pid: int) -> str | None:
    """Read the start time of a process in a unit that does not change.

    None if it is dead or a zombie.
    """
    if sys.platform != "linux":
        import psutil  # on Linux it adds the boot time, which moves when the clock is set

        with suppress(psutil.Error):
            return str(psutil.Process(pid).create_time())
        return None
    with suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        # proc(5): the second field is the command in parentheses, which may hold spaces; then
        # state, ..., 22 starttime.
        fields = stat.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    return None
