"""metrics.csv: one row an epoch, whatever an epoch measured."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from lightkit.runs.files import write_text

_KEYS = ("epoch", "step")


class MetricsTable:
    """A table with the columns epoch, step and one for each metric, sorted by name.

    The file is replaced as a whole with each row, so that a reader, or the next process after a kill, finds whole
    rows only. A thousand epochs are some hundred kilobytes.

    Args:
        path: The file. Rows that it has already are kept.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._rows = _read(self.path)

    @property
    def rows(self) -> list[dict[str, float]]:
        """The rows in the order of the epochs; a metric that an epoch did not measure is not in its row."""
        return [dict(row) for row in self._rows]

    @property
    def newest(self) -> dict[str, float]:
        """The row of the newest epoch; empty without one."""
        return dict(self._rows[-1]) if self._rows else {}

    def record(self, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Write the row of an epoch, in place of the rows of this epoch and of later ones, which are trained again."""
        measured = {name: float(value) for name, value in values.items() if name not in _KEYS}
        earlier = [row for row in self._rows if row["epoch"] < epoch]
        self._rows = [*earlier, {"epoch": epoch, "step": step, **measured}]
        names = sorted({name for row in self._rows for name in row} - set(_KEYS))
        text = io.StringIO(newline="")
        table = csv.DictWriter(text, [*_KEYS, *names], restval="", lineterminator="\n")
        table.writeheader()
        table.writerows(self._rows)
        write_text(self.path, text.getvalue())


def _read(path: Path) -> list[dict[str, float]]:
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        whole = [row for row in csv.DictReader(file) if all(row.get(key) for key in _KEYS)]
    kinds = dict.fromkeys(_KEYS, int)
    return [{name: kinds.get(name, float)(value) for name, value in row.items() if name and value} for row in whole]
