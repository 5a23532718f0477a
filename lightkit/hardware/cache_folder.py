"""Where lightkit keeps what it can make again: pictures, verdicts on images, decoded pixels."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from filelock import FileLock

from lightkit.errors import DataError

_Status = tuple[int, ...]

_log = logging.getLogger("lightkit.data")
_LIST = ".files.json"
"""Length and CRC-32 of each file of a folder that `make_once` has made, by its path in there."""
_whole: dict[Path, tuple[dict[str, Any], list[_Status | None]]] = {}
"""List and file status of the folders that this process has found whole.

A start asks for a folder twice, to prepare the data and to set it up, and it may have gigabytes.
"""
_CHUNK_BYTES = 1 << 20
_MOST_ATTEMPTS = 3


def cache_folder() -> Path | None:
    """Return a folder that this user can write to, made where it is missing.

    The preferred one, else a temporary one.

    Returns:
        `preferred_cache_folder`; where that cannot be written, ``lightkit-UID`` among the temporary
        files, which is this user's alone; None where neither can be written.
    """
    preferred = preferred_cache_folder()
    return preferred if _can_write(preferred) else private_folder(Path(tempfile.gettempdir()))


def preferred_cache_folder() -> Path:
    """Return `$XDG_CACHE_HOME/lightkit`, by default `~/.cache/lightkit`, which may not be there."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    # a relative path is to be ignored (XDG Base Directory Specification 0.8)
    return (
        Path(chosen) if Path(chosen).is_absolute() else Path("~/.cache").expanduser()
    ) / "lightkit"


def private_folder(parent: Path) -> Path | None:
    """Return ``lightkit-UID`` in a folder that all users share, made where it is missing.

    None if it is another's.
    """
    folder = parent / f"lightkit-{os.getuid()}"
    if not _can_write(folder, mode=0o700) or folder.is_symlink():
        return None
    status = folder.stat()
    return None if status.st_uid != os.getuid() or status.st_mode & 0o022 else folder


def make_once(name: str, build: Callable[[Path], object]) -> Path:
    """Make a folder of the cache that is complete or absent; other processes that want it wait.

    The folder has a list of its files with the CRC-32 of each. One with a file that was cut,
    altered or deleted since is made again, with a warning.

    Args:
        name: Of the folder, in the cache's.
        build: Fills an empty folder, which is renamed afterwards.

    Returns:
        The folder, whose time is that of its last use.

    Raises:
        DataError: If it cannot be written, or does not stay as it was written.
    """
    folder = (cache_folder() or preferred_cache_folder()) / name
    aside = folder.with_name(f".{folder.name}")
    damage: str | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(_MOST_ATTEMPTS):
            with FileLock(f"{aside}.lock"):
                if damage is not None and _find_damage(folder) is not None:
                    shutil.rmtree(folder)
                if not folder.is_dir():
                    shutil.rmtree(aside, ignore_errors=True)  # of a killed process
                    aside.mkdir()
                    build(aside)
                    _write_list(aside)
                    aside.rename(folder)
                os.utime(folder)

            # without the lock: all processes of a machine read it at the same time
            damage = _find_damage(folder)
            if damage is None:
                return folder
            _log.warning("%s is damaged (%s): it is made again", folder, damage)
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be written ({error.strerror or error}). Make room, or set"
            " XDG_CACHE_HOME to a folder with some."
        ) from error
    raise DataError(
        f"{folder}: it does not stay as it was written ({damage}). Set XDG_CACHE_HOME to a folder"
        " on another disk."
    )


def _write_list(folder: Path) -> None:
    """Write the list of a folder's files, which is on the disk before the folder has its name."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    with ThreadPoolExecutor() as pool:
        measured = list(pool.map(_measure_file, files))
    listed = {
        file.relative_to(folder).as_posix(): found
        for file, found in zip(files, measured, strict=True)
    }
    with (folder / _LIST).open("w", encoding="utf-8") as opened:
        json.dump(listed, opened)
        opened.flush()
        os.fsync(opened.fileno())


def _find_damage(folder: Path) -> str | None:
    """Return what differs from the list of a folder's files.

    None where nothing does. A process reads each file once, and again where it has changed. An
    earlier version has written no list: such a folder is taken as it is.
    """
    try:
        listed = json.loads((folder / _LIST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None if folder.is_dir() else "it was deleted"
    except (OSError, ValueError):
        return f"{_LIST} cannot be read"
    if not isinstance(listed, dict):
        return f"{_LIST} cannot be read"
    files = [folder / name for name in listed]
    status = [_read_status(file) for file in files]  # first: a later change is seen
    if _whole.get(folder) == (listed, status):
        return None
    with ThreadPoolExecutor() as pool:
        measured = pool.map(_measure_file, files)
        for name, found in zip(listed, measured, strict=True):
            if found != listed[name]:
                return f"{name} is not as it was written"
    _whole[folder] = (listed, status)
    return None


def _read_status(path: Path) -> _Status | None:
    """Return what of a file differs once it is written or replaced; None where it is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (
        status.st_dev,
        status.st_ino,
        status.st_mode,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def _measure_file(path: Path) -> list[int] | None:
    """Return the length of a file in bytes and its CRC-32; None where it cannot be read."""
    length = 0
    crc = 0
    try:
        if not path.is_file():  # a pipe would be waited for
            return None
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                length += len(chunk)
                crc = zlib.crc32(chunk, crc)
    except OSError:
        return None
    return [length, crc]


def _can_write(folder: Path, mode: int = 0o777) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=mode)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
