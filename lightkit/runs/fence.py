"""Fencing: a process that has lost a job's lock replaces no file of the job any more.

A check before a write is not enough, since the process may be suspended between the two. So the
holder of a lock prepares each file in a folder that carries the token of its lock,
``.staging-TOKEN`` beside ``lock.json``, and renames it from there. Who takes the job over removes
that folder first: a rename of the former holder then finds no file, whenever it comes. An event,
which is appended, carries the token instead; readers pass over events of a former holder that come
after those of the next.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_STAGING = ".staging-"
_REMOVED = ".removed-"


class Fence:
    """Paths that a process may write below a job's folder, and through which folder.

    While it holds the job's lock.

    Args:
        job: The job's folder.
        token: Token of the lock.
        check: Raises `RunLocked` once the lock is lost.
    """

    def __init__(self, job: Path, token: str, check: Callable[[], None]) -> None:
        self.token = token
        self.check = check
        self.staging = job / f"{_STAGING}{token}"
        self._folders = {job.absolute(), job.resolve()}

    def covers(self, path: Path) -> bool:
        """Check whether a file is one of the job's."""
        return any(folder in place.parents for place in (path.absolute(),
                                                         path.parent.resolve() / path.name)
                   for folder in self._folders)  # fmt: skip

    def aside_of(self, path: Path) -> Path:
        """Return a new path from which a file can be renamed to ``path``.

        Beside it where that is on another disk.

        Raises:
            FileNotFoundError: If there is no staging folder any more.
        """
        aside = aside_of(path)
        is_same_disk = self.staging.stat().st_dev == path.parent.stat().st_dev
        return self.staging / aside.name if is_same_disk else aside

    def open(self) -> None:
        """Make the staging folder; files below the job's folder go through it from here on."""
        self.staging.mkdir(exist_ok=True)
        _open.append(self)

    def close(self) -> None:
        """Release the job: its files are written as any others."""
        with suppress(ValueError):
            _open.remove(self)


class NoFence:
    """Paths outside of each job whose lock this process holds: any process may write them."""

    def check(self) -> None:
        """Raise nothing: there is no lock to lose."""

    def aside_of(self, path: Path) -> Path:
        """Return a new path next to ``path``, from which a file can be renamed to it."""
        return aside_of(path)


_open: list[Fence] = []


def aside_of(path: Path) -> Path:
    """Return a new name in the folder of ``path``, for content that is renamed to it when whole."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.aside")


def find_fence(path: Path) -> Fence | None:
    """Return the fence of the job that a file belongs to, if this process holds its lock."""
    return next((fence for fence in _open if fence.covers(path)), None)


def check_fences() -> None:
    """Check that no lock of this process is lost, before something is sent that is in no file.

    Raises:
        RunLocked: If one is.
    """
    for fence in [*_open]:
        fence.check()


def remove_staging(job: Path, *, but: Path | None = None) -> None:
    """Remove the staging folders of a job, so that nothing is renamed out of them any more.

    Each is renamed first: a process that still prepares a file would else fill it again.

    Args:
        job: The job's folder.
        but: One that stays.
    """
    for folder in job.glob(f"{_STAGING}*"):
        if folder != but:
            with suppress(FileNotFoundError):
                folder.rename(job / f"{_REMOVED}{secrets.token_hex(4)}")
    for folder in job.glob(f"{_REMOVED}*"):
        shutil.rmtree(folder, ignore_errors=True)
