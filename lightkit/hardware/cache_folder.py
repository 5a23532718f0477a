"""Where lightkit keeps what it can make again: pictures, verdicts on images, decoded pixels."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from lightkit.errors import DataError


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

    Args:
        name: Of the folder, in the cache's.
        build: Fills an empty folder, which is renamed afterwards.

    Returns:
        The folder, whose time is that of its last use.

    Raises:
        DataError: If it cannot be written.
    """
    folder = (cache_folder() or preferred_cache_folder()) / name
    aside = folder.with_name(f".{folder.name}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{aside}.lock"):
            if not folder.is_dir():
                shutil.rmtree(aside, ignore_errors=True)  # of a killed process
                aside.mkdir()
                build(aside)
                aside.rename(folder)
            os.utime(folder)
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be written ({error.strerror or error}). Make room, or set"
            " XDG_CACHE_HOME to a folder with some."
        ) from error
    return folder


def _can_write(folder: Path, mode: int = 0o777) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=mode)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
