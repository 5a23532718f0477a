"""The images that words on a command line name: folders, files, globs, tables of paths, standard input."""

from __future__ import annotations

import csv
import glob
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from lightkit.config import near
from lightkit.config.origins import near_files
from lightkit.errors import ConfigError, DataError
from lightkit.images.reading import IMAGE_SUFFIXES

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("path", "image", "file", "filename")
"""Columns of paths; the first that a table has."""
TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")
_NUM_ROWS = 4096  # of a table in memory
_MAX_CELL = 1_000_000  # characters; more than any path has, if a quotation mark was never closed
_Source = Callable[[], Iterable[str]]


class ImagePaths(Iterable[str]):
    """Paths in order, found while they are iterated.

    Of a folder, the names in one folder at a time are in memory; of a table, some thousand rows.

    Args:
        sources: Each returns the paths of one word, as often as it is called.
        is_countable: Whether it can be called twice.
    """

    def __init__(self, sources: Sequence[_Source], *, is_countable: bool = True) -> None:
        self._sources = sources
        self.is_countable = is_countable

    def __iter__(self) -> Iterator[str]:
        """Iterate over the paths, those of the first word first."""
        return chain.from_iterable(source() for source in self._sources)

    def count(self) -> int | None:
        """Count the paths, without opening an image; None if they are known at the end only."""
        return sum(1 for _ in self) if self.is_countable else None


def find_images(words: Sequence[str]) -> ImagePaths:
    """Find the images that words name, and report a wrong word at once.

    A word is:

    - a file: that image, or the paths in it if it is a table: `.csv`, `.tsv` or `.parquet`;
    - a folder: the images in it and in all folders below it, by their suffix, in the order of their names on every
      machine; names that begin with a dot are left out. Or a Delta table, if it has a `_delta_log`;
    - a glob such as `photos/*/img_?.jpg` or `photos/**/*.png`, in the same order. It finds what a shell would, but of
      a pattern that ends in no suffix, images only;
    - `-`: standard input, one path a line.

    See `open_path_table` for the column of a table, and the folder of its relative paths. Files within folders and
    tables are not opened: whether each is an image is known when it is read.

    Raises:
        DataError: If a file or folder is missing, a folder has no image, a glob finds none, or a table has no column
            of paths.
        ConfigError: If a table's reader is not installed.
    """
    return ImagePaths([_find_source(word) for word in words], is_countable="-" not in words)


def find_named_files(words: Sequence[str]) -> Iterator[Path]:
    """Find the files that words name themselves, and the tables that globs find; nothing of their content."""
    for word in words:
        path = Path(word).expanduser()
        if os.path.lexists(path):
            yield path
        elif glob.has_magic(word) and path.suffix.lower() in TABLE_SUFFIXES:
            yield from map(Path, _match(path))


def _find_source(word: str) -> _Source:
    if word == "-":
        return lambda: (os.fsdecode(line.rstrip(b"\r\n")) for line in sys.stdin.buffer if line.strip())
    path = Path(word).expanduser()
    suffix = path.suffix.lower()
    if is_delta(path) or (suffix in TABLE_SUFFIXES and path.is_file()):
        table = open_path_table(path)
        if next(table.read_cells(), None) is None:
            raise DataError(f"{path}: this table has no rows.")
        return table.__iter__
    if path.is_dir():
        return _find_in_folder(path)
    if os.path.lexists(path):
        return lambda: (str(path),)
    if not glob.has_magic(word):
        raise DataError(f"{word}: there is no such file or folder{near_files(path) or '.'}")
    if suffix in TABLE_SUFFIXES:
        source: _Source = partial(chain.from_iterable, [open_path_table(Path(match)) for match in _match(path)])
    else:
        source = partial(_find_matches, path)
    if next(iter(source()), None) is None:
        raise DataError(f"{word}: no image matches this.")
    return source


def _find_in_folder(folder: Path) -> _Source:
    try:
        first = next(_walk(str(folder)), None)
        names = sorted(name for name in os.listdir(folder) if Path(name).suffix.lower() in TABLE_SUFFIXES)  # noqa: PTH208
    except OSError as error:
        raise DataError(f"{folder}: this folder cannot be read ({error.strerror})") from error
    if first is None:
        table = f" To predict what a table in it names, say {folder / names[0]}." if names else ""
        raise DataError(f"{folder}: there is no image in this folder, nor below it.{table}")
    return partial(_walk, str(folder))


