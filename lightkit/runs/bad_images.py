"""bad_images.csv: each image or row that a run has left out, once, with reason and time."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from lightkit.errors import visible
from lightkit.runs.files import atomic_write, keep_damaged

_NUM_REASONS = 3


class BadImage(NamedTuple):
    """One row of the list.

    Args:
        path: Its file, or its table and row.
        reason: Why it is left out, in a few words.
        found: `scan` before a stage; `epoch 3` in that epoch of a fit, counted from 0 as in
            metrics.csv; `validate`, `test` or `predict` in such a stage.
    """

    path: str
    reason: str
    found: str


def read_bad_images(path: Path) -> list[BadImage]:
    """Read the rows of a list, up to what is no CSV; none where there is no file."""
    if not path.is_file():  # a pipe would be waited for
        return []
    found = []
    with (
        suppress(OSError, csv.Error),
        path.open(encoding="utf-8", errors="surrogateescape", newline="") as file,
    ):
        for row in csv.reader(file):
            found.append(row)  # noqa: PERF402 (those before the error are kept)
    rows = [BadImage(*row) for row in found if len(row) == len(BadImage._fields)]
    return [row for row in rows if row != BadImage._fields]


def write_bad_images(path: Path, rows: Sequence[BadImage]) -> None:
    """Replace a CSV file with the columns path, reason and found as a whole.

    Without rows it is removed.

    File names that are not UTF-8 keep their bytes.
    """
    if not path.is_file():
        keep_damaged(path)
    if not rows:
        path.unlink(missing_ok=True)
        return
    lines = [",".join(map(_quote, row)) + "\n" for row in (BadImage._fields, *rows)]
    with atomic_write(path, durable=False) as aside:
        aside.write_bytes("".join(lines).encode("utf-8", "surrogateescape"))


def most_frequent(reasons: Iterable[str]) -> str:
    """Format the top reasons in one line: ``2 Permission denied, 1 Truncated File Read``."""
    counts = Counter(reasons).most_common()
    shown = [
        f"{count} {visible(' '.join(reason.split()), in_line=True)}"
        for reason, count in counts[:_NUM_REASONS]
    ]
    rest = sum(count for _, count in counts[_NUM_REASONS:])
    return ", ".join([*shown, *([f"{rest} for other reasons"] if rest else [])])


def _quote(field: str) -> str:
    # the csv module writes a bare carriage return before Python 3.13, and reads it as the end of
    # the row
    return (
        '"{}"'.format(field.replace('"', '""'))
        if any(mark in field for mark in ',"\r\n')
        else field
    )
