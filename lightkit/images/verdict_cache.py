"""Digests of image files, and verdicts on their content, kept from run to run in SQLite.

Whatever befalls the file only costs time.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on

__all__ = ["Verdict", "VerdictCache"]

_TABLES = tuple(
    f"CREATE TABLE IF NOT EXISTS {name} (key BLOB PRIMARY KEY, says TEXT, seal BLOB, day INTEGER) WITHOUT ROWID"
    for name in ("verdicts", "files")
)
_KEPT_DAYS = 180  # unused
_DAY_IS_OLD_DAYS = 30  # then it is written again, and what nobody uses is looked for
_PATIENCE_S = 5.0  # for another process that writes
_MOST_PENDING = 256
_PENDING_S = 5.0
_Row = tuple[bytes, str, bytes, int]  # key, what it says, seal, day on which it was last asked for
_Found = tuple[str, bytes, int]


@dataclass(frozen=True)
class Verdict:
    """What decoding an image once has shown.

    Args:
        digest: SHA-256 of its bytes, hexadecimal; empty where they could not be read.
        defect: Why it cannot be used, in a few words; None where all is well.
        height: Of the upright image, in pixels; 0 where it cannot be used.
        width: In the same way.
        is_jpeg: Whether it is a plain JPEG of 8 bits in grey or colour, of which any decoder of the JPEG library makes
            the same pixels, and whose EXIF alone says how it is turned.
    """

    digest: str
    defect: str | None
    height: int = 0
    width: int = 0
    is_jpeg: bool = False


class VerdictCache:
    """A context manager with what earlier runs found of files and of content; it may be used from several threads.

    A file that is none of SQLite's, or is damaged, is made anew; one that cannot be written is only read; and where
    another process holds it for too long, verdicts are simply not found, or not kept. Each has a seal, so that one that
    was changed is not believed. What nobody has asked for in 180 days is removed, such as the verdicts of another
    Pillow; until then two installations share the file.

    Args:
        path: The file; None keeps nothing.
        rules: What the verdicts depend on beside the content; those of other rules are not found.
    """

    def __init__(self, path: Path | None, *, rules: str) -> None:
        self._path = path
        self._rules = rules.encode()
        self._lock = threading.Lock()
        self._pending: dict[str, list[_Row]] = {"verdicts": [], "files": []}
        self._today = _today()
        self._written_s = time.monotonic()
        self._writes = True
        self._file: sqlite3.Connection | None = None

    def __enter__(self) -> Self:
        if self._path is not None:
            self._file = _opened(self._path)
            self._prune()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._flush()
            if self._file is not None:
                self._file.close()
            self._file = None

    def get(self, digest: str) -> Verdict | None:
        """Give the verdict on content with this SHA-256, if it is known."""
        says = self._get("verdicts", self._key(digest))
        return None if says is None else _verdict(digest, says)

    def put(self, verdict: Verdict) -> None:
        """Keep a verdict; it is written before long, at the latest at the end of the block."""
        says = json.dumps([verdict.defect, verdict.height, verdict.width, verdict.is_jpeg])
        self._put("verdicts", self._key(verdict.digest), says)

    def digest_of(self, path: str, state: Sequence[int]) -> str | None:
        """Give the SHA-256 of a file's content, if it was seen in just this state.

        Args:
            path: The file, absolute.
            state: What changes with its content, such as its time and size.
        """
        says = self._get("files", _file_key(path))
        digest, *seen = ["", ""] if says is None else json.loads(says)
        return digest if seen == [*state] else None

    def put_digest(self, path: str, state: Sequence[int], digest: str) -> None:
        """Keep the SHA-256 of a file in this state, in the place of that of an earlier one."""
        self._put("files", _file_key(path), json.dumps([digest, *state]))

    def _get(self, table: str, key: bytes) -> str | None:
        with self._lock:
            if self._file is None:
                return None
            try:
                query = f"SELECT says, seal, day FROM {table} WHERE key = ?"  # noqa: S608 (one of two names)
                row: _Found | None = self._file.execute(query, (key,)).fetchone()
            except sqlite3.Error:
                return None
        if row is None or row[1] != _seal(key, row[0]):
            return None
        if not 0 <= self._today - row[2] < _DAY_IS_OLD_DAYS:
            self._put(table, key, row[0])
        return row[0]

    def _put(self, table: str, key: bytes, says: str) -> None:
        with self._lock:
            self._pending[table].append((key, says, _seal(key, says), self._today))
            is_late = time.monotonic() - self._written_s > _PENDING_S
            if len(self._pending[table]) >= _MOST_PENDING or is_late:
                self._flush()

    def _flush(self) -> None:
        pending = self._pending
        self._pending = {table: [] for table in pending}
        self._written_s = time.monotonic()
        if self._file is None or not any(pending.values()) or not self._writes:
            return
        try:
            with self._file:
                for table, rows in pending.items():
                    self._file.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?, ?)", rows)  # noqa: S608
        except sqlite3.Error:
            self._writes = False

    def _prune(self) -> None:
        """Remove what was not asked for in a long time; the day of it is the file's ``user_version``."""
        if self._file is None:
            return
        try:
            ((day,),) = self._file.execute("PRAGMA user_version").fetchall()
            if 0 <= self._today - day < _DAY_IS_OLD_DAYS:
                return
            with self._file:
                for table in self._pending:
                    self._file.execute(f"DELETE FROM {table} WHERE day < ?", (self._today - _KEPT_DAYS,))  # noqa: S608
                self._file.execute(f"PRAGMA user_version = {self._today}")
        except sqlite3.Error:  # it cannot be written, or not now
            return

    def _key(self, digest: str) -> bytes:
        return hashlib.blake2b(bytes.fromhex(digest) + self._rules, digest_size=16).digest()


def _today() -> int:
    return int(time.time() // 86400)


def _opened(path: Path) -> sqlite3.Connection | None:
    try:
        return _connected(path)
    except sqlite3.OperationalError as error:
        if "no such column" not in str(error):  # locked, no folder, no rights: nothing is wrong with what is in it
            return None
    except sqlite3.DatabaseError:
        pass
    with suppress(OSError):
        path.with_name(f"{path.name}-journal").unlink(missing_ok=True)  # first, else it would be laid on the new one
        path.unlink()
    try:
        return _connected(path)
    except sqlite3.Error:
        return None


def _connected(path: Path) -> sqlite3.Connection:
    file = sqlite3.connect(path, timeout=_PATIENCE_S, check_same_thread=False)
    try:
        try:
            for table in _TABLES:
                file.execute(table)
        except sqlite3.OperationalError as error:
            if "readonly" not in str(error) and "locked" not in str(error):
                raise
        for name in ("verdicts", "files"):
            file.execute(f"SELECT says, seal, day FROM {name} LIMIT 1").fetchall()  # noqa: S608
    except sqlite3.Error:
        file.close()
        raise
    return file


def _file_key(path: str) -> bytes:
    return hashlib.blake2b(os.fsencode(path), digest_size=16).digest()


def _seal(key: bytes, says: object) -> bytes:
    return hashlib.blake2b(key + str(says).encode("utf-8", "replace"), digest_size=8).digest()


def _verdict(digest: str, says: str) -> Verdict:
    defect, height, width, is_jpeg = json.loads(says)
    return Verdict(digest, defect, height, width, is_jpeg)
