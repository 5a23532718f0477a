"""Paths of images in tables: CSV, Parquet, Delta. A table is read in pieces, never as a whole."""

from __future__ import annotations

import codecs
import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from lightkit.config import near
from lightkit.errors import ConfigError, DataError
from lightkit.images.reading import IMAGE_SUFFIXES

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["COLUMNS", "TABLE_SUFFIXES", "PathTable", "is_delta", "path_table"]

COLUMNS = ("path", "image", "file", "filename")
"""Columns that hold the paths; the first that there is."""
TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")
_BATCH = 4096  # rows in memory
_MOST_SHOWN = 80  # characters of a row in an error
_LONGEST_CELL = 1_000_000  # characters; more than any path has, where a quotation mark was never closed


@dataclass(frozen=True)
class PathTable:
    """A table, its column known.

    Args:
        path: The table's file or folder.
        column: Name of its column of paths.
        position: Number of that column.
        has_head: Whether its first row has the columns' names.
    """

    path: Path
    column: str
    position: int
    has_head: bool = True

    def __iter__(self) -> Iterator[str]:
        """Give each row's path; empty where a row has none.

        A relative path counts from the folder that the table is in; where there is no such file, but one from the
        working directory, it is that.

        Raises:
            DataError: If the table is damaged.
        """
        folder = self.path.parent
        return (_located(cell, folder) for cell in self.cells())

    def cells(self) -> Iterator[str]:
        """Give each row's cell as it is."""
        if is_delta(self.path):
            return _delta_cells(self)
        return _parquet_cells(self) if self.path.suffix.lower() == ".parquet" else _csv_cells(self)


def path_table(path: Path) -> PathTable:
    """Find a table's column of paths.

    It is the first of `COLUMNS` that the table has, in small or capital letters, else its only column of text. A CSV
    file of one column may do without the columns' names.

    Raises:
        DataError: If the table is damaged, has no such column, or holds images in place of their paths.
        ConfigError: If it is a Delta table, and deltalake is not installed.
    """
    if is_delta(path):
        with _delta(path) as dataset:
            schema = dataset.schema
        return _by_schema(path, schema)
    if path.suffix.lower() != ".parquet":
        return _by_head(path)
    from pyarrow import parquet  # 0.2 s, spared where nobody has such a table

    with _told(path), parquet.ParquetFile(path) as file:
        schema = file.schema_arrow
    return _by_schema(path, schema)


def is_delta(path: Path) -> bool:
    """Tell whether a folder is a Delta table."""
    return (path / "_delta_log").is_dir()


def _by_schema(path: Path, schema: pa.Schema) -> PathTable:
    texts = [field.name for field in schema if _is_text(field.type)]
    bytes_of_images = [field.name for field in schema if _is_bytes(field.type) and field.name.lower() in COLUMNS]
    names = [name for name in schema.names if name not in bytes_of_images]
    if bytes_of_images and not {name.lower() for name in texts} & {*COLUMNS}:
        raise _holds_images(path, bytes_of_images[0])
    column = _chosen(path, names, texts)
    table = PathTable(path, column, list(schema.names).index(column))
    if bytes_of_images and not _exists(next(iter(table), "")):  # said for the record, of files that are elsewhere
        raise _holds_images(path, bytes_of_images[0])
    return table


def _holds_images(path: Path, column: str) -> DataError:
    return DataError(
        f"{path}: this table holds images themselves, as bytes in the column {column!r}; expected paths of images, as "
        "text. Name the folder or the files that it was made of; or, as data, it is lightkit.data.Table, whose test "
        "split a run predicts: lightkit predict --run latest."
    )


def _is_bytes(kind: pa.DataType) -> bool:
    """Tell whether cells are bytes, or, as in the data sets of Hugging Face, bytes beside a path."""
    if str(kind).startswith("struct"):
        return bool(kind.get_field_index("bytes") >= 0)
    return str(kind) in ("binary", "large_binary", "binary_view")


def _is_text(kind: pa.DataType) -> bool:
    name = str(getattr(kind, "value_type", kind))  # of a dictionary, its values
    return name in ("string", "large_string", "string_view")


def _by_head(path: Path) -> PathTable:
    with _csv_rows(path) as rows:
        head = next(rows, [])
        first = next(rows, head)
    if len(head) == 1 and _is_image(head[0]):
        return PathTable(path, "the first", 0, has_head=False)
    if not {name.strip().lower() for name in head} & {*COLUMNS} and any(map(_is_image, head)):
        raise DataError(
            f"{path}: its first row ({', '.join(head)[:_MOST_SHOWN]}) looks like data; expected the columns' names "
            "there, such as path,label. Put such a row before it."
        )
    texts = [name for name, cell in zip(head, first, strict=False) if not _is_number(cell)]
    column = _chosen(path, head, texts)
    return PathTable(path, column, head.index(column))


