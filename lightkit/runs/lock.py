"""One process per job: ``runs/<name>/lock.json`` names its owner, and the file's modification time is the heartbeat."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from lightkit.errors import ConfigError, LightkitError, RunLocked
from lightkit.runs.files import write_json

HELD_LOCK = "_LIGHTKIT_LOCK"
"""Environment variable by which the owner of a job lets a process that it starts work on the job."""

_GUARD_LEASE_S = 10.0  # of the file that guards a change of lock.json, which takes milliseconds
_LONGEST_HEARTBEAT_S = 15.0
_MISSED_HEARTBEATS = 3
_log = logging.getLogger("lightkit")


@dataclass(frozen=True)
class LockOwner:
    """Content of a lock file.

    Args:
        path: The lock file.
        record: Process, start, run folder and token of the owner; empty if the file cannot be read.
        heartbeat_s: Time of the last heartbeat by the clock of the file server, in seconds since 1970.
    """

    path: Path
    record: Mapping[str, Any]
    heartbeat_s: float

    @property
    def process(self) -> Mapping[str, Any]:
        """The process to name: the owner, or its delegate if that has outlived it."""
        delegate = self.record.get("delegate")
        return delegate if delegate and is_gone(self.record) else self.record

    @property
    def is_visible(self) -> bool | None:
        """Whether the owner or its delegate runs; None if this host cannot tell."""
        if not self.record:
            return None
        gone = [is_gone(process) for process in (self.record, self.record.get("delegate")) if process]
        return True if False in gone else None if None in gone else False

    def lease_s(self, stale_s: float) -> float:
        """Compute for how many seconds after a heartbeat an owner counts as alive that this host cannot see."""
        return max(stale_s, _MISSED_HEARTBEATS * float(self.record.get("beat_s", 0.0)))

    def is_alive(self, *, stale_s: float, now_s: float) -> bool:
        """Tell whether the owner is running, or its lease has not expired if this host cannot tell.

        Args:
            stale_s: Seconds without a heartbeat after which an owner on another host counts as dead.
            now_s: Current time by the clock of the file server.
        """
        is_visible = self.is_visible
        return now_s - self.heartbeat_s < self.lease_s(stale_s) if is_visible is None else is_visible

    def describe(self, *, stale_s: float, now_s: float) -> str:
        """Format the error for a process that may not run the job. The arguments are those of `is_alive`."""
        if not self.record:
            return (
                f"{self.path} cannot be read, so the owner of job {self.path.parent.name!r} is unknown. The same "
                f"command takes the job over {stale_s:g} s (run.stale_s) after the last change of that file."
            )
        folder = f", in {self.record['folder']}" if self.record.get("folder") else ""
        process = f"process {self.process['pid']} on {self.process['host']} since {self.record['started']}{folder}"
        lease = (
            f" Its last heartbeat was {max(0.0, now_s - self.heartbeat_s):.0f} s ago; it counts as dead after "
            f"{self.lease_s(stale_s):g} s (run.stale_s)."
            if self.is_visible is None
            else ""
        )
        return (
            f"Job {self.path.parent.name!r} is being run by {process}.{lease} Try again when it has ended, wait for it "
            f"(--run.wait_s=600), or give this run another name (--run.name). Its lock is {self.path}."
        )


class Lock:
    """Exclusive right of a process to run a job; a context manager.

    It holds on shared file systems without `flock`: ``lock.json`` is changed only under a `filelock.SoftFileLease`,
    which needs exclusive creation of a file, and it is written by a rename.

    Args:
        root: Folder that holds the runs of all jobs.
        name: Name of the job.
        wait_s: Seconds to wait for another owner.
        stale_s: Seconds without a heartbeat after which an owner on another host counts as dead.
        tell: Called once with a message that names the owner, if this process waits.
        lost: Called from the heartbeat thread with a message that names the new owner, if the job was taken over
            because this process could not send heartbeats, such as after the machine was suspended.
    """

    def __init__(
        self,
        root: Path | str,
        name: str,
        wait_s: float = 0.0,
        stale_s: float = 300.0,
        *,
        tell: Callable[[str], None] = _log.info,
        lost: Callable[[str], None] | None = None,
    ) -> None:
        for key, value, is_valid in (("wait_s", wait_s, wait_s >= 0), ("stale_s", stale_s, stale_s >= 1e-3)):
            if not is_valid or not math.isfinite(value):
                expected = "0 or more" if key == "wait_s" else "above 0"
                raise ConfigError(f"run.{key}: expected a number of seconds, {expected}, got {value!r}")
        self.name = name
        self.path = (Path(root) / name / "lock.json").absolute()
        self._wait_s, self._stale_s = wait_s, stale_s
        self._tell, self._lost = tell, lost
        self._heartbeat_interval_s = min(stale_s / 6, _LONGEST_HEARTBEAT_S)
        self._pid: int | None = None
        self._record: dict[str, Any] = {}
        self._is_delegate = False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        """Take the lock, also from a dead owner, or share it with the owner that has started this process.

        Raises:
            RunLocked: If another process runs the job.
            ConfigError: If the lock cannot be written.
            LightkitError: If the disk is full.
        """
        deadline_s, is_first = time.monotonic() + self._wait_s, True
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            while (message := self._take()) is not None:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    raise RunLocked(f"{message} Waited {self._wait_s:g} s for it." if self._wait_s else message)
                if is_first:
                    self._tell(f"waits up to {self._wait_s:g} s: {message.partition(' Try again')[0]}")
                is_first = False
                time.sleep(min(0.5, left_s))
        except OSError as error:
            reason = error.strerror or str(error)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise LightkitError(
                    f"Cannot write the lock {self.path}: {reason}. Free space, or set run.root to a folder on another "
                    "disk; then run the same command again."
                ) from error
            raise ConfigError(
                f"run.root: cannot write the lock {self.path}: {reason}. Set run.root to a folder that can be written."
            ) from error
        self._pid = os.getpid()
        self._ended.clear()
        self._thread = threading.Thread(target=self._send_heartbeats, name="lightkit-lock", daemon=True)
        self._thread.start()

    def note_folder(self, folder: Path) -> None:
        """Add the run's folder to the description of the owner; only while the lock is held."""
        self._change(folder=str(folder))

    def delegate(self) -> dict[str, str]:
        """Return the environment variables with which a process that this one starts may work on the job."""
        return {HELD_LOCK: json.dumps({"path": str(self.path), "token": self._record["token"]})}

    def release(self) -> None:
        """Give the lock back, unless this process is a fork of the owner, or has lost the lock."""
        if self._pid != os.getpid():
            return
        self._ended.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5.0)
        with suppress(OSError):  # a full disk, or a removed folder: the lock of a process that has ended is free
            if self._is_delegate:
                self._change(delegate=None)
            else:
                with self._guard():
                    if self._is_mine(read_owner(self.path)):
                        self.path.unlink()
        self._pid, self._record, self._is_delegate = None, {}, False

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @contextmanager
    def _guard(self) -> Iterator[float]:
        """Exclude all other changes of the lock file; yield the current time by the clock of the file server."""
        from filelock import SoftFileLease  # 40 ms that commands without a job do not need

        guard = self.path.with_name(".lock")
        with SoftFileLease(guard, lease_duration=_GUARD_LEASE_S).acquire(
            timeout=6 * _GUARD_LEASE_S, poll_interval=0.02
        ):
            yield guard.stat().st_mtime

    def _take(self) -> str | None:
        """Write this process into the lock file, or return a message that names the process which runs the job."""
        with self._guard() as now_s:
            for leftover in self.path.parent.glob(".lock.json.*.aside"):  # a process was killed while it wrote
                leftover.unlink(missing_ok=True)
            owner = read_owner(self.path)
            if owner is not None and self._is_delegated_by(owner):
                self._is_delegate, self._record = True, {**owner.record, "delegate": describe_process()}
            elif owner is not None and owner.is_alive(stale_s=self._stale_s, now_s=now_s):
                return owner.describe(stale_s=self._stale_s, now_s=now_s)
            else:
                self._record = {
                    **describe_process(),
                    "started": f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S UTC}",
                    "folder": None,
                    "token": secrets.token_hex(8),
                    "beat_s": self._heartbeat_interval_s,
                    "delegate": None,
                }
            write_json(self.path, self._record)
        return None

    def _is_delegated_by(self, owner: LockOwner) -> bool:
        try:
            held = json.loads(os.environ.get(HELD_LOCK, "{}"))
        except ValueError:
            return False
        return bool(held == {"path": str(self.path), "token": owner.record.get("token")})

    def _is_mine(self, owner: LockOwner | None) -> bool:
        return owner is not None and bool(owner.record.get("token") == self._record["token"])

    def _change(self, **changes: Any) -> None:
        with self._guard():
            owner = read_owner(self.path)
            if owner is not None and self._is_mine(owner):
                self._record = {**owner.record, **changes}
                write_json(self.path, self._record)

    def _send_heartbeats(self) -> None:
        while not self._ended.wait(self._heartbeat_interval_s):
            with suppress(OSError):  # a file server that is away for a while
                owner = read_owner(self.path)
                if owner is None:
                    self._restore()
                elif not owner.record or self._is_mine(owner):
                    os.utime(self.path)
                else:
                    if self._lost is not None and not self._ended.is_set():
                        self._lost(owner.describe(stale_s=self._stale_s, now_s=time.time()))
                    return

    def _restore(self) -> None:
        """Write the lock file again that a person has deleted."""
        with self._guard():
            if not self.path.exists() and not self._is_delegate and not self._ended.is_set():
                write_json(self.path, self._record)


