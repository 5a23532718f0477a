"""What is left of the disk and of the memory."""

from __future__ import annotations

import os
from pathlib import Path

from lightkit.errors import CheckpointError
from lightkit.hardware.processor import available_memory_bytes

__all__ = ["check_room", "existing_folder", "free_bytes", "in_bytes", "what_is_free"]


def free_bytes(path: Path | str) -> int | None:
    """Give what this user may still write on the disk of a file or folder, which need not be there yet.

    A quota is not in it: a write beyond one fails later, as one on a full disk does. None where nobody knows.
    """
    try:
        disk = os.statvfs(existing_folder(Path(path)))
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize


def what_is_free(folder: Path | str) -> dict[str, int | None]:
    """Give what is left of a folder's disk and of the memory, as events tell it."""
    return {"disk_free_bytes": free_bytes(folder), "memory_free_bytes": available_memory_bytes()}


def check_room(path: Path, needed_bytes: int) -> None:
    """Make sure that a checkpoint fits beside those that are there.

    Raises:
        CheckpointError: If it does not.
    """
    free = free_bytes(path.parent)
    if free is not None and needed_bytes > free:
        raise CheckpointError(
            f"The checkpoint {path} needs {in_bytes(needed_bytes)}, but {in_bytes(free)} are free on its disk. It was "
            f"not written, and the one before it, if any, is untouched. Free space, or set run.root to a folder on "
            f"another disk; then run the same command to resume."
        )


def existing_folder(path: Path) -> Path:
    """Give the nearest folder or file above, or at, a path that is there."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def in_bytes(number: float) -> str:
    """Write a number of bytes with a unit: `14.2 MB`."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "bytes" else f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"
