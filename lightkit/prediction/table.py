"""Tables of predictions: their columns, the same in each format, and CSV, JSON lines and Parquet."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from lightkit.errors import ConfigError, DataError
from lightkit.runs.files import finite

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
            raise DataError(f"{path}: the model gives {values.size} values; expected {self._num_values}.")
        cells = list(values) if self.class_names is None else [cell for pair in self.rank(values) for cell in pair]
        return [path, *cells, defect]

    def rank(self, values: Values) -> list[tuple[str, np.float32]]:
        """List the likeliest classes with their probabilities, likeliest first; of equals, the first class first."""
        assert self.class_names is not None
        order = np.argsort(-values, kind="stable")[: len(self.numbers)]
        return [(self.class_names[at], values[at]) for at in order]


class RowWriter:
    """A table that is written row by row; of each format a subclass.

    Args:
        path: The file; `STANDARD_OUTPUT` for CSV there.
        columns: Of the table.
    """

    def __init__(self, path: Path, columns: PredictionColumns) -> None:
        self.columns, self.is_stdout = columns, path == STANDARD_OUTPUT
        self.file: TextIO = sys.stdout if self.is_stdout else path.open("w", newline="", encoding="utf-8")

    def add(self, row: Sequence[Any]) -> None:
        """Append a row of `PredictionColumns.row`."""
        raise NotImplementedError

    def close(self) -> None:
        """Write the rest."""
        self.file.flush() if self.is_stdout else self.file.close()


class _Csv(RowWriter):
    def __init__(self, path: Path, columns: PredictionColumns) -> None:
        super().__init__(path, columns)
        self._writer = csv.writer(self.file, lineterminator="\n")
        # 6 decimals of a probability; else the shortest text that is exact in float32
        self._format: Callable[[Any], str] = str if columns.class_names is None else "{:.6f}".format
        self._writer.writerow(columns.names)

    def add(self, row: Sequence[Any]) -> None:
        """Spreadsheets compute cells that begin with ``=``; ``./`` leaves a path what it is."""
        cells = []
        for at, cell in enumerate(row):
            if isinstance(cell, str):
                text = _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), cell)
                cells.append(f"{'./' if at == 0 else chr(39)}{text}" if text[:1] in _FORMULA else text)
            else:
                cells.append(self._format(cell) if isinstance(cell, np.float32) else cell)
        self._writer.writerow(cells)


class _JsonLines(RowWriter):
    def add(self, row: Sequence[Any]) -> None:
        cells = [float(str(cell)) if isinstance(cell, np.float32) else cell for cell in row]  # 0.1 is 0.1
        content = finite(dict(zip(self.columns.names, cells, strict=True)))
        self.file.write(json.dumps(content, ensure_ascii=False) + "\n")


class _Parquet(RowWriter):
    def __init__(self, path: Path, columns: PredictionColumns) -> None:
        import pyarrow as pa  # 0.2 s and 60 MB, which the other formats need not have
        from pyarrow import parquet

        kinds = [pa.float32() if name in columns.numbers else pa.string() for name in columns.names]
        self._schema, self._rows = pa.schema(list(zip(columns.names, kinds, strict=True))), list[Sequence[Any]]()
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
    """Check the name of the file that an option names; nothing is created, for another option may be wrong.

    Args:
        text: A path, or ``-`` for CSV on standard output.
        option: The option, for errors.
        suffixes: Allowed endings; ``-`` is allowed if CSV is.

    Raises:
        ConfigError: If it ends otherwise, or is a folder.
    """
    path = Path(text).expanduser()
    if path == STANDARD_OUTPUT and ".csv" in suffixes:
        return path
    if path.suffix.lower() not in suffixes or path.is_dir():
        what = f"{'this is a folder; ' if path.is_dir() else ''}expected a file that ends in"
        *first, last = suffixes
        raise ConfigError(f"{option} {text}: {what} {', '.join(first)}{' or ' if first else ''}{last}")
    return path
