"""The folders for decoded images: how much each may take, and what goes where that is too much."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lightkit.data.cache.building import UNFINISHED
from lightkit.data.cache.locks import remove_unused
from lightkit.hardware.cache_folder import cache_folder, preferred_cache_folder
from lightkit.hardware.processor import available_memory_bytes

__all__ = ["Place", "lock_folder", "places"]

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 (a folder in it is this user's alone)
_SHARE_OF_MEMORY = 0.25
_SHARE_OF_DISK = 0.5
_LEFT_FREE_BYTES = 16 << 20


@dataclass(frozen=True)
class Place:
    """A folder for decoded images.

    Args:
        folder: It may be missing.
        kind: `memory` is gone with its last user, `disk` stays.
    """

    folder: Path
    kind: Literal["memory", "disk"]

    @property
    def is_temporary(self) -> bool:
        """Whether a file in it goes with its last user."""
        return self.kind == "memory"

    @property
    def words(self) -> str:
        """What people are told of it."""
        return "in memory" if self.kind == "memory" else f"on disk in {self.folder}"

    def clean(self, *, keep: str) -> None:
        """Remove what killed processes have left: files that were not complete, and in memory all without a user.

        Args:
            keep: Name of the file that is wanted now.
        """
        orphans = [file for file in self._files() if self.is_temporary and file.name != keep]
        for file in [*self.folder.glob(f".*{UNFINISHED}"), *orphans]:
            remove_unused(file)

    def room_bytes(self, limit_bytes: float | None) -> int:
        """Give the length of the largest file that may be made here, after `make_room`.

        Args:
            limit_bytes: Most that all files here may take; by default a quarter of the memory that is available, or
                half of what is free on the disk and taken by such files already.
        """
        free, taken = self._free_bytes(), self._taken_bytes()
        if self.kind == "memory":
            available = available_memory_bytes()
            most = available * _SHARE_OF_MEMORY if limit_bytes is None else limit_bytes - taken
            return max(0, int(min(most, available, free)))
        most = (free + taken) * _SHARE_OF_DISK if limit_bytes is None else limit_bytes
        return max(0, int(min(most, free + taken)))

    def make_room(self, num_bytes: int, limit_bytes: float | None) -> bool:
        """Remove the files that were unused longest until one of that length may be made; tell whether it may.

        A file that a process uses stays, and nothing goes where that would not be enough.

        Raises:
            OSError: If the folder cannot be made.
        """
        if num_bytes > self.room_bytes(limit_bytes):
            return False
        if self.kind == "memory":
            return True
        most = (self._free_bytes() + self._taken_bytes()) * _SHARE_OF_DISK if limit_bytes is None else limit_bytes
        for oldest in sorted(self._files(), key=_last_use):
            if self._fits(num_bytes, most):
                break
            remove_unused(oldest)
        return self._fits(num_bytes, most)

    def _fits(self, num_bytes: int, most: float) -> bool:
        return self._taken_bytes() + num_bytes <= most and num_bytes <= self._free_bytes()

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("*.pixels"))

    def _taken_bytes(self) -> int:
        return sum(_length(file) for file in self._files())

    def _free_bytes(self) -> int:
        self.folder.mkdir(parents=True, exist_ok=True)
        return max(0, shutil.disk_usage(self.folder).free - _LEFT_FREE_BYTES)


def places(cache: Literal["auto", "memory", "disk"]) -> list[Place]:
    """Give the folders that there are for what the config says, the best first."""
    memory = [Place(folder, "memory") for folder in _memory_folders()]
    # the preferred one first, even where nothing can be written to it: what is needed may be there
    kept = dict.fromkeys([preferred_cache_folder(), cache_folder()])
    disk = [Place(folder / "decoded", "disk") for folder in kept if folder is not None]
    if cache == "memory":
        return memory
    if cache == "disk":
        return disk
    return [*(place for place in memory if place.folder.is_relative_to(_SHARED_MEMORY)), *disk]


def lock_folder() -> Path | None:
    """Give a folder of this user on this machine; None where there is none."""
    return next(iter(_memory_folders()), None)


def _memory_folders() -> list[Path]:
    """Give this user's own folder in shared memory, and the one among the temporary files.

    The latter serves where there is no shared memory, or little as in a container: what is mapped is in memory too.
    """
    roots = [_SHARED_MEMORY] if sys.platform == "linux" else []
    folders = [root / f"lightkit-{os.getuid()}" for root in (*roots, Path(tempfile.gettempdir()))]
    return [folder for folder in dict.fromkeys(folders) if _is_own(folder)]


def _is_own(folder: Path) -> bool:
    """Make the folder, and tell whether nobody else can put anything into it."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    is_shut = stat.S_ISDIR(found.st_mode) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return is_shut and found.st_uid == os.getuid() and os.access(folder, os.W_OK | os.X_OK)


def _last_use(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _length(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