def _chosen(path: Path, names: Sequence[str], texts: Sequence[str]) -> str:
    by_name = {name.strip().lower(): name for name in reversed(names)}
    for column in COLUMNS:
        if column in by_name:
            return by_name[column]
    if len(texts) == 1:
        return texts[0]
    guess = next((found for name in names if (found := near(name.lower(), COLUMNS))), "")
    raise DataError(
        f"{path}: expected a column of paths named {', '.join(COLUMNS[:-1])} or {COLUMNS[-1]}, or one column of text; "
        f"it has {', '.join(map(repr, names)) or 'no columns'}{guess or '.'}"
    )


def _is_image(cell: str) -> bool:
    return Path(cell).suffix.lower() in IMAGE_SUFFIXES


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


@contextmanager
def _csv_rows(path: Path) -> Iterator[Iterator[list[str]]]:
    csv.field_size_limit(_LONGEST_CELL)
    _refuse_other_encoding(path)
    with _told(path), path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
        head = file.readline(_LONGEST_CELL)
        delimiter = max(",;\t", key=head.count)
        file.seek(0)
        yield (row for row in csv.reader(file, delimiter=delimiter) if row)


def _refuse_other_encoding(path: Path) -> None:
    """Refuse what is no UTF-8 as a whole; bytes of single names may be something else."""
    with _told(path), path.open("rb") as file:
        begin = file.read(_BATCH)
    if begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in begin:
        raise DataError(f"{path}: this table is not in UTF-8 but, as it seems, in UTF-16 or binary. Save it as UTF-8.")


def _csv_cells(table: PathTable) -> Iterator[str]:
    with _csv_rows(table.path) as rows:
        if table.has_head:
            next(rows, None)
        for row in rows:
            yield row[table.position] if len(row) > table.position else ""


def _parquet_cells(table: PathTable) -> Iterator[str]:
    from pyarrow import parquet  # as above

    with _told(table.path), parquet.ParquetFile(table.path) as file:
        yield from _batch_cells(file.iter_batches(batch_size=_BATCH, columns=[table.column], use_threads=False))


def _delta_cells(table: PathTable) -> Iterator[str]:
    with _delta(table.path) as dataset:
        columns = [table.column]
        batches = dataset.to_batches(columns=columns, batch_size=_BATCH, batch_readahead=1, fragment_readahead=1)
        yield from _batch_cells(batches)


def _batch_cells(batches: Any) -> Iterator[str]:
    for batch in batches:
        yield from (cell if isinstance(cell, str) else "" for cell in batch.column(0).to_pylist())


@contextmanager
def _delta(path: Path) -> Iterator[Any]:
    """Open a Delta table as a dataset of pyarrow."""
    try:
        from deltalake import DeltaTable  # an extra
        from deltalake.exceptions import DeltaError
    except ImportError as error:
        raise ConfigError(
            f"{path}: to read a Delta table, deltalake must be installed: pip install 'lightkit[delta]'"
        ) from error
    with _told(path, DeltaError):
        yield DeltaTable(str(path)).to_pyarrow_dataset()


@contextmanager
def _told(path: Path, *kinds: type[Exception]) -> Iterator[None]:
    """Say in words that a table is damaged, or of a kind that cannot be read; pyarrow's errors are OS and value errors.

    Args:
        path: The table.
        kinds: Further errors that its reader raises.
    """
    known: tuple[type[Exception], ...] = (OSError, ValueError, csv.Error, *kinds)
    try:
        yield
    except known as error:
        raise DataError(f"{path}: this table cannot be read ({_first_line(error)}).") from error


def _first_line(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return (text.splitlines() or [type(error).__name__])[0].rstrip(".")


def _located(cell: str, folder: Path) -> str:
    if not cell:
        return ""
    url: Mapping[str, str] = urlsplit(cell)._asdict() if cell.startswith("file:") else {}
    path = unquote(url["path"]) if url else cell
    beside = os.path.normpath(folder / path)
    return path if not _exists(beside) and _exists(path) else beside


def _exists(path: str) -> bool:
    try:
        return os.path.exists(path)  # noqa: PTH110 (called for each of very many)
    except ValueError:  # a null character
        return False
