"""bad_images.csv: each image or row that a run has left out, once, with the reason and when it was found."""

from __future__ import annotations

import csv
import errno
import fcntl
import io
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from lightkit.errors import visible
from lightkit.runs.files import aside_of

_NUM_REASONS = 3
_ENCODING = {"encoding": "utf-8", "errors": "surrogateescape"}


class BadImage(NamedTuple):
    """One row of the list.

    Args:
        path: Its file, or its table and row.
        reason: Why it is left out, in a few words.
        found: `scan` before a stage; `epoch 3` in that epoch of a fit, counted from 0 as in metrics.csv; `validate`,
            `test` or `predict` in such a stage.
    """

    path: str
    reason: str
    found: str


class BadImageList:
    """A CSV file with the columns path, reason and found, to which all ranks of a run add.

    Names that are no UTF-8 stand in it byte for byte. Rows are added at the end under a lock that the system takes
    back from a process that is killed; a row that such a process left unfinished is removed first.

    Args:
        path: The file; it is made with the first row.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> list[BadImage]:
        """Give the whole rows that are there."""
        try:
            return _rows(self.path.read_bytes())
        except OSError:
            return []

    def replace_scan(self, rows: Iterable[BadImage]) -> None:
        """Put what a scan has found in the place of what an earlier scan had; what was found later stays.

        For one process, before the others add to the list.
        """
        found = [*rows]
        known = {row.path for row in found}
        later = [row for row in self.rows() if row.found != "scan" and row.path not in known]
        if found or later:
            self.write([*found, *later])
        else:
            self.path.unlink(missing_ok=True)

    def write(self, rows: Iterable[BadImage]) -> None:
        """Replace the whole list."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        aside = aside_of(self.path)
        try:
            aside.write_bytes(_text([BadImage._fields, *rows]))
            aside.replace(self.path)
        finally:
            aside.unlink(missing_ok=True)

    def add(self, rows: Iterable[BadImage]) -> None:
        """Add those whose path is not in the list."""
        with self.path.open("a+b", buffering=0) as file, _locked(file) as is_alone:
            file.seek(0)
            content = file.read()
            whole = content[: _whole_bytes(content)]
            if len(whole) < len(content):
                _repair(file, content, keep_bytes=len(whole) if is_alone else None)
            known = {row.path for row in _rows(whole)}
            new = {row.path: row for row in rows if row.path not in known}
            for row in [*([] if whole or not new else [BadImage._fields]), *new.values()]:
                _append(file, _text([row]))


def most_frequent(reasons: Iterable[str]) -> str:
    """Say the most frequent of some reasons in one line: ``2 Permission denied, 1 Truncated File Read``."""
    counts = Counter(reasons).most_common()
    shown = [f"{count} {visible(' '.join(reason.split()), in_line=True)}" for reason, count in counts[:_NUM_REASONS]]
    rest = sum(count for _, count in counts[_NUM_REASONS:])
    return ", ".join([*shown, *([f"{rest} for other reasons"] if rest else [])])


@contextmanager
def _locked(file: FileIO) -> Iterator[bool]:
    """Hold the lock of a file; say whether there is one, which some network file systems lack."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:  # then two ranks may name the same image
        yield False
        return
    try:
        yield True
    finally:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)


def _whole_bytes(content: bytes) -> int:
    """Give where the last whole row ends: at an end of a line that is not inside quotes."""
    at = end = num_quotes = 0
    while at < len(content) and (after := content.find(b"\n", at) + 1):
        num_quotes += content.count(b'"', at, after)
        at = after
        end = end if num_quotes % 2 else after
    return end


def _repair(file: FileIO, content: bytes, *, keep_bytes: int | None) -> None:
    """Remove an unfinished row; without a lock, others may be adding, so that it is closed instead."""
    if keep_bytes is not None:
        file.truncate(keep_bytes)
    else:
        _append(file, b'"\n' if content.count(b'"') % 2 else b"\n")


def _append(file: FileIO, content: bytes) -> None:
    """Add to the end at once, so that nothing of another process comes in between."""
    if file.write(content) != len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _text(rows: Iterable[Iterable[str]]) -> bytes:
    return "".join(f"{','.join(map(_quoted, row))}\n" for row in rows).encode(**_ENCODING)


def _quoted(field: str) -> str:
    # csv leaves a carriage return bare before Python 3.13, and then takes it for the end of the row
    return '"{}"'.format(field.replace('"', '""')) if any(mark in field for mark in ',"\r\n') else field


def _rows(content: bytes) -> list[BadImage]:
    whole = content[: _whole_bytes(content)].decode(**_ENCODING)
    found = [row for row in csv.reader(io.StringIO(whole, newline="")) if len(row) == len(BadImage._fields)]
    return [BadImage(*row) for row in found if tuple(row) != BadImage._fields]
