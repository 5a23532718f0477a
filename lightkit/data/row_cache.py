"""Rows that are computed once and mapped into memory by all processes of a machine: decoded images, features.

A file has the CRC-32 of each row, 0 for one that is not there yet, and then the rows; it is named by all that decides
them. A row that a killed process has half written, or that was damaged, differs from its CRC-32 and is computed again.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
import time
import weakref
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
from filelock import FileLock

from lightkit.hardware.cache_folder import cache_folder, private_folder
from lightkit.hardware.processor import available_memory_bytes
from lightkit.images.image_file import count_threads

Bytes = npt.NDArray[np.uint8]
_CRC_BYTES = 4
_SHARE_OF_MEMORY, _SHARE_OF_DISK = 0.25, 0.5
_KEPT_FREE_BYTES = 16 << 20
_RECENT_S, _UNUSED_S = 7 * 24 * 3600.0, 60 * 24 * 3600.0  # a training of a week may still need a file


class RowCache:
    """A file of rows.

    Args:
        path: The file, of the right length.
        sizes: Bytes of each row; a row of 0 bytes is never there.
    """

    def __init__(self, path: Path, sizes: npt.NDArray[np.int64]) -> None:
        self.path, self.sizes = path, sizes
        self._starts = np.cumsum([0, *sizes])
        content = np.asarray(np.memmap(path, np.uint8, "r+"))
        self._crcs = content[: _CRC_BYTES * len(sizes)].view(np.uint32)
        self._content = content[_CRC_BYTES * len(sizes) :]

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> Bytes | None:
        """Return a row without a copy; None where it is not there."""
        return self._row(index) if self._crcs[index] else None

    def __setitem__(self, index: int, row: Bytes) -> None:
        self._row(index)[:] = row
        self._crcs[index] = zlib.crc32(row.data) or 1

    def __reduce__(self) -> tuple[Any, ...]:
        return RowCache, (self.path, self.sizes)

    def _row(self, index: int) -> Bytes:
        return self._content[self._starts[index] : self._starts[index + 1]]

    @property
    def num_found(self) -> int:
        """Number of rows that are there."""
        return int(np.count_nonzero(self._crcs))

    def find_missing(self) -> list[int]:
        """List the rows that have to be computed, in order; each other one is read, about 0.7 s a GB of one core."""

        def check(index: int) -> None:
            if self._crcs[index] and self._crcs[index] != (zlib.crc32(self._row(index).data) or 1):
                self._crcs[index] = 0

        with ThreadPoolExecutor(count_threads()) as pool:
            list(pool.map(check, range(len(self))))
        return np.flatnonzero((self._crcs == 0) & (self.sizes > 0)).tolist()


def open_rows(
    kind: str, key: str, sizes: npt.NDArray[np.int64], *, limit_bytes: float | None = None, in_memory: bool = False
) -> RowCache:
    """Open the file of these rows, or make it with all of its room; every process of a machine may call it.

    Args:
        kind: Folder of the cache, such as ``decoded``.
        key: Hexadecimal digest of all that decides the rows.
        sizes: Bytes of each row.
        limit_bytes: Upper limit for all files of the folder; None is a share of what is free.
        in_memory: Keep the file in the machine's memory. It goes with the process that made it, others keep what they
            have mapped; those of killed processes go with the next call.

    Raises:
        OSError: If there is no room, or no folder that this user can write to.
    """
    home, num_bytes = cache_folder(), int(sizes.sum()) + _CRC_BYTES * len(sizes)
    folder = None if home is None else home / kind
    if in_memory:
        folder = private_folder(Path("/dev/shm" if sys.platform == "linux" else tempfile.gettempdir()))  # noqa: S108
    if folder is None:
        raise FileNotFoundError(errno.ENOENT, "no folder for it can be written")
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        if in_memory:
            for other in folder.glob("*.rows"):
                if not psutil.pid_exists(int(other.stem.rpartition("-")[2])):  # killed
                    other.unlink(missing_ok=True)
        found = [other for other in folder.glob(f"{key[:40]}*.rows") if other.stat().st_size == num_bytes]
        path = found[0] if found else folder / f"{key[:40]}{f'-{os.getpid()}' if in_memory else ''}.rows"
        if not found:
            path.unlink(missing_ok=True)
            _make_room(folder, num_bytes, limit_bytes, in_memory=in_memory)
            try:
                with path.open("wb") as file:
                    if sys.platform == "linux":  # a full disk is an error now, and no crash of a mapped page later
                        os.posix_fallocate(file.fileno(), 0, num_bytes)
                    else:
                        file.truncate(num_bytes)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
        os.utime(path)  # those unused longest are removed first
        rows = RowCache(path, sizes)
        if in_memory and not found:
            weakref.finalize(rows, _remove_own, path, os.getpid())
        return rows


def _make_room(folder: Path, num_bytes: int, limit_bytes: float | None, *, in_memory: bool) -> None:
    """Remove files that were unused for 60 days, and those unused longest as far as is needed, of the last week none.

    Raises:
        OSError: If there is still no room.
    """
    files = sorted((file.stat().st_mtime, file.stat().st_size, file) for file in folder.glob("*.rows"))
    taken, free = sum(size for _, size, _ in files), shutil.disk_usage(folder).free - _KEPT_FREE_BYTES
    if in_memory:
        free = min(free, available_memory_bytes())
    share = _SHARE_OF_MEMORY if in_memory else _SHARE_OF_DISK
    most = (free + taken) * share if limit_bytes is None else limit_bytes
    for used_s, size, file in files:
        unused_s, is_needed = time.time() - used_s, taken + num_bytes > most or num_bytes > free
        if unused_s > _UNUSED_S or (is_needed and unused_s > _RECENT_S):
            file.unlink(missing_ok=True)
            taken, free = taken - size, free + size
    if taken + num_bytes > most or num_bytes > free:
        raise OSError(errno.ENOSPC, f"there is no room for {num_bytes / 1e6:.1f} MB")


def _remove_own(file: Path, process: int) -> None:
    if os.getpid() == process:  # not in a worker that was forked
        file.unlink(missing_ok=True)
