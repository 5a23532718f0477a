"""One Parquet file of images, in row groups that a reader can stream."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
from pyarrow import parquet

from lightkit.errors import DataError
from lightkit.images.tables.layout import ImageRow, RowGroups

__all__ = ["MARK", "SCHEMA", "WrittenFile", "write_file"]

MARK = b"lightkit.convert"
"""Key of a file's metadata by which `lightkit convert` knows it for its own."""
SCHEMA = pa.schema(
    [
        ("image", pa.binary()),
        ("label", pa.string()),
        ("split", pa.string()),
        ("path", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
    ]
)
_PAGE_BYTES = 1 << 20  # a reader that streams holds a page or two
_ROWS_AT_ONCE = 16  # how often the writer looks whether a page is full
_NUM_READERS = 8  # they wait for the disk


@dataclass(frozen=True)
class WrittenFile:
    """A Parquet file that is whole.

    Args:
        name: Of the file, in the table's folder.
        num_bytes: Its size.
        num_rows: Of the whole file.
        least: Smallest value of each column that has statistics.
        greatest: Largest value of each.
    """

    name: str
    num_bytes: int
    num_rows: int
    least: dict[str, str | int]
    greatest: dict[str, str | int]


def write_file(file: Path, groups: RowGroups, *, advance: Callable[[int, int], None]) -> WrittenFile:
    """Write the rows of one file; one row group is in memory at a time.

    Args:
        file: The Parquet file, which is not there yet.
        groups: Its rows, in row groups.
        advance: Told how many more rows, and bytes of images, are written.

    Raises:
        DataError: If an image has gone, or is another, since it was looked at.
        OSError: If the file cannot be written.
    """
    with _readers() as pool, file.open("xb") as sink, _writer(sink) as writer:
        for rows in groups:
            images = list(pool.map(_bytes_of, rows))
            writer.write_table(_table(rows, images), row_group_size=len(rows))
            advance(len(rows), sum(map(len, images)))
    rows = [row for group in groups for row in group]
    values = {name: [getattr(row, name) for row in rows] for name in ("label", "split", "width", "height")}
    return WrittenFile(
        file.name,
        file.stat().st_size,
        len(rows),
        {name: min(column) for name, column in values.items()},
        {name: max(column) for name, column in values.items()},
    )


@contextmanager
def _readers() -> Iterator[ThreadPoolExecutor]:
    """Give threads that read; what is not begun is left, when the writing ends early."""
    pool = ThreadPoolExecutor(_NUM_READERS)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _writer(sink: BinaryIO) -> parquet.ParquetWriter:
    small = [name for name in SCHEMA.names if name != "image"]
    return parquet.ParquetWriter(
        sink,
        SCHEMA.with_metadata({MARK: b"1"}),
        compression={"image": "none", **dict.fromkeys(small, "zstd")},  # images are compressed already
        use_dictionary=["label", "split"],
        write_statistics=small,
        data_page_size=_PAGE_BYTES,
        write_batch_size=_ROWS_AT_ONCE,
    )


def _bytes_of(row: ImageRow) -> bytes:
    try:
        content = row.file.read_bytes()
    except OSError as error:
        raise DataError(f"{row.file}: {error.strerror or error}, and was an image a moment ago. {_AGAIN}") from error
    if hashlib.sha256(content).hexdigest() != row.digest:
        raise DataError(f"{row.file}: this image was changed while the table was written. {_AGAIN}")
    return content


_AGAIN = "Nothing was written; run the same command again once nobody changes the folder."


def _table(rows: Sequence[ImageRow], images: Sequence[bytes]) -> pa.Table:
    columns = {name: [getattr(row, name) for row in rows] for name in SCHEMA.names if name != "image"}
    return pa.table({"image": images, **columns}, schema=SCHEMA.with_metadata({MARK: b"1"}))
