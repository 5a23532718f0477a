"""A table as it was at one moment: its files, cut into the row groups in which they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lightkit.data.tables.file_states import FileState, state_of
from lightkit.data.tables.stores import Store
from lightkit.errors import DataError

__all__ = ["DataFile", "RowGroup", "Snapshot"]

_BUFFER_BYTES = 1 << 20  # of each column, of which a page at a time is decoded


@dataclass(frozen=True, eq=False)
class DataFile:
    """One Parquet file of a table.

    Args:
        path: In its store.
        store: Where it is.
        schema: The table's, which the file may lack columns of.
        partition: Values of the columns that are said by the folder or the log, and are not in the file.
        deleted: Numbers of the rows that a deletion vector takes out, ascending; None for none.
        state: As it was when the table was opened; None where nobody writes over a file, as in a Delta table.
    """

    path: str
    store: Store
    schema: pa.Schema
    partition: Mapping[str, Any] = field(default_factory=dict)
    deleted: npt.NDArray[np.int64] | None = None
    state: FileState | None = None

    def opened(self) -> pq.ParquetFile:
        """Open it for reading.

        Raises:
            DataError: If it is missing, cut short or no Parquet file, or not the one that was there before.
        """
        try:
            source = self.store.opened().open_input_file(self.path)
            self._refuse_other(state_of(self.store, self.path, source) if self.state else None)
            # neither mapped nor read ahead: either would have a whole row group in memory
            return pq.ParquetFile(
                source, metadata=_footer(self), memory_map=False, buffer_size=_BUFFER_BYTES, pre_buffer=False
            )
        except FileNotFoundError as error:
            raise DataError(f"{self.path}: this file of the table is gone. Restore it, or start again.") from error
        except (OSError, pa.ArrowException) as error:
            raise self.unreadable(error) from error

    def _refuse_other(self, now: FileState | None) -> None:
        if self.state is not None and now is not None and self.state.is_written_over(now):
            sizes = f"{self.state.size_bytes:,} bytes then, {now.size_bytes:,} now"
            raise DataError(
                f"{self.path}: this file of the table was replaced or written over after the table was opened "
                f"({sizes}). Start again, and leave the table alone while it is read; a version of a Delta table stays."
            )

    def unreadable(self, error: Exception) -> DataError:
        """Say that it cannot be read."""
        try:
            self._refuse_other(state_of(self.store, self.path) if self.state and self.store.is_local else None)
        except DataError as other:
            return other
        except OSError:
            pass  # it is gone by now, which the next one to open it is told
        return DataError(
            f"{self.path}: this Parquet file cannot be read ({_first_line(error)}). It is damaged, or was cut short: "
            "write it again, or take it out of the table."
        )


@dataclass(frozen=True, eq=False)
class RowGroup:
    """The part of a file that is read at once, and the smallest.

    Args:
        file: The file.
        number: Which of the file's row groups, from 0.
        first: Number of its first row in the file, deleted rows counted.
        num_stored: Rows in the file, deleted ones counted.
        num_rows: Rows without those that a deletion vector takes out.
        size_bytes: Of all columns, not compressed.
        table: Which of several tables that are used together it is read for, from 0; they may be the same.
    """

    file: DataFile
    number: int
    first: int
    num_stored: int
    num_rows: int
    size_bytes: int
    table: int = 0

    @property
    def path(self) -> str:
        """The file's path in its store."""
        return self.file.path

    @property
    def key(self) -> tuple[int, str, int]:
        """What tells it from the other row groups that are used together."""
        return self.table, self.path, self.number

    def read(self, columns: Sequence[str], *, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Give its rows in stored order, without having all of them in memory.

        Columns that the folder or the log says, and columns that came later than the file, are filled in; deleted rows
        are left out.

        Args:
            columns: Names of columns of the table, in the order in which they are wanted.
            batch_rows: Most rows of a record batch.

        Raises:
            DataError: If the file is missing or damaged.
        """
        schema = pa.schema([self.file.schema.field(name) for name in columns])
        at = self.first
        with self.file.opened() as opened:
            for stored in self._stored(opened, columns, batch_rows):
                batch = self._completed(stored, schema)
                yield self._without_deleted(batch, at)
                at += stored.num_rows

    def place(self, row: int) -> str:
        """Give what people know a row by.

        Args:
            row: Its number in the row group as it is read, from 0.
        """
        return self.places(np.array([row]))[0]

    def places(self, rows: npt.NDArray[np.int64]) -> list[str]:
        """Give what people know some rows by: the file, and the row's number in it, from 0, deleted ones counted."""
        stored = rows if self.file.deleted is None else self.kept()[rows]
        return [f"{self.path}, row {row}" for row in (stored + self.first).tolist()]

    def kept(self) -> npt.NDArray[np.int64]:
        """Numbers in the row group of the rows that are not deleted."""
        rows = np.arange(self.num_stored)
        return rows if self.file.deleted is None else rows[~np.isin(rows + self.first, self.file.deleted)]

    def _stored(self, opened: pq.ParquetFile, columns: Sequence[str], batch_rows: int) -> Iterator[pa.RecordBatch]:
        inside = set(opened.schema_arrow.names)
        wanted = [name for name in columns if name in inside and name not in self.file.partition]
        if not wanted:  # nothing to read, and yet so many rows
            for start in range(0, self.num_stored, batch_rows):
                nothing = pa.nulls(min(batch_rows, self.num_stored - start))
                yield pa.RecordBatch.from_arrays([nothing], [""])
            return
        try:
            yield from opened.iter_batches(batch_rows, row_groups=[self.number], columns=wanted, use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise self.file.unreadable(error) from error

    def _completed(self, stored: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([self._column(stored, field) for field in schema], schema=schema)

    def _column(self, stored: pa.RecordBatch, field: pa.Field) -> pa.Array:
        if field.name in self.file.partition:
            value = pa.scalar(self.file.partition[field.name], field.type)
            return pa.repeat(value, stored.num_rows)
        place = stored.schema.get_field_index(field.name)
        if place < 0:
            return pa.nulls(stored.num_rows, field.type)
        column = stored.column(place)
        if column.type == field.type:
            return column
        try:
            return column.cast(field.type)
        except pa.ArrowException as error:
            raise DataError(
                f"{self.path}: column {field.name!r} holds {column.type}, which does not fit the table's {field.type} "
                f"({_first_line(error)}). Write the file again with the table's type."
            ) from error

    def _without_deleted(self, batch: pa.RecordBatch, at: int) -> pa.RecordBatch:
        if self.file.deleted is None:
            return batch
        rows = np.arange(at, at + batch.num_rows)
        return pc.filter(batch, pa.array(~np.isin(rows, self.file.deleted)))


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A table as it is read: a file that is written over meanwhile is an error when it is opened.

    Args:
        kind: What it is.
        place: The path or address that was asked for.
        schema: Its columns.
        version: Delta's number of this state; None for Parquet.
        fingerprint: SHA-256. Delta: the table's id, the version, and the path, size and deletion vector of each of
            its files. Parquet: the name, size and footer of each file; a footer holds the schema, the row groups, and
            the size and statistics of each of their columns. Neither moving nor copying the table changes it.
        fragments: Its row groups in an order that is the same everywhere.
        states: Of Parquet's files, which may be written over with neither size nor footer changed; here and now only.
    """

    kind: Literal["delta", "parquet"]
    place: str
    schema: pa.Schema
    version: int | None
    fingerprint: str
    fragments: list[RowGroup]
    states: str = ""

    @property
    def num_rows(self) -> int:
        """Rows of all row groups."""
        return sum(group.num_rows for group in self.fragments)

    @property
    def is_local(self) -> bool:
        """Whether processes that were forked may read it."""
        return all(group.file.store.is_local for group in self.fragments)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0].rstrip(".")


@lru_cache(maxsize=64)
def _footer(file: DataFile) -> pq.FileMetaData:
    """Read a file's footer once for all of its row groups."""
    with file.store.opened().open_input_file(file.path) as source:
        return pq.read_metadata(source)