def read_owner(path: Path) -> LockOwner | None:
    """Read a lock file; None if there is none."""
    try:
        heartbeat_s = path.stat().st_mtime
        content = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    try:
        record = json.loads(content)
    except ValueError:
        record = {}
    return LockOwner(path, record if isinstance(record, dict) and "pid" in record else {}, heartbeat_s)


def lock_holder(root: Path | str, name: str, stale_s: float = 300.0) -> dict[str, Any] | None:
    """Describe the process that runs a job: host, pid, started, heartbeat, folder; None if no process does.

    All values are None if this user may not read the lock, since a process may hold it.

    Args:
        root: Folder that holds the runs of all jobs.
        name: Name of the job.
        stale_s: Seconds without a heartbeat after which an owner on another host counts as dead.
    """
    try:
        owner = read_owner((Path(root) / name / "lock.json").absolute())
    except OSError:
        return dict.fromkeys(("host", "pid", "started", "heartbeat", "folder"))
    if owner is None or not owner.is_alive(stale_s=stale_s, now_s=time.time()):
        return None
    return {
        "host": owner.process.get("host"),
        "pid": owner.process.get("pid"),
        "started": owner.record.get("started"),
        "heartbeat": f"{datetime.fromtimestamp(owner.heartbeat_s, timezone.utc):%Y-%m-%d %H:%M:%S UTC}",
        "folder": owner.record.get("folder"),
    }


