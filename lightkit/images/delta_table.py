"""The protocol of a Delta table: features that a reader must know.

Also the rows that deletion vectors delete.

Here, because both a table of paths of images and a table that is trained on are read by it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

NONE_DELETED: npt.NDArray[np.int64] = np.empty(0, np.int64)
_READABLE = frozenset({
    "deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview", "v2Checkpoint",
    "vacuumProtocolCheck",
})  # fmt: skip
"""Reader features that need no more than what is done here, or than a cast to the table's types."""
_VARIANT_COLUMN = re.compile(r'"(?:type|elementType|keyType|valueType)"\s*:\s*"variant"')
_VARIANT = ("variantType", "variantType-preview", "variantShredding", "variantShredding-preview")


def find_unreadable(table: DeltaTable) -> list[str]:
    """List the features that a table uses and that are not read here.

    Those that it allows and does not use are none.

    deltalake (1.6.6) allows ``variantType`` in each table with deletion vectors, whatever its
    columns are.
    """
    needed = set(table.protocol().reader_features or []) - {"columnMapping", *_VARIANT}
    if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        needed.add("columnMapping")
    if _VARIANT_COLUMN.search(table.schema().to_json()):
        needed.add("variantType")
    return sorted(needed - _READABLE)


def refuse_unreadable(table: DeltaTable, place: object) -> str:
    """Return the message of an error if a table uses features that are not read here.

    Empty if it does not.
    """
    unknown = find_unreadable(table)
    if not unknown:
        return ""
    return (
        f"{place}: this Delta table uses {', '.join(unknown)}, which lightkit cannot read. Copy it"
        " to a table without, in the engine that wrote it (in Spark:"
        " `CREATE TABLE ... AS SELECT`)."
    )


def has_deletion_vectors(table: DeltaTable) -> bool:
    """Return whether rows of a table may be deleted by deletion vectors."""
    return "deletionVectors" in (table.protocol().reader_features or [])


def file_name(address: str) -> str:
    """Return a file's own name, a UUID, which is the same in each way of writing its folder."""
    return unquote(unquote(address)).rsplit("/", 1)[-1]


def read_deleted_rows(table: DeltaTable) -> dict[str, npt.NDArray[np.int64]]:
    """Read the deletion vectors: numbers of the deleted rows by the file's name."""
    import pyarrow as pa  # 0.1 s, only for such a table

    vectors = pa.RecordBatchReader.from_stream(table.deletion_vectors()).read_all()
    return {
        file_name(address.as_py()): (
            np.flatnonzero(~kept.values.to_numpy(zero_copy_only=False)).astype(np.int64)
        )
        for batch in vectors.to_batches()
        for address, kept in zip(
            batch.column("filepath"), batch.column("selection_vector"), strict=True
        )
    }


class DeltaFiles:
    """The files of a Delta table on this machine without the rows that deletion vectors delete.

    Read as a stream.

    Args:
        table: The table; see `find_unreadable`.
        folder: Its folder.
    """

    def __init__(self, table: DeltaTable, folder: Path) -> None:
        import pyarrow as pa  # 0.1 s, only for such a table

        self.schema: pa.Schema = pa.schema(table.schema().to_arrow())
        self._folder = folder
        self._deleted = read_deleted_rows(table)
        actions: list[dict[str, Any]] = pa.table(table.get_add_actions()).to_pylist()
        self._files = sorted(actions, key=lambda action: str(action["path"]))

    def to_batches(
        self, columns: Sequence[str], batch_size: int, **_options: object
    ) -> Iterator[pa.RecordBatch]:
        """Read columns, file by file in the order of their paths, as a dataset of pyarrow does."""
        import pyarrow as pa
        from pyarrow import parquet

        for action in self._files:
            deleted = self._deleted.get(file_name(action["path"]), NONE_DELETED)
            partition = action.get("partition") or {}
            at = 0
            with parquet.ParquetFile(self._folder / unquote(action["path"])) as file:
                inside = [
                    name
                    for name in columns
                    if name in file.schema_arrow.names and name not in partition
                ]
                for part in file.iter_batches(batch_size, columns=inside, use_threads=False):
                    kept = np.setdiff1d(np.arange(at, at + part.num_rows), deleted) - at
                    at += part.num_rows
                    arrays = [
                        (
                            part.column(name)
                            if name in inside
                            else pa.repeat(pa.scalar(partition.get(name)), part.num_rows)
                        )
                        for name in columns
                    ]
                    yield pa.RecordBatch.from_arrays(arrays, names=list(columns)).take(
                        pa.array(kept)
                    )
