"""metrics.csv: one row an epoch, whatever an epoch measured.

The table is made from the events of the epochs, which are appended first: where the file and
``events.jsonl`` beside it disagree, as after a copy that was cut, the events count.
"""

from __future__ import annotations

import csv
import io
import logging
import math
from collections.abc import Collection, Mapping
from pathlib import Path

from lightkit.runs.events import read_events
from lightkit.runs.files import keep_damaged, write_text

STEP_SUFFIX = "_step"
"""End of the name of a column with the value of the last step of each epoch, which Lightning's own
names have too."""
_KEYS = ("epoch", "step")
_log = logging.getLogger("lightkit")
_warned: set[Path] = set()


def is_of_last_step(name: str, names: Collection[str]) -> bool:
    """Check whether a column has each epoch's last step, and no column the epoch's value.

    Args:
        name: Of the column.
        names: Of all columns.
    """
    return name.endswith(STEP_SUFFIX) and name.removesuffix(STEP_SUFFIX) not in names


class MetricsTable:
    """A table with the columns epoch, step and one for each metric, sorted by name.

    The file is replaced as a whole with each row, so that a reader, or the next process after a
    kill, finds whole rows only. A thousand epochs are some hundred kilobytes.

    Args:
        path: The file. Rows that it has already are kept, and those that it lacks are read from
            ``events.jsonl``.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._rows, self._is_damaged = _read(self.path)

    @property
    def rows(self) -> list[dict[str, float]]:
        """The rows in the order of the epochs.

        A metric that an epoch did not measure is not in its row.
        """
        return [dict(row) for row in self._rows]

    @property
    def newest(self) -> dict[str, float]:
        """The row of the newest epoch; empty without one."""
        return dict(self._rows[-1]) if self._rows else {}

    def record(self, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Write the row of an epoch.

        In place of the rows of this epoch and of later ones, which are trained again.
        """
        measured = {name: float(value) for name, value in values.items() if name not in _KEYS}
        earlier = [row for row in self._rows if row["epoch"] < epoch]
        self._rows = [*earlier, {"epoch": epoch, "step": step, **measured}]
        names = sorted({name for row in self._rows for name in row} - set(_KEYS))
        text = io.StringIO(newline="")
        table = csv.DictWriter(text, [*_KEYS, *names], restval="", lineterminator="\n")
        table.writeheader()
        table.writerows(self._rows)
        if self._is_damaged:
            keep_damaged(self.path)
            self._is_damaged = False
        write_text(self.path, text.getvalue())


def _read(path: Path) -> tuple[list[dict[str, float]], bool]:
    """Read the rows of the file, for each that differs from its event that of the event.

    Returns:
        The rows, and whether the file is damaged, after a warning.
    """
    of_file, is_damaged = _read_file(path)
    of_events, known = _read_events(path.with_name("events.jsonl"))

    def is_right(epoch: int, row: dict[str, float]) -> bool:
        if epoch in of_events:
            return _is_same(row, of_events[epoch])
        # A row without an event is one of an epoch whose event was lost; steps grow from epoch to
        # epoch.
        return epoch not in known and not _contradicts(row, of_events)

    rows = of_events | {epoch: row for epoch, row in of_file.items() if is_right(epoch, row)}
    merged = [rows[epoch] for epoch in sorted(rows)]

    # The newest row may be written in this moment.
    newest = max(of_events, default=0)
    older = [row for row in merged if row["epoch"] < newest]
    is_damaged |= path.is_file() and older != [
        row for row in of_file.values() if row["epoch"] < newest
    ]
    if is_damaged and path not in _warned:
        _warned.add(path)
        rebuilt = (
            "its rows are read from events.jsonl"
            if of_events
            else "rows that cannot be read are left out"
        )
        _log.warning("%s is damaged: %s.", path, rebuilt)
    return merged, is_damaged


def _read_file(path: Path) -> tuple[dict[int, dict[str, float]], bool]:
    """Read the rows of the file by epoch, and whether it has others that cannot be read."""
    if not path.is_file():
        return {}, path.exists()
    rows = {}
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        text = file.read()
    # The last line of a file that was cut may end with a part of a number, which is another one.
    is_damaged = not text.endswith("\n")
    whole_lines = text[: text.rfind("\n") + 1]
    table = csv.reader(io.StringIO(whole_lines, newline=""), strict=True)
    try:
        names = next(table, [])
        for cells in table:
            row = _parse_row(names, cells)
            if row is None:
                is_damaged = True
            else:
                rows[int(row["epoch"])] = row
    except csv.Error:  # such as a field without an end
        is_damaged = True
    return rows, is_damaged


def _parse_row(names: list[str], cells: list[str]) -> dict[str, float] | None:
    """Return a row with its numbers; None if a number is none, or the row is not whole."""
    found = dict(zip(names, cells, strict=False))
    if len(cells) != len(names) or not all(found.get(key) for key in _KEYS):
        return None
    try:
        numbers: dict[str, float] = {key: int(found[key]) for key in _KEYS}
        return numbers | {
            name: float(cell) for name, cell in found.items() if cell and name not in _KEYS
        }
    except ValueError:
        return None


def _read_events(path: Path) -> tuple[dict[int, dict[str, float]], set[int]]:
    """Read the rows that the events of epochs give, by epoch.

    Also read the epochs that have been recorded at any time.
    """
    rows: dict[int, dict[str, float]] = {}
    known = set()
    for event in read_events(path):
        if event["event"] != "epoch" or not {"epoch", "step", "metrics"} <= event.keys():
            continue
        epoch = event["epoch"]
        known.add(epoch)
        # What came after it is trained again.
        rows = {earlier: row for earlier, row in rows.items() if earlier < epoch}
        measured = {
            name: math.nan if value is None else float(value)
            for name, value in event["metrics"].items()
        }
        rows[epoch] = {"epoch": epoch, "step": event["step"]}
        rows[epoch] |= {name: value for name, value in measured.items() if name not in _KEYS}
    return rows, known


def _is_same(row: Mapping[str, float], of_event: Mapping[str, float]) -> bool:
    """Check whether a row is that of its event; what is not finite is written alike there."""
    return row.keys() == of_event.keys() and all(
        row[name] == value or not (math.isfinite(row[name]) or math.isfinite(value))
        for name, value in of_event.items()
    )


def _contradicts(row: Mapping[str, float], others: Mapping[int, Mapping[str, float]]) -> bool:
    """Check whether a row lies elsewhere among the others by its epoch than by its step."""
    for other in others.values():
        is_later = row["epoch"] > other["epoch"]
        first, second = (other, row) if is_later else (row, other)
        if first["step"] >= second["step"]:
            return True
    return False
