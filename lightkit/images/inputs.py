"""The images that words on a command line name.

Folders, files, globs, tables of paths, standard input.
"""

from __future__ import annotations

import csv
import glob
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from lightkit.config import near
from lightkit.config.origins import near_files
from lightkit.errors import ConfigError, DataError, cut
from lightkit.images.delta_table import DeltaFiles, has_deletion_vectors, refuse_unreadable
from lightkit.images.image_file import IMAGE_SUFFIXES, walk_files

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
    - a folder: the images in it and in all folders below it, by their suffix, in the order of their
      names on every machine; names that begin with a dot are left out. Or a Delta table, if it has
      a `_delta_log`;
    - a glob such as `photos/*/img_?.jpg` or `photos/**/*.png`, in the same order. It finds what a
      shell would, but of a pattern that ends in no suffix, images only;
    - `-`: standard input, one path a line.

    See `open_path_table` for the column of a table, and the folder of its relative paths. Files
    within folders and tables are not opened: whether each is an image is known when it is read.

    Raises:
        DataError: If a file or folder is missing, a folder has no image, a glob finds none, or a
            table has no column of paths.
        ConfigError: If a table's reader is not installed.
    """
    return ImagePaths([_find_source(word) for word in words], is_countable="-" not in words)


def find_named_files(words: Sequence[str]) -> Iterator[Path]:
    """Find the files that words name themselves, and the tables that globs find.

    Nothing of their content.
    """
    for word in words:
        path = Path(os.path.expanduser(word))  # noqa: PTH111 (pathlib raises for a user that is not there)
        if os.path.lexists(path):
            yield path
        elif glob.has_magic(word) and path.suffix.lower() in TABLE_SUFFIXES:
            yield from map(Path, _match(path))


def _find_source(word: str) -> _Source:
    if word == "-":
        return lambda: (
            os.fsdecode(line.rstrip(b"\r\n")) for line in sys.stdin.buffer if line.strip()
        )
    path = Path(os.path.expanduser(word))  # noqa: PTH111 (pathlib raises for a user that is not there)
    suffix = path.suffix.lower()
    tables = f"; tables ({', '.join(TABLE_SUFFIXES)}) in it are named themselves"
    if is_delta(path) or (suffix in TABLE_SUFFIXES and path.is_file()):
        source = open_path_table(path)
        reason = "this table has no rows."
    elif path.is_dir():
        source = partial(_walk, str(path))
        reason = f"there is no image in this folder, nor below it{tables}."
    elif os.path.lexists(path):
        return lambda: (str(path),)
    elif not glob.has_magic(word):
        raise DataError(f"{word}: there is no such file or folder{near_files(path) or '.'}")
    elif suffix in TABLE_SUFFIXES:
        opened = [open_path_table(Path(match)) for match in _match(path)]
        source = partial(_read_all, opened)
        reason = "no table matches this."
    else:
        source = partial(_find_matches, path)
        reason = "no image matches this."
    if next(iter(source()), None) is None:
        raise DataError(f"{word}: {reason}")
    return source


def _read_all(tables: Sequence[_Source]) -> Iterator[str]:
    return chain.from_iterable(table() for table in tables)


def _walk(folder: str) -> Iterator[str]:
    return (
        path
        for path in walk_files(folder)
        if os.path.splitext(path)[1].lower() in IMAGE_SUFFIXES  # noqa: PTH122
    )


def _match(pattern: Path) -> list[str]:
    """List the matches of a glob in the order of their names, each once."""
    matches = {os.path.normpath(match) for match in glob.iglob(str(pattern), recursive=True)}  # noqa: PTH207 (str)
    return sorted(matches, key=lambda match: match.split(os.sep))  # noqa: PTH206


def _find_matches(pattern: Path) -> Iterator[str]:
    is_any_file = bool(pattern.suffix) and not glob.has_magic(pattern.suffix)
    for match in _match(pattern):
        if os.path.isdir(match):  # noqa: PTH112
            if "**" not in pattern.parts:  # else its content may match as well
                yield from _walk(match)
        elif is_any_file or os.path.splitext(match)[1].lower() in IMAGE_SUFFIXES:  # noqa: PTH122
            yield match


def open_path_table(path: Path) -> _Source:
    """Find a table's column of paths, and return what reads it in pieces.

    The path of each row, empty if it has none.

    It is the first of `COLUMNS` that the table has, in small or capital letters, else its only
    column of text, if the first one is a path of an image. A CSV file of one column may do without
    a header. A relative path counts from the folder of the table, or from the working directory if
    the file is only there.

    Raises:
        DataError: If the table is damaged, has no such column, or holds images in place of their
            paths.
        ConfigError: If it is a Delta table, and deltalake is not installed.
    """
    is_csv = path.suffix.lower() in (".csv", ".tsv") and not is_delta(path)
    read_cells = _open_csv_column(path) if is_csv else _open_dataset_column(path)
    return lambda: (_locate(cell, path.parent) for cell in read_cells())


def _locate(cell: str | None, folder: Path) -> str:
    """Return the path that a cell names, from a table in a folder."""
    if not cell:
        return ""
    name = unquote(urlsplit(cell).path) if cell.startswith("file:") else cell
    from_table = os.path.normpath(folder / name)
    return name if not os.path.exists(from_table) and os.path.exists(name) else from_table  # noqa: PTH110


def _open_csv_column(path: Path) -> _Source:
    """Find the column of paths of a CSV file, and return what reads its cells.

    Raises:
        DataError: If it has none.
    """
    with _open_csv(path) as rows:
        header = next(rows, [])
        first = next(rows, header)
    are_images = [Path(cell).suffix.lower() in IMAGE_SUFFIXES for cell in header]
    if any(are_images) and len(header) > 1:
        raise DataError(
            f"{path}: its first row is data; put a row with the"
            " columns' names, such as path, first."
        )
    has_header = are_images != [True]
    texts = [name for name, cell in zip(header, first, strict=False) if not _is_number(cell)]
    column = _choose_column(path, header, texts) if has_header else header[0]
    at = header.index(column)

    def read() -> Iterator[str]:
        with _open_csv(path) as rows:
            for row in islice(rows, int(has_header), None):
                yield row[at] if len(row) > at else ""

    if has_header:
        _check_paths(path, header, column, read)
    return read


def _open_dataset_column(path: Path) -> _Source:
    """Find the column of paths of a Parquet file or a Delta table, and return what reads its cells.

    Raises:
        DataError: If it has none, or holds images in place of their paths.
    """
    with _open_dataset(path) as dataset:
        schema = dataset.schema
    # of a dictionary
    kinds = {field.name: str(getattr(field.type, "value_type", field.type)) for field in schema}
    texts = [
        name for name, kind in kinds.items() if kind in ("string", "large_string", "string_view")
    ]
    images = [
        name for name, kind in kinds.items() if name.lower() in COLUMNS and _holds_images(kind)
    ]
    if images and {*map(str.lower, texts)}.isdisjoint(COLUMNS):
        raise _explain_images(path, images[0])
    column = _choose_column(path, [name for name in kinds if name not in images], texts)

    def read() -> Iterator[Any]:
        with _open_dataset(path) as dataset:
            options = {"batch_size": _NUM_ROWS, "batch_readahead": 1, "fragment_readahead": 1}
            for batch in dataset.to_batches(columns=[column], **options):
                yield from batch.column(0).to_pylist()

    if images and not os.path.exists(_locate(next(read(), ""), path.parent)):  # noqa: PTH110
        raise _explain_images(path, images[0])
    _check_paths(path, list(kinds), column, read)
    return read


def _holds_images(kind: str) -> bool:
    """Check whether values of a type of Arrow may be encoded images."""
    return "binary" in kind or (kind.startswith("struct") and "bytes: " in kind)


def _explain_images(path: Path, column: str) -> DataError:
    return DataError(
        f"{path}: this table holds images themselves, as bytes in the column {column!r}; expected"
        " paths of images, as text. Name the folder or the files that it was made of; or, as data,"
        " it is lightkit.data.Table, whose test split a run predicts:"
        " lightkit predict --run latest."
    )


def is_delta(path: Path) -> bool:
    """Check whether a folder is a Delta table."""
    return (path / "_delta_log").is_dir()


def _choose_column(path: Path, names: Sequence[str], texts: Sequence[str]) -> str:
    by_name = {name.strip().lower(): name for name in reversed(names)}
    found = [by_name[column] for column in COLUMNS if column in by_name] or (
        texts if len(texts) == 1 else []
    )
    if found:
        return found[0]
    guess = next(filter(None, (near(name.lower(), COLUMNS) for name in names)), "")
    raise _explain_columns(path, names, guess or ".")


def _check_paths(path: Path, names: Sequence[str], column: str, read: _Source) -> None:
    """Check that the first text in a column without a usual name is a path of an image.

    Raises:
        DataError: If it is another text, as in a table of rows.
    """
    if column.strip().lower() in COLUMNS:
        return
    first = next(filter(None, read()), "")
    is_image = Path(first).suffix.lower() in IMAGE_SUFFIXES
    if not is_image:
        is_image = os.path.exists(_locate(first, path.parent))  # noqa: PTH110
    if is_image or not first:
        return
    raise _explain_columns(
        path, names, f", and {column!r} has {cut(first)!r}, which is no path of an image."
    )


def _explain_columns(path: Path, names: Sequence[str], found: str) -> DataError:
    """Return the error of a table without a column of paths; ``found`` ends its sentence."""
    return DataError(
        f"{path}: expected images: folders, files, or a table with their paths in a column named "
        f"{', '.join(COLUMNS[:-1])} or {COLUMNS[-1]}, or in its one column of text; "
        f"it has {', '.join(map(repr, names)) or 'no columns'}{found}"
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
    with (
        _translate_read_errors(path),
        path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as text,
    ):
        header = text.readline(_MAX_CELL)
        if "\0" in header:  # as of UTF-16
            raise DataError(f"{path}: this table is not in UTF-8. Save it as UTF-8.")
        delimiter = max(",;\t", key=header.count)
        text.seek(0)
        yield (row for row in csv.reader(text, delimiter=delimiter) if row)


@contextmanager
def _open_dataset(path: Path) -> Iterator[Any]:
    """Open a Parquet file or a Delta table as a dataset of pyarrow."""
    import pyarrow.dataset as ds  # 0.2 s, only for such a table

    if not is_delta(path):
        with _translate_read_errors(path):
            yield ds.dataset(path, format="parquet")
        return
    try:
        from deltalake import DeltaTable  # an extra
        from deltalake.exceptions import DeltaError
    except ImportError as error:
        raise ConfigError(
            f"{path}: to read a Delta table, deltalake must be installed: pip install"
            " 'lightkit-train[delta]'"
        ) from error
    with _translate_read_errors(path, DeltaError):
        table = DeltaTable(str(path))
        if refusal := refuse_unreadable(table, path):  # pyarrow would read such columns as nulls
            raise DataError(refusal)
        if has_deletion_vectors(table):
            yield DeltaFiles(table, path)
        else:
            yield table.to_pyarrow_dataset()


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
