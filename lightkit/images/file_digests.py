"""Digests of files of any kind: what is known from an earlier run is not read again, the rest is read in threads."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO

from lightkit.hardware import processor
from lightkit.hardware.cache_folder import cache_folder
from lightkit.images.verdict_cache import VerdictCache

__all__ = ["CACHE_NAME", "UNREADABLE", "FileDigest", "digest_of", "file_digests", "is_settled", "state_of"]

CACHE_NAME = "image-verdicts.sqlite"
UNREADABLE = "unreadable"
"""Stands in the place of a digest where a file is gone, is none or may not be read."""
_SETTLED_NS = 2_000_000_000  # the coarsest times of a file system, those of FAT
_CHUNK_BYTES = 1 << 20
_AT_A_TIME = 4096
_MOST_THREADS = 8  # hashing is bound by the disk from there on


@dataclass(frozen=True)
class FileDigest:
    """What a file holds.

    Args:
        digest: SHA-256 of its content, hexadecimal, or `UNREADABLE`.
        size_bytes: Its length.
        was_read: Whether it had to be read for that.
    """

    digest: str
    size_bytes: int
    was_read: bool


def file_digests(paths: Iterable[str]) -> Iterator[FileDigest]:
    """Give the digest of each file, in the order of the paths.

    Digests are kept by path, size, times, inode and device, in the same file as the verdicts on images, so that a file
    that either has read is read by neither again. One that was changed less than two seconds before it was read is read
    again the next time: a later change might not show in its times.

    Args:
        paths: Files, which may be gone by now. Some thousand are in memory at a time.
    """
    folder, rest = cache_folder(), iter(paths)
    threads = min(processor.num_cores() or 1, _MOST_THREADS)
    with (
        VerdictCache(None if folder is None else folder / CACHE_NAME, rules="") as cache,
        ThreadPoolExecutor(threads, thread_name_prefix="lightkit-digests") as pool,
    ):
        while some := list(islice(rest, _AT_A_TIME)):
            found = [_known(cache, path) for path in some]
            unknown = [path for path, known in zip(some, found, strict=True) if known is None]
            read = pool.map(lambda path: _read(cache, path), unknown)
            yield from (next(read) if known is None else known for known in found)


def state_of(status: os.stat_result) -> tuple[int, ...]:
    """Give what changes whenever the content of a file does."""
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev


def is_settled(status: os.stat_result, begun_ns: int) -> bool:
    """Tell whether a change after this moment would show in a file's times.

    Args:
        status: The file's state.
        begun_ns: When reading began, in nanoseconds since the epoch.
    """
    return begun_ns - max(status.st_mtime_ns, status.st_ctime_ns) >= _SETTLED_NS


def digest_of(file: BinaryIO) -> str:
    """Give the SHA-256 of what is left of an open file, hexadecimal."""
    hasher = hashlib.sha256()
    while chunk := file.read(_CHUNK_BYTES):
        hasher.update(chunk)
    return hasher.hexdigest()


def _known(cache: VerdictCache, path: str) -> FileDigest | None:
    try:
        status = os.stat(path)  # noqa: PTH116 (pathlib would make an object of each of very many)
    except (OSError, ValueError):  # a name may hold what no file system knows
        return FileDigest(UNREADABLE, 0, was_read=False)
    if not stat.S_ISREG(status.st_mode):
        return FileDigest(UNREADABLE, 0, was_read=False)
    digest = cache.digest_of(os.path.abspath(path), state_of(status))  # noqa: PTH100 (faster)
    return None if digest is None else FileDigest(digest, status.st_size, was_read=False)


def _read(cache: VerdictCache, path: str) -> FileDigest:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 (as above)
            before, begun_ns = os.fstat(file.fileno()), time.time_ns()
            digest = digest_of(file)
            is_still = state_of(before) == state_of(os.fstat(file.fileno()))  # else the digest may be that of neither
    except OSError:
        return FileDigest(UNREADABLE, 0, was_read=True)
    if is_still and is_settled(before, begun_ns):
        cache.put_digest(os.path.abspath(path), state_of(before), digest)  # noqa: PTH100
    return FileDigest(digest, before.st_size, was_read=True)
