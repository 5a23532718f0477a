"""Tables of predictions: their columns, the same in each format, and CSV, JSON lines and Parquet."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np

from lightkit.errors import ConfigError, DataError

STANDARD_OUTPUT = Path("-")
"""CSV on standard output."""
DEFAULT_TOP_K = 3
"""Number of classes of each image, if there are as many."""
_ROW_GROUP = 4096  # rows of Parquet in memory
_FORMULA = ("=", "+", "-", "@")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")  # not tabs and line breaks, which CSV quotes
Values = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Prediction:
    """Result of one image.

    Args:
        index: Number of the image, from 0.
        path: As it was named.
        values: float32 ``(num_classes,)``: the probability of each class, or the outputs of a model without classes;
            None if there are none.
        defect: Why there are none, else None.
    """

    index: int
    path: str
    values: Values | None
    defect: str | None

    @property
    def certainty(self) -> float:
        """Probability of the likeliest class."""
        return 0.0 if self.values is None or not self.values.size else float(self.values.max())


class PredictionColumns:
    """Columns of a table of predictions: the same in each format, with the same names.

    A classifier has ``path``, ``label`` and ``probability`` of the likeliest class, ``label_2`` and ``probability_2``
    of the next, and so on; any other model ``path`` and ``prediction_0``, ``prediction_1``, ... Last comes ``error``,
    the reason why a row has nothing else.

    Args:
        class_names: In the order of the values; None for a model without classes.
        top_k: Number of classes; `DEFAULT_TOP_K` if None, all if there are fewer.
        num_values: Outputs of a model without classes.

    Attributes:
        names: Names of all columns, in order.
        numbers: Names of the columns of float32.
    """

    def __init__(self, class_names: Sequence[str] | None, top_k: int | None = None, num_values: int = 0) -> None:
        self.class_names = None if class_names is None else tuple(class_names)
        self._num_values = num_values if self.class_names is None else len(self.class_names)
        suffixes = [f"_{rank + 1}" if rank else "" for rank in range(min(top_k or DEFAULT_TOP_K, self._num_values))]
        if self.class_names is None:
            self.numbers = inner = [f"prediction_{at}" for at in range(num_values)]
        else:
            self.numbers = [f"probability{suffix}" for suffix in suffixes]
            inner = [f"{name}{suffix}" for suffix in suffixes for name in ("label", "probability")]
        self.names = ["path", *inner, "error"]

    def row(self, prediction: Prediction) -> list[Any]:
        """Build the cells of a row: texts, float32, and None for an empty cell.

        Bytes of a file's name that are no text become escape sequences, so that every reader accepts the table.

        Raises:
            DataError: If there are more or fewer values than classes, or than for the images before.
        """
        path, defect = (
            text and text.encode("utf-8", "backslashreplace").decode("utf-8")
            for text in (prediction.path, prediction.defect)
        )
        values = prediction.values
        if values is None:
            return [path, *[None] * (len(self.names) - 2), defect]
        if values.shape != (self._num_values,):
            other = "it gives {} for other images" if self.class_names is None else "there are {} classes"
            raise DataError(
                f"{path}: the model gives {values.size} values, and {other.format(self._num_values)}. Expected as many "
                "for each image."
            )
        cells = list(values) if self.class_names is None else [cell for pair in self.rank(values) for cell in pair]
        return [path, *cells, defect]

    def rank(self, values: Values) -> list[tuple[str, np.float32]]:
        """List the likeliest classes with their probabilities, likeliest first; of equals, the first class first."""
        assert self.class_names is not None
        order = np.argsort(-values, kind="stable")[: len(self.numbers)]
        return [(self.class_names[at], values[at]) for at in order]


class RowWriter(Protocol):
    """A table that is written row by row."""

    def add(self, row: Sequence[Any]) -> None:
        """Append a row of `PredictionColumns.row`."""

    def close(self) -> None:
        """Write the rest."""


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


class _Csv:
    def __init__(self, path: Path, columns: PredictionColumns) -> None:
        self._file: TextIO = sys.stdout if path == STANDARD_OUTPUT else path.open("w", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file, lineterminator="\n")
        # 6 decimals of a probability; else the shortest text that is exact in float32
        self._format: Callable[[Any], str] = str if columns.class_names is None else "{:.6f}".format
        self._writer.writerow(columns.names)

    def add(self, row: Sequence[Any]) -> None:
        """Spreadsheets compute cells that begin with ``=``; ``./`` leaves a path what it is."""
        cells = [_CONTROL.sub(_escape, cell) if isinstance(cell, str) else cell for cell in row]
        for at, cell in enumerate(cells):
            if isinstance(cell, str) and cell[:1] in _FORMULA:
                cells[at] = f"{'./' if at == 0 else chr(39)}{cell}"
            elif isinstance(cell, np.float32):
                cells[at] = self._format(cell)
        self._writer.writerow(cells)

    def close(self) -> None:
        self._file.flush() if self._file is sys.stdout else self._file.close()


class _JsonLines:
    def __init__(self, path: Path, columns: PredictionColumns) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._names = columns.names

    def add(self, row: Sequence[Any]) -> None:
        cells = [
            (float(str(cell)) if math.isfinite(cell) else None) if isinstance(cell, np.float32) else cell  # 0.1 is 0.1
            for cell in row
        ]
        self._file.write(json.dumps(dict(zip(self._names, cells, strict=True)), ensure_ascii=False) + "\n")

    def close(self) -> None:
        self._file.close()


class _Parquet:
    def __init__(self, path: Path, columns: PredictionColumns) -> None:
        import pyarrow as pa  # 0.2 s and 60 MB, which the other formats need not have
        from pyarrow import parquet

        fields = [pa.field(name, pa.float32() if name in columns.numbers else pa.string()) for name in columns.names]
        self._schema, self._rows = pa.schema(fields), list[Sequence[Any]]()
        self._writer, self._record_batch = parquet.ParquetWriter(path, self._schema), pa.record_batch

    def add(self, row: Sequence[Any]) -> None:
        self._rows.append(row)
        if len(self._rows) == _ROW_GROUP:
            self._write()

    def _write(self) -> None:
        self._writer.write_batch(self._record_batch([*map(list, zip(*self._rows, strict=True))], schema=self._schema))
        self._rows.clear()

    def close(self) -> None:
        try:
            if self._rows and self._writer.is_open:
                self._write()
            self._writer.close()
        finally:
            self._writer.is_open = False  # else it tries again once it is collected


TABLES: dict[str, Callable[[Path, PredictionColumns], RowWriter]] = {
    ".csv": _Csv,
    ".parquet": _Parquet,
    ".jsonl": _JsonLines,
}
"""By suffix of the file."""


def check_output_path(text: str, *, option: str = "--output", suffixes: Sequence[str] = tuple(TABLES)) -> Path:
    """Check the file that an option names; nothing is created, for another option may be wrong.

    Args:
        text: A path, or ``-`` for CSV on standard output.
        option: The option, for errors.
        suffixes: Allowed endings; ``-`` is allowed if CSV is.

    Raises:
        ConfigError: If it ends otherwise, is a folder, or no file can be written there.
    """
    path = Path(text).expanduser()
    if path == STANDARD_OUTPUT and ".csv" in suffixes:
        return path
    if path.suffix.lower() not in suffixes:
        *first, last = suffixes
        expected = f"{', '.join(first)} or {last}" if first else last
        raise ConfigError(f"{option} {text}: expected a file that ends in {expected}")
    if path.is_dir():
        raise ConfigError(f"{option} {text}: this is a folder; expected a file, such as {path / ('all' + suffixes[0])}")
    above = next((folder for folder in path.absolute().parents if os.path.lexists(folder)), path)
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        reason = "cannot be written to" if above.is_dir() else "is no folder"
        raise ConfigError(f"{option} {text}: no file can be written there, because {above} {reason}")
    return path