def _walk(folder: str, parents: tuple[tuple[int, int], ...] = ()) -> Iterator[str]:
    """Find the images below a folder, one folder at a time; links are followed, but not in a circle."""
    status = os.stat(folder)  # noqa: PTH116 (pathlib would make an object of each of very many)
    this = (status.st_dev, status.st_ino)
    if this in parents:
        return
    with os.scandir(folder) as entries:
        names = sorted((entry.name, entry.is_dir()) for entry in entries if not entry.name.startswith("."))
    for name, is_folder in names:
        path = os.path.join(folder, name)  # noqa: PTH118
        if is_folder:
            yield from _walk_or_name(path, (*parents, this))
        elif os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES:  # noqa: PTH122
            yield path


def _walk_or_name(folder: str, parents: tuple[tuple[int, int], ...] = ()) -> Iterator[str]:
    try:
        yield from _walk(folder, parents)
    except PermissionError:  # reported by the reader
        yield folder


def _match(pattern: Path) -> list[str]:
    """List the matches of a glob in the order of their names, each once."""
    matches = {os.path.normpath(match) for match in glob.iglob(str(pattern), recursive=True)}  # noqa: PTH207 (str)
    return sorted(matches, key=lambda match: match.split(os.sep))  # noqa: PTH206


def _find_matches(pattern: Path) -> Iterator[str]:
    is_any_file = bool(pattern.suffix) and not glob.has_magic(pattern.suffix)
    for match in _match(pattern):
        if os.path.isdir(match):  # noqa: PTH112
            if "**" not in pattern.parts:  # else its content may match as well
                yield from _walk_or_name(match)
        elif is_any_file or os.path.splitext(match)[1].lower() in IMAGE_SUFFIXES:  # noqa: PTH122
            yield match


@dataclass(frozen=True)
class PathTable:
    """A table with a column of paths, which is read in pieces.

    Args:
        path: The table's file or folder.
        column: Name of its column of paths.
        position: Index of that column.
        has_header: Whether its first row has the columns' names.
    """

    path: Path
    column: str
    position: int
    has_header: bool = True

    def __iter__(self) -> Iterator[str]:
        """Iterate over the path of each row; empty if a row has none.

        A relative path counts from the folder of the table, or from the working directory if the file is only there.

        Raises:
            DataError: If the table is damaged.
        """
        return map(self._locate, self.read_cells())

    def read_cells(self) -> Iterator[str]:
        """Read each row's cell as it is."""
        if is_delta(self.path):
            with _open_delta(self.path) as dataset:
                yield from _read_batches(
                    dataset.to_batches(
                        columns=[self.column], batch_size=_NUM_ROWS, batch_readahead=1, fragment_readahead=1
                    )
                )
        elif self.path.suffix.lower() == ".parquet":
            from pyarrow import parquet  # 0.2 s, only for such a table

            with _translate_read_errors(self.path), parquet.ParquetFile(self.path) as file:
                yield from _read_batches(
                    file.iter_batches(batch_size=_NUM_ROWS, columns=[self.column], use_threads=False)
                )
        else:
            with _open_csv(self.path) as rows:
                if self.has_header:
                    next(rows, None)
                for row in rows:
                    yield row[self.position] if len(row) > self.position else ""

    def _locate(self, cell: str) -> str:
        if not cell:
            return ""
        path = unquote(urlsplit(cell).path) if cell.startswith("file:") else cell
        beside = os.path.normpath(self.path.parent / path)
        return path if not _exists(beside) and _exists(path) else beside


