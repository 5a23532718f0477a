"""The ends of Parquet files, which say what is in them, read many at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from lightkit.data.tables.file_states import FileState, state_of
from lightkit.data.tables.stores import Store
from lightkit.errors import DataError

__all__ = ["Footer", "footers_of"]

_MAGIC = b"PAR1"
_TAIL_BYTES = 1 << 16  # holds the footer of most files, so that a remote one costs one request
_NUM_THREADS = 16  # they wait for the disk or the network


@dataclass(frozen=True, eq=False)
class Footer:
    """What a file says of itself.

    Args:
        metadata: As pyarrow reads it.
        size_bytes: Length of the file.
        digest: SHA-256 of the footer's bytes.
        state: Tells whether the file is still the same.
    """

    metadata: pq.FileMetaData
    size_bytes: int
    digest: str
    state: FileState

    @property
    def schema(self) -> pa.Schema:
        """The file's columns."""
        return self.metadata.schema.to_arrow_schema()


def footers_of(store: Store, paths: Sequence[str], *, missing: str) -> list[Footer]:
    """Read the footers of files, in their order.

    Args:
        store: Where they are.
        paths: In the store.
        missing: What to say of a file that is not there; ``{path}`` stands for its path.

    Raises:
        DataError: If a file is missing, is no Parquet file, or was cut short.
    """

    def read(path: str) -> Footer:
        try:
            return _footer_of(store, path)
        except FileNotFoundError as error:
            raise DataError(missing.format(path=path)) from error
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{path}: this file of the table cannot be read ({str(error).splitlines()[0]}).") from error

    store.opened()
    with ThreadPoolExecutor(max_workers=max(1, min(_NUM_THREADS, len(paths)))) as pool:
        return list(pool.map(read, paths))


def _footer_of(store: Store, path: str) -> Footer:
    with store.opened().open_input_file(path) as file:
        state = state_of(store, path, file)
        size = file.size()
        if size < 3 * len(_MAGIC):
            raise DataError(f"{path}: this Parquet file has {size} bytes, which is too short for one. {_ADVICE}")
        tail = file.read_at(min(size, _TAIL_BYTES), max(0, size - _TAIL_BYTES))
        if tail[-4:] == b"PARE":
            raise DataError(f"{path}: this Parquet file is encrypted, which lightkit does not read. Decrypt it first.")
        if tail[-4:] != _MAGIC:
            raise DataError(
                f"{path}: this is no Parquet file, or one that was cut short: its end is missing. {_ADVICE}"
            )
        length = int.from_bytes(tail[-8:-4], "little") + 8
        if length > size:
            raise DataError(f"{path}: this Parquet file is damaged: its footer is longer than it. {_ADVICE}")
        if length > len(tail):
            tail = file.read_at(length, size - length)
    footer = tail[-length:]
    try:
        # the footer alone makes a file whose columns cannot be read, but that says what they are
        metadata = pq.read_metadata(pa.BufferReader(_MAGIC + footer))
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: this Parquet file is damaged: its footer makes no sense. {_ADVICE}") from error
    return Footer(metadata, size, hashlib.sha256(footer).hexdigest(), state)


_ADVICE = "Write it again, or take it out of the table."
