"""Tables of predictions: their columns, the same in each format, and CSV, JSON lines and Parquet."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np

from lightkit.errors import ConfigError, DataError
from lightkit.runs.files import finite

STANDARD_OUTPUT = Path("-")
"""CSV on standard output."""
DEFAULT_TOP_K = 3
"""Number of classes of each image, if there are as many."""
_ROW_GROUP = 4096  # rows of Parquet in memory
_FORMULA = ("=", "+", "-", "@")
_NUMBERS = ("probability", "prediction_")  # columns of float32
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
    """

    def __init__(self, class_names: Sequence[str] | None, top_k: int | None = None, num_values: int = 0) -> None:
        self.class_names = None if class_names is None else tuple(class_names)
        self._num_values = num_values if self.class_names is None else len(self.class_names)
        self._top_k = min(top_k or DEFAULT_TOP_K, self._num_values)
        if self.class_names is None:
            inner = [f"prediction_{at}" for at in range(num_values)]
        else:
            suffixes = [f"_{rank + 1}" if rank else "" for rank in range(self._top_k)]
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
        cells = values if self.class_names is None else [cell for pair in self.rank(values) for cell in pair]
        return [path, *cells, defect]

    def rank(self, values: Values) -> list[tuple[str, np.float32]]:
        """List the likeliest classes with their probabilities, likeliest first; of equals, the first class first."""
        assert self.class_names is not None
        order = np.argsort(-values, kind="stable")[: self._top_k]
        return [(self.class_names[at], values[at]) for at in order]


class RowWriter(Protocol):
    """A table that is written row by row: the cells of each are texts, float32, or None."""

    def add(self, row: Sequence[Any]) -> None:
        """Append a row."""

    def close(self) -> None:
        """Write the rest."""


class _TextTable:
    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self.names, self._is_stdout = names, path == STANDARD_OUTPUT
        self.file: TextIO = sys.stdout if self._is_stdout else path.open("w", newline="", encoding="utf-8")

    def close(self) -> None:
        self.file.flush() if self._is_stdout else self.file.close()


class _Csv(_TextTable):
    def __init__(self, path: Path, names: Sequence[str]) -> None:
        super().__init__(path, names)
        self._writer = csv.writer(self.file, lineterminator="\n")
        self._writer.writerow(names)

    def add(self, row: Sequence[Any]) -> None:
        self._writer.writerow(map(self._format, self.names, row))

    def _format(self, name: str, cell: Any) -> str | None:
        """Spreadsheets compute cells that begin with ``=``; ``./`` leaves a path what it is."""
        if isinstance(cell, np.float32):  # else the shortest text that is exact in float32
            return f"{cell:.6f}" if name.startswith("probability") else str(cell)
        if cell is None:
            return None
        text = _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), cell)
        return f"{'./' if name == 'path' else chr(39)}{text}" if text.startswith(_FORMULA) else text


class _JsonLines(_TextTable):
    def add(self, row: Sequence[Any]) -> None:
        cells = [float(str(cell)) if isinstance(cell, np.float32) else cell for cell in row]  # 0.1 is 0.1
        content = finite(dict(zip(self.names, cells, strict=True)))
        self.file.write(json.dumps(content, ensure_ascii=False) + "\n")


class _Parquet:
    def __init__(self, path: Path, names: Sequence[str]) -> None:
        import pyarrow as pa  # 0.2 s and 60 MB, which the other formats need not have
        from pyarrow import parquet

        kinds = [pa.float32() if name.startswith(_NUMBERS) else pa.string() for name in names]
        self._schema, self._rows = pa.schema(list(zip(names, kinds, strict=True))), list[Sequence[Any]]()
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


TABLES: dict[str, Callable[[Path, Sequence[str]], RowWriter]] = {
    ".csv": _Csv,
    ".parquet": _Parquet,
    ".jsonl": _JsonLines,
}
"""By suffix of the file; each takes the names of the columns too. `STANDARD_OUTPUT` gets CSV."""


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
