"""Locks that the kernel frees when their process dies: of who builds a file, and of who uses one.

Where a file system has none (some network disks), or a lock's file cannot be made, everybody goes on as if alone: two
may then decode the same images, and the rename at the end decides.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["is_gone", "only_one", "own", "remove_after_last_use", "remove_unused", "use"]

_STALE_AFTER_S = 86400.0


@contextmanager
def only_one(path: Path | None, *, waiting: Callable[[], None]) -> Iterator[None]:
    """Within it this process alone holds the lock; the file is gone afterwards.

    Args:
        path: Of the lock; without one everybody goes on.
        waiting: Called once if somebody else holds it.
    """
    descriptor = None if path is None else _held(path, waiting)
    try:
        yield
    finally:
        if path is not None and descriptor is not None:
            with suppress(OSError):  # whose folder was made read-only meanwhile
                path.unlink(missing_ok=True)
            os.close(descriptor)


def use(descriptor: int) -> None:
    """Hold an open file so that `remove_unused` leaves it; to the end of the process, or until it is closed."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    except OSError:
        return  # no locks here


def own(descriptor: int) -> None:
    """Hold an open file that is being written so that `remove_unused` leaves it, until it is closed or in `use`."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        return  # no locks here


def is_gone(descriptor: int) -> bool:
    """Tell whether the name of an open file was removed; its content stays until it is closed."""
    return os.fstat(descriptor).st_nlink == 0


def remove_unused(path: Path, *, may_go: Callable[[os.stat_result], bool] = lambda _: True) -> bool:
    """Remove a file that no process uses or writes; tell whether it is gone.

    Args:
        path: Of the file.
        may_go: Asked under its lock.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    except OSError:  # another user's
        return False
    try:
        if not _is_unused(descriptor) or not may_go(os.fstat(descriptor)):
            return False
        path.unlink(missing_ok=True)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)


def remove_after_last_use(path: Path, descriptor: int) -> None:
    """Remove a file that is held with `use`, unless others hold it too.

    The lock belongs to what was opened here, so that worker processes that were forked since do not count as others.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.stat().st_ino == os.fstat(descriptor).st_ino:
            path.unlink()
    except OSError:  # held by others, or gone already; without locks its age will tell
        return


def _held(path: Path, waiting: Callable[[], None]) -> int | None:
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:  # a full disk, too many open files, a link, or somebody else's
            return None
        try:
            _take(descriptor, waiting)
            if not is_gone(descriptor):  # the one before has removed it under its lock
                return descriptor
        except OSError:  # no locks here
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _take(descriptor: int, waiting: Callable[[], None]) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        waiting()
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _is_unused(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # no locks here: nothing but its age tells
        return time.time() - os.fstat(descriptor).st_mtime > _STALE_AFTER_S
    return True