def describe_process() -> dict[str, Any]:
    """Describe this process so that `is_gone` can recognize it later, also from another process."""
    return {
        "host": socket.gethostname(),
        "kernel": _describe_kernel(),
        "pid": os.getpid(),
        "process_started": _read_start(os.getpid()),
    }


def is_gone(process: Mapping[str, Any]) -> bool | None:
    """Tell whether a process has ended; None for another host, another container or an earlier boot.

    Args:
        process: Result of `describe_process` in that process.
    """
    here = (socket.gethostname(), _describe_kernel())
    if (process.get("host"), process.get("kernel")) != here or not isinstance(process.get("pid"), int):
        return None
    started = _read_start(process["pid"])
    return started is None or started != process.get("process_started")


def _describe_kernel() -> str:
    """Name the boot and the PID namespace, within which a process number means one process."""
    names = []
    with suppress(OSError):  # macOS has neither
        names.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip())
        names.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(names)


def _read_start(pid: int) -> str | None:
    """Read the start time of a process in a unit that does not change; None if it is dead or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None if Path("/proc/self/stat").exists() else _ask_psutil(pid)
    # proc(5): the second field is the command in parentheses, which may hold spaces; then state, ..., 22 starttime.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


def _ask_psutil(pid: int) -> str | None:
    """Do the same on macOS. On Linux psutil adds the boot time, which moves when the clock is set."""
    import psutil  # slow to import, and not needed on Linux

    with suppress(psutil.Error):
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else str(process.create_time())
    return None
