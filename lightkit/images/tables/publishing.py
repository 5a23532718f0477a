"""A table appears under its name as a whole, or not at all: written aside and renamed, one writer at a time."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyarrow import ArrowException, parquet

from lightkit.errors import ConfigError, DataError, RunLocked
from lightkit.images.inputs import is_delta
from lightkit.images.tables.writing import MARK
from lightkit.runs.files import flush

__all__ = ["LEFT_OUT", "check_place", "is_own_parquet", "put_in_place", "sole_writer", "told_failures", "written_aside"]

LEFT_OUT = "_bad_images.csv"
"""Lists the images that are in no row; readers of Parquet pass over names that begin so."""
_OWN_FILES = "part-"
_EXCHANGE = 2  # RENAME_EXCHANGE of renameat2(2), Linux 3.15 and glibc 2.28
_AT_FDCWD = -100


def check_place(table: Path, images: Path, *, overwrite: bool, is_delta_wanted: bool) -> None:
    """Refuse a place for a table where something is that must stay.

    Raises:
        ConfigError: If there is something already, or it would lie within the images.
    """
    if images.is_dir() and table.absolute().resolve().is_relative_to(images.resolve()):
        raise ConfigError(f"{table} is in the folder of images {images}. Say another place for the table.")
    if not os.path.lexists(table) or _is_empty(table):
        return
    if not is_delta(table) and not is_own_parquet(table):
        raise ConfigError(
            f"{table} exists, and is no table that lightkit convert has written: it stays as it is. Say another name."
        )
    if not overwrite:
        does = "writes a new version of it" if is_delta(table) else "replaces it"
        raise ConfigError(f"{table} exists, and nothing is added to a table. --overwrite {does}; or say another name.")
    if is_delta(table) != is_delta_wanted:
        kinds = ("delta", "parquet") if is_delta(table) else ("parquet", "delta")
        raise ConfigError(
            f"{table} is of the format {kinds[0]}, and --format says {kinds[1]}. Say --format {kinds[0]}, or another "
            "name."
        )


def is_own_parquet(table: Path) -> bool:
    """Tell whether a folder holds Parquet files of `lightkit convert` and nothing else."""
    if table.is_symlink() or not table.is_dir() or not any(table.iterdir()):
        return False
    return all(_is_own(entry) for entry in table.iterdir())


def _is_own(entry: Path) -> bool:
    if entry.name == LEFT_OUT:
        return True
    if not (entry.name.startswith(_OWN_FILES) and entry.suffix == ".parquet" and entry.is_file()):
        return False
    try:
        return MARK in (parquet.read_metadata(entry).metadata or {})
    except (OSError, ArrowException):
        return False


def _is_empty(table: Path) -> bool:
    return not table.is_symlink() and table.is_dir() and not any(table.iterdir())


@contextmanager
def sole_writer(table: Path) -> Iterator[None]:
    """Hold the right to write a table, by whatever name; the kernel frees it when a process dies.

    Raises:
        RunLocked: If another process is writing it.
        OSError: If the folder that the table is to be in cannot be written.
    """
    table.parent.mkdir(parents=True, exist_ok=True)
    itself = Path(os.path.realpath(table))  # the lock is beside the table, not beside a link to it
    lock = itself.with_name(f".{itself.name}.lock")
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        if not _locked(descriptor, lock):
            raise RunLocked(f"{table}: another process is writing this table. Wait for it, or say another name.")
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _locked(descriptor: int, lock: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), lock.stat())  # else its holder has just removed it
    except (BlockingIOError, FileNotFoundError):
        return False


@contextmanager
def written_aside(table: Path) -> Iterator[Path]:
    """Give an empty folder beside the table, which is gone afterwards unless `put_in_place` has renamed it.

    What a killed process has left there goes first.
    """
    aside = table.with_name(f".{table.name}.aside")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir()
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def put_in_place(aside: Path, table: Path) -> None:
    """Give a finished folder the table's name; what had it before is then at ``aside``, whole.

    Raises:
        OSError: If that cannot be done.
    """
    for file in [*aside.rglob("*"), aside]:
        flush(file)
    if _is_empty(table):
        table.rmdir()
    if not table.exists():
        aside.rename(table)
    elif not _exchanged(aside, table):
        _swap(aside, table)
    flush(table.parent)


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two names in one step, where the system can."""
    if not sys.platform.startswith("linux"):
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    return bool(rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _EXCHANGE) == 0)


def _swap(aside: Path, table: Path) -> None:
    """Exchange two names in three steps: between the first two there is no table, but both are whole."""
    old = table.with_name(f".{table.name}.old")
    table.rename(old)
    try:
        aside.rename(table)
    except OSError:
        old.rename(table)
        raise
    old.rename(aside)


@contextmanager
def told_failures(table: Path, *, wanted_bytes: int) -> Iterator[None]:
    """Say in words that there is no room or no right to write."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DataError(
                f"{table}: there is no room for it ({error.strerror or error}): it needs about "
                f"{wanted_bytes / 1e6:.1f} MB{_free_beside(table)}. Nothing new was left there. Make room, or say "
                "another place."
            ) from error
        raise ConfigError(f"{table}: cannot write here ({error.strerror or error}). Say another place.") from error


def _free_beside(table: Path) -> str:
    with suppress(OSError):
        return f", {shutil.disk_usage(table.parent).free / 1e6:.1f} MB are free"
    return ""