def open_path_table(path: Path) -> PathTable:
    """Find a table's column of paths.

    It is the first of `COLUMNS` that the table has, in small or capital letters, else its only column of text. A CSV
    file of one column may do without a header.

    Raises:
        DataError: If the table is damaged, has no such column, or holds images in place of their paths.
        ConfigError: If it is a Delta table, and deltalake is not installed.
    """
    if is_delta(path):
        with _open_delta(path) as dataset:
            return _find_column_by_type(path, dataset.schema)
    if path.suffix.lower() == ".parquet":
        from pyarrow import parquet  # as above

        with _translate_read_errors(path), parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
        return _find_column_by_type(path, schema)
    with _open_csv(path) as rows:
        header = next(rows, [])
        first = next(rows, header)
    are_images = [Path(cell).suffix.lower() in IMAGE_SUFFIXES for cell in header]
    if are_images == [True]:
        return PathTable(path, "the first", 0, has_header=False)
    if any(are_images):
        raise DataError(
            f"{path}: its first row is data; put a row with the columns' names, such as path,label, before it."
        )
    texts = [name for name, cell in zip(header, first, strict=False) if not _is_number(cell)]
    column = _choose_column(path, header, texts)
    return PathTable(path, column, header.index(column))


def is_delta(path: Path) -> bool:
    """Check whether a folder is a Delta table."""
    return (path / "_delta_log").is_dir()


def _find_column_by_type(path: Path, schema: pa.Schema) -> PathTable:
    texts, images = [], []
    for column in schema:
        kind = str(getattr(column.type, "value_type", column.type))  # of a dictionary, its values
        has_bytes = kind in ("binary", "large_binary", "binary_view") or (
            kind.startswith("struct") and column.type.get_field_index("bytes") >= 0  # a data set of Hugging Face
        )
        if kind in ("string", "large_string", "string_view"):
            texts.append(column.name)
        elif has_bytes and column.name.lower() in COLUMNS:
            images.append(column.name)
    table = None
    if not images or {name.lower() for name in texts} & {*COLUMNS}:
        name = _choose_column(path, [name for name in schema.names if name not in images], texts)
        table = PathTable(path, name, list(schema.names).index(name))
    if table is None or (images and not _exists(next(iter(table), ""))):  # paths of files that are elsewhere
        raise DataError(
            f"{path}: this table holds images themselves, as bytes in the column {images[0]!r}; expected paths of "
            "images, as text. Name the folder or the files that it was made of; or, as data, it is "
            "lightkit.data.Table, whose test split a run predicts: lightkit predict --run latest."
        )
    return table


def _choose_column(path: Path, names: Sequence[str], texts: Sequence[str]) -> str:
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


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


@contextmanager
def _open_csv(path: Path) -> Iterator[Iterator[list[str]]]:
    csv.field_size_limit(_MAX_CELL)
    with _translate_read_errors(path), path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as text:
        header = text.readline(_MAX_CELL)
        if "\0" in header:  # as of UTF-16
            raise DataError(f"{path}: this table is not in UTF-8. Save it as UTF-8.")
        delimiter = max(",;\t", key=header.count)
        text.seek(0)
        yield (row for row in csv.reader(text, delimiter=delimiter) if row)


def _read_batches(batches: Any) -> Iterator[str]:
    for batch in batches:
        yield from (cell if isinstance(cell, str) else "" for cell in batch.column(0).to_pylist())


@contextmanager
def _open_delta(path: Path) -> Iterator[Any]:
    """Open a Delta table as a dataset of pyarrow."""
    try:
        from deltalake import DeltaTable  # an extra
        from deltalake.exceptions import DeltaError
    except ImportError as error:
        raise ConfigError(
            f"{path}: to read a Delta table, deltalake must be installed: pip install 'lightkit[delta]'"
        ) from error
    with _translate_read_errors(path, DeltaError):
        yield DeltaTable(str(path)).to_pyarrow_dataset()


@contextmanager
def _translate_read_errors(path: Path, *kinds: type[Exception]) -> Iterator[None]:
    """Raise a `DataError` for a damaged table; pyarrow's errors are OS and value errors."""
    known: tuple[type[Exception], ...] = (OSError, ValueError, csv.Error, *kinds)
    try:
        yield
    except known as error:
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        reason = (text.splitlines() or [type(error).__name__])[0].rstrip(".")
        raise DataError(f"{path}: this table cannot be read ({reason}).") from error


def _exists(path: str) -> bool:
    try:
        return os.path.exists(path)  # noqa: PTH110 (called for each of very many)
    except ValueError:  # a null character
        return False
