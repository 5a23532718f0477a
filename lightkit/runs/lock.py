"""One process a job: a second start learns who runs it, and a dead process's lock is nobody's."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any

from lightkit.errors import ConfigError, RunLocked
from lightkit.runs.files import aside_of, read_json, write_json
from lightkit.runs.process import describe_process, is_gone

__all__ = ["Lock"]


class Lock:
    """The right to run a job, held by one process at a time; a context manager.

    ``runs/<name>/lock.json`` says who holds it. It appears and changes as a whole, and only under the guard beside
    it, which the kernel frees when a process dies: of many that find a dead holder, one takes over.

    Args:
        root: Folder that holds the runs of all jobs.
        name: Name of the job.
    """

    def __init__(self, root: Path | str, name: str) -> None:
        self.name = name
        self.path = (Path(root) / name / "lock.json").absolute()
        self._token: str | None = None

    def acquire(self) -> None:
        """Take the lock, from a dead holder too.

        Raises:
            RunLocked: If a living process holds it, or one of which nobody here can tell whether it lives.
            ConfigError: If the lock cannot be written.
        """
        mine = {**describe_process(), "started": _now(), "folder": None, "token": secrets.token_hex(8)}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._guard():
                self._take(mine)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigError(
                f"run.root: cannot write the lock {self.path}: {reason}. Set run.root to a folder that can be written."
            ) from error
        self._token = mine["token"]

    def note_folder(self, folder: Path) -> None:
        """Add the run's folder to what others are told; only while the lock is held."""
        with self._guard():
            write_json(self.path, {**(read_json(self.path) or {}), "folder": str(folder)})

    def release(self) -> None:
        """Give the lock back; nothing happens where it is not this process's."""
        if self._token is None or not self.path.parent.is_dir():
            return
        with self._guard():
            holder = read_json(self.path) or {}
            # The number, because a forked child has this object too, and its end is not the run's.
            if holder.get("token") == self._token and holder.get("pid") == os.getpid():
                self.path.unlink()
        self._token = None

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _take(self, mine: dict[str, Any]) -> None:
        aside = aside_of(self.path)
        try:
            write_json(aside, mine)
            if not self.path.exists():
                os.link(aside, self.path)  # fails where there is a file, should a network disk's guard be blind
            elif is_gone(read_json(self.path) or {}):
                aside.replace(self.path)
            else:
                raise RunLocked(self._held())
        except FileExistsError as error:
            raise RunLocked(self._held()) from error
        finally:
            aside.unlink(missing_ok=True)

    def _held(self) -> str:
        holder = read_json(self.path)
        if holder is None or "pid" not in holder:
            return (
                f"{self.path} cannot be read, so nobody can tell who runs {self.name!r}. "
                f"If no process does, remove that file."
            )
        where = f", in {holder['folder']}" if holder.get("folder") else ""
        who = f"process {holder['pid']} on {holder.get('host')} since {holder.get('started')}{where}"
        if is_gone(holder) is None:
            return (
                f"Job {self.name!r} is held by {who}. Whether that process still lives cannot be told from here; "
                f"if it is known to be dead, remove {self.path}."
            )
        return (
            f"Job {self.name!r} is being run by {who}. Try again when it has ended, or give this run another name "
            f"(--run.name). Its lock is {self.path}."
        )

    @contextmanager
    def _guard(self) -> Iterator[None]:
        descriptor = os.open(self.path.with_name(".lock.guard"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _now() -> str:
    return f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S UTC}"
