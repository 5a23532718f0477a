"""Tables of predictions on the disk, written row by row: CSV, JSON lines, Parquet."""

from __future__ import annotations

import csv
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np

from lightkit.errors import ConfigError, LightkitError
from lightkit.prediction.rows import Columns

__all__ = ["STANDARD_OUTPUT", "TABLE_SUFFIXES", "Table", "checked_output", "open_table", "writing"]

STANDARD_OUTPUT = Path("-")
"""CSV on standard output."""
_ROW_GROUP = 4096  # rows of Parquet in memory


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Within it, what the system says when a place cannot be written becomes an error in words.

    Args:
        path: The place; `STANDARD_OUTPUT` gets no more after it, so that the process can end in peace.

    Raises:
        LightkitError: If the disk is full, or the like.
    """
    try:
        yield
    except BrokenPipeError:  # whoever read has left, which is no mishap
        raise
    except OSError as error:
        reason = error.strerror or (str(error).splitlines() or [type(error).__name__])[0]
        where = str(path)
        if path == STANDARD_OUTPUT:
            where = "standard output"
            with suppress(OSError, ValueError):  # it is no file of the system
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise LightkitError(
            f"{where}: the predictions cannot be written there ({reason}). Make room, or name another place."
        ) from error


class Table(Protocol):
    """A table that takes row after row."""

    def add(self, row: Sequence[Any]) -> None:
        """Append a row, as `Columns.row` gives it."""

    def close(self) -> None:
        """Write what is left."""


class _Csv:
    def __init__(self, path: Path, columns: Columns) -> None:
        self._file: TextIO = sys.stdout if path == STANDARD_OUTPUT else path.open("w", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._is_ranked = columns.class_names is not None
        self._writer.writerow(columns.names)

    def add(self, row: Sequence[Any]) -> None:
        self._writer.writerow([self._cell(cell) for cell in row])

    def _cell(self, cell: Any) -> Any:
        if not isinstance(cell, np.float32):
            return cell
        return f"{cell:.6f}" if self._is_ranked else str(cell)  # that of float32: the shortest that is exact

    def close(self) -> None:
        if self._file is sys.stdout:
            self._file.flush()
        else:
            self._file.close()


class _JsonLines:
    def __init__(self, path: Path, columns: Columns) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._names = columns.names

    def add(self, row: Sequence[Any]) -> None:
        record = dict(zip(self._names, map(_jsonable, row), strict=True))
        self._file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")

    def close(self) -> None:
        self._file.close()


class _Parquet:
    def __init__(self, path: Path, columns: Columns) -> None:
        import pyarrow as pa  # 0.2 s and 60 MB, which the other formats need not have
        from pyarrow import parquet

        numbers = set(columns.numbers)
        fields = [pa.field(name, pa.float32() if name in numbers else pa.string()) for name in columns.names]
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


_TABLES: dict[str, Callable[[Path, Columns], Table]] = {".csv": _Csv, ".parquet": _Parquet, ".jsonl": _JsonLines}
TABLE_SUFFIXES = tuple(_TABLES)
"""What the name of a table ends in, which decides its format."""


def checked_output(word: str, *, option: str = "--output", suffixes: Sequence[str] = TABLE_SUFFIXES) -> Path:
    """Give the file that an option names; nothing is made, for what else was asked for may be wrong.

    Args:
        word: What was said: a path, or ``-`` for CSV on standard output.
        option: The option, for errors.
        suffixes: Those that are allowed; ``-`` is, where CSV is.

    Raises:
        ConfigError: If it ends otherwise, is a folder, or no file can be written there.
    """
    path = Path(word).expanduser()
    if path == STANDARD_OUTPUT and ".csv" in suffixes:
        return path
    if path.suffix.lower() not in suffixes:
        *most, last = suffixes
        expected = f"{', '.join(most)} or {last}" if most else last
        raise ConfigError(f"{option} {word}: expected a file that ends in {expected}")
    if path.is_dir():
        raise ConfigError(f"{option} {word}: this is a folder; expected a file, such as {path / ('all' + suffixes[0])}")
    above = next((folder for folder in path.absolute().parents if os.path.lexists(folder)), path)
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        says = "cannot be written to" if above.is_dir() else "is no folder"
        raise ConfigError(f"{option} {word}: no file can be written there, because {above} {says}")
    return path


def open_table(path: Path, columns: Columns, *, suffix: str) -> Table:
    """Begin a table.

    Args:
        path: Where it is written; `STANDARD_OUTPUT` for CSV there.
        columns: Its columns.
        suffix: Decides the format, one of `TABLE_SUFFIXES`.
    """
    return _TABLES[suffix.lower()](path, columns)


def _jsonable(cell: Any) -> Any:
    if not isinstance(cell, np.float32):
        return cell
    return float(str(cell)) if math.isfinite(cell) else None  # 0.1 in float32 is 0.1, not 0.10000000149011612
