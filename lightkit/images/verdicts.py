"""Verdicts on image files, each decoded once, and digests of files.

Both are kept from run to run in SQLite.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import PIL
from PIL import Image, ImageFile, features

from lightkit.hardware.cache_folder import cache_folder
from lightkit.images.image_file import (
    count_libtiff_errors,
    count_threads,
    format_reason,
    load_frame,
    map_in_order,
    overlay_white,
    pillow_warnings,
    read_orientation,
)

log = logging.getLogger("lightkit.data")

UNREADABLE = "unreadable"
"""In place of the digest of a file that is gone, is none or may not be read."""
_CACHE_NAME = "image-verdicts.sqlite"
_VERSION = 5  # of the rules and the table: raise it with every change of either
_KEPT_DAYS = 180
_LOCK_TIMEOUT_S = 5.0
_MAX_PENDING = 256  # rows, written together
_SETTLED_NS = 2_000_000_000  # the coarsest times of a file system, those of FAT
_CHUNK_BYTES = 1 << 20
_AHEAD = 256  # files
_LARGE_PIXELS = 8_000_000  # larger images are decoded one at a time
_SIDEWAYS = (5, 6, 7, 8)  # orientations that swap height and width


@dataclass(frozen=True)
class Verdict:
    """Digest of a file, and the result of decoding it once as an image.

    Args:
        digest: SHA-256 of its bytes, hexadecimal, or `UNREADABLE`.
        defect: Why it cannot be used, in a few words, else None.
        height: Of the upright image, in pixels; 0 if it cannot be used, or was not decoded.
        width: Likewise.
        size_bytes: Its length.
    """

    digest: str
    defect: str | None = None
    height: int = 0
    width: int = 0
    size_bytes: int = 0


def judge_images(paths: Iterable[Path]) -> Iterator[Verdict]:
    """Read and decode each file once, in threads, and yield the verdicts in the order of the paths.

    Verdicts are kept by path, size and time of change, so that the next time only files are read
    that are new or were touched. A file that was changed less than two seconds before it was read
    is read again: a later change might not show in its time. A verdict that is no property of the
    content, such as on a file that may not be read, is not kept.

    Args:
        paths: Files, which may be gone by now. Few are in memory at a time, however many or large
            they are.
    """
    formats = [name for name in ("avif", "jpg_2000", "libtiff", "webp") if features.check(name)]
    rules = repr(
        (
            _VERSION,
            PIL.__version__,
            formats,
            Image.MAX_IMAGE_PIXELS,
            ImageFile.LOAD_TRUNCATED_IMAGES,
        )
    )
    with (
        _open_cache() as cache,
        pillow_warnings(),
        # One thread: glibc keeps the memory that a thread has freed for that thread.
        ThreadPoolExecutor(1, thread_name_prefix="lightkit-large") as large,
        ThreadPoolExecutor(count_threads(), thread_name_prefix="lightkit-verdicts") as pool,
    ):
        before = count_libtiff_errors()
        judge = partial(cache.judge, rules=rules, decode=partial(_decode, large=large))
        yield from map_in_order(pool, judge, paths, ahead=_AHEAD)
        if num := count_libtiff_errors() - before:
            log.warning(
                "libtiff reported %d errors in images; bad_images.csv"
                " lists those that it cannot decode",
                num,
            )


def compute_file_digests(paths: Iterable[str]) -> Iterator[Verdict]:
    """Compute digest and length of each file, in threads, in the order of the paths.

    Kept as the verdicts are.

    Args:
        paths: Files of any kind, which may be gone by now.
    """
    with (
        _open_cache() as cache,
        ThreadPoolExecutor(count_threads(), thread_name_prefix="lightkit-digests") as pool,
    ):
        yield from map_in_order(pool, cache.judge, paths, ahead=_AHEAD)


def judge_files(
    paths: Iterable[Path],
    decode: Callable[[BinaryIO, Path | str], tuple[Decoded, bool]],
    *,
    rules: str,
) -> Iterator[Verdict]:
    """Read each file once, in threads, and yield the verdicts in the order of the paths.

    Kept as those of images are.

    Args:
        paths: Files, which may be gone by now.
        decode: Reads an open file with this path, and returns defect, height and width, and whether
            they are a property of its content alone. It runs in threads.
        rules: By which it judges; a verdict by other rules does not count.
    """
    known = repr(
        (rules, _VERSION, PIL.__version__, Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)
    )
    with (
        _open_cache() as cache,
        pillow_warnings(),
        ThreadPoolExecutor(count_threads(), thread_name_prefix="lightkit-verdicts") as pool,
    ):
        yield from map_in_order(
            pool, partial(cache.judge, rules=known, decode=decode), paths, ahead=_AHEAD
        )


Decoded = tuple[str | None, int, int]
"""Defect, height and width."""
_NOT_DECODED: Decoded = (None, 0, 0)


def _decode(file: BinaryIO, path: Path | str, *, large: Executor) -> tuple[Decoded, bool]:
    """Decode an image, and tell whether the result is a property of its content."""

    def decode() -> Decoded:
        orientation = read_orientation(load_frame(image))
        overlay_white(image.crop((0, 0, 1, 1)))  # some kinds of pixels cannot be converted
        width, height = reversed(size) if orientation in _SIDEWAYS else size
        return None, height, width

    try:
        with Image.open(file) as image:
            size = image.size
            # reads all of a JPEG, in less time and memory
            image.draft(None, (max(1, image.width // 8), max(1, image.height // 8)))
            is_large = image.width * image.height > _LARGE_PIXELS
            return large.submit(decode).result() if is_large else decode(), True
    except Exception as error:  # noqa: BLE001 (of any kind: decoders raise what they like on damaged files)
        is_external = isinstance(error, OSError) and error.errno is not None
        return (format_reason(error, path), 0, 0), not is_external


def _hash_file(file: BinaryIO) -> str:
    hasher = hashlib.sha256()
    while chunk := file.read(_CHUNK_BYTES):
        hasher.update(chunk)
    return hasher.hexdigest()


def _is_settled(before: os.stat_result, after: os.stat_result, start_ns: int) -> bool:
    """Check that a file did not change while it was read.

    Also check that a later change would show in its time.
    """
    states = [(each.st_size, each.st_mtime_ns, each.st_ctime_ns) for each in (before, after)]
    return (
        states[0] == states[1]
        and start_ns - max(before.st_mtime_ns, before.st_ctime_ns) >= _SETTLED_NS
    )


class _FileCache:
    """Digests and verdicts of earlier runs, by path, size and time of change; for several threads.

    Args:
        connection: To the table of them; None where there is none, which only costs time.
    """

    def __init__(self, connection: sqlite3.Connection | None) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._rows: list[tuple[Any, ...]] = []

    def _find(self, key: bytes, status: os.stat_result, rules: str | None) -> Verdict | None:
        """Find the verdict of an earlier run by some rules, or by any."""
        if self._connection is None:
            return None
        with self._lock, suppress(sqlite3.Error):
            query = (
                "SELECT rules, digest, defect, height, width FROM"
                " files_v4 WHERE path = ? AND size = ? "
            )
            found = (key, status.st_size, _changed_ns(status))
            row = self._connection.execute(f"{query} AND changed_ns = ?", found).fetchone()
            if row and rules in (None, row[0]):
                _, digest, defect, height, width = row
                return Verdict(digest, defect, height, width, status.st_size)
        return None

    def judge(
        self,
        path: Path | str,
        *,
        rules: str = "",
        decode: Callable[[BinaryIO, Path | str], tuple[Decoded, bool]] | None = None,
    ) -> Verdict:
        """Find digest and verdict of a file, or read it.

        Args:
            path: The file.
            rules: By which images are judged.
            decode: Decodes the open file, if it is an image.
        """
        try:
            status = os.stat(path)  # noqa: PTH116 (of very many)
            key = os.fsencode(os.path.abspath(path))  # noqa: PTH100 (of very many)
            known = self._find(key, status, None if decode is None else rules)
            if known is not None:
                return known
            # without waiting for the other end, if it is a pipe
            descriptor = os.open(
                path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
            )
            with os.fdopen(descriptor, "rb") as file:
                before = os.fstat(descriptor)
                start_ns = time.time_ns()
                if not stat.S_ISREG(before.st_mode):
                    raise ValueError("neither a file nor a folder")  # noqa: TRY301
                digest = _hash_file(file)
                file.seek(0)
                decoded, is_lasting = (_NOT_DECODED, True) if decode is None else decode(file, path)
                if is_lasting and _is_settled(before, os.fstat(descriptor), start_ns):
                    today = int(time.time() // 86400)
                    with self._lock:
                        self._rows.append(
                            (
                                key,
                                before.st_size,
                                _changed_ns(before),
                                today,
                                digest,
                                rules,
                                *decoded,
                            )
                        )
                        if len(self._rows) >= _MAX_PENDING:
                            self.flush()
            return Verdict(digest, *decoded, before.st_size)
        except (OSError, ValueError) as error:  # a name may have characters that no file system has
            return Verdict(UNREADABLE, format_reason(error, path))

    def flush(self) -> None:
        """Write what was found."""
        rows = self._rows
        self._rows = []
        if self._connection is not None and rows:
            with suppress(sqlite3.Error), self._connection:
                query = "INSERT OR REPLACE INTO files_v4 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
                self._connection.executemany(query, rows)


@contextmanager
def _open_cache() -> Iterator[_FileCache]:
    """Open the table of verdicts, and write to it at the end.

    One that cannot be written, or that another process holds for too long, only costs time. A
    damaged one goes, and the next run makes it anew. Rows are removed after 180 days.
    """
    folder = cache_folder()
    path = None if folder is None else folder / _CACHE_NAME
    connection = None
    with suppress(sqlite3.OperationalError):  # it cannot be opened
        connection = (
            None
            if path is None
            else sqlite3.connect(path, timeout=_LOCK_TIMEOUT_S, check_same_thread=False)
        )
    if connection is not None:
        try:
            with suppress(sqlite3.OperationalError), connection:  # it cannot be written, or not now
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS files_v4 (path BLOB PRIMARY KEY, size INTEGER,"
                    " changed_ns INTEGER, day INTEGER, digest TEXT, rules TEXT, defect TEXT, height"
                    " INTEGER, width INTEGER)"
                )
                oldest = int(time.time() // 86400) - _KEPT_DAYS
                connection.execute("DELETE FROM files_v4 WHERE day < ?", (oldest,))
            connection.execute("SELECT * FROM files_v4 LIMIT 1").fetchall()
        except sqlite3.OperationalError:  # locked, or no rights: each look at it would wait as long
            connection.close()
            connection = None
        except sqlite3.DatabaseError:
            for suffix in ("", "-journal"):
                Path(f"{path}{suffix}").unlink(missing_ok=True)
    cache = _FileCache(connection)
    try:
        yield cache
    finally:
        cache.flush()
        if connection is not None:
            connection.close()


def _changed_ns(status: os.stat_result) -> int:
    """Return the later time of change: of the content, or of the file.

    No program can set that back.
    """
    return max(status.st_mtime_ns, status.st_ctime_ns)
