"""Files under their final names: whole, proved, or not there."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lightkit.errors import ConfigError, RunLocked
from lightkit.runs.files import aside_of, flush

__all__ = ["DATA", "aside", "check_free", "held", "publish", "withdraw"]

DATA = ".data"
"""What the name of ONNX's external data adds to the model's."""
_LOCK = ".export.lock"


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Make the folder, keep other exports out of it, and remove what killed ones left there.

    Raises:
        ConfigError: If it cannot be written.
        RunLocked: If another export is at work in it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise ConfigError(
            f"--output: cannot write to {folder}: {error.strerror or error}. Choose a folder that can be written."
        ) from error
    try:
        _lock(descriptor, folder)
        _remove_leftovers(folder)
        yield
    finally:
        os.close(descriptor)


def check_free(folder: Path) -> None:
    """Refuse a folder that another export is at work in, before any work is done for it; nothing is made.

    Raises:
        RunLocked: If one is.
    """
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # none was ever here; what cannot be read is told when it is to be written
        return
    try:
        _lock(descriptor, folder)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel frees it when a process dies
    except BlockingIOError as error:
        raise RunLocked(
            f"Another export is writing to {folder}. Try again when it has ended, or choose another --output."
        ) from error


@contextmanager
def aside(path: Path) -> Iterator[Path]:
    """Give a new hidden folder beside ``path``, on the same disk, which is removed at the end.

    A file in it can have its final name already, as ONNX's reference to its external data needs.
    """
    place = aside_of(path)
    place.mkdir(mode=0o700)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def publish(written: Path, path: Path) -> None:
    """Rename a proved file, and what was written beside it, to its final name.

    Two renames cannot be one. Where ONNX's external data changes, the old model is gone before, so that a kill leaves
    no model rather than one with another's weights.
    """
    for part in sorted(written.parent.iterdir()):
        part.chmod(0o666 & ~_umask())  # torch and onnx may have written them for the owner alone
        flush(part)
    extra = [part for part in sorted(written.parent.iterdir()) if part != written]
    if extra or _data_of(path).exists():
        path.unlink(missing_ok=True)
        _data_of(path).unlink(missing_ok=True)
    for part in extra:
        part.replace(path.with_name(part.name))
    written.replace(path)
    flush(path.parent)


def withdraw(path: Path) -> bool:
    """Remove an earlier file of that name; tell whether there was one."""
    existed = path.exists()
    path.unlink(missing_ok=True)
    _data_of(path).unlink(missing_ok=True)
    return existed


def _data_of(path: Path) -> Path:
    return path.with_name(path.name + DATA)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _remove_leftovers(folder: Path) -> None:
    for left in folder.glob(".*.aside"):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)
