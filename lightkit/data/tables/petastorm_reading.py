"""Row groups as petastorm reads them: from lightkit's stores, and made into tensors in the reader's threads.

Imported only where petastorm can work: the file systems of old that it needs left pyarrow with version 16.
"""

from __future__ import annotations

import re
import warnings
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import fs

from lightkit.data.image_dataset import num_read
from lightkit.data.sampler import SampleKey, stable_seed
from lightkit.data.splits import Split
from lightkit.data.tables.batches import Assembling
from lightkit.data.tables.features import feature_matrix
from lightkit.data.tables.index import Index
from lightkit.data.tables.parquet import local_path
from lightkit.data.tables.rows import Row, class_name, image_bytes, label_values, weight_values
from lightkit.data.tables.snapshot import RowGroup, Snapshot
from lightkit.data.tables.stores import Store, is_remote
from lightkit.errors import DataError
from lightkit.images.reading import UnreadableImageError

with warnings.catch_warnings():  # on import and in use they warn of what pyarrow 14 is about to take away
    warnings.simplefilter("ignore")
    import petastorm
    import pyarrow.parquet as pq
    from petastorm.etl.dataset_metadata import infer_or_load_unischema, load_row_groups
    from petastorm.transform import TransformSpec
    from pyarrow.filesystem import FileSystem as LegacyFileSystem

__all__ = ["FIELDS", "Pool", "RowsToTensors", "ShardedReading", "shares_of"]

Pool = Literal["thread", "dummy"]
FIELDS = ("inputs", "labels", "weights")
"""What a batch of petastorm's has: each is a tensor with the rows first."""


class RowsToTensors:
    """Makes tensors of a row group, in whichever thread has read it.

    An error would be printed by petastorm and lose its kind on the way, so it is kept for who asks for batches.

    Args:
        index: Knows columns and classes.
        schema: Types of the columns.
        assemble: Makes a batch of rows.
        place: What people know the table by.
        epoch: Part of what decides each image's augmentation; the other is its content, because rows have no number.
    """

    def __init__(self, index: Index, schema: pa.Schema, assemble: Assembling, *, place: str, epoch: int) -> None:
        names = index.columns.of_a_sample
        self._index, self._assemble, self._place, self._epoch = index, assemble, place, epoch
        self._schema = pa.schema([schema.field(name) for name in names])
        self._numbers = {name: number for number, name in enumerate(index.class_names)}
        self.errors: list[Exception] = []
        self.counts: list[tuple[int, int]] = []
        """Of each row group: rows that were to be used, and those that were left out of them."""

    def __call__(self, frame: Any) -> Any:
        """Give columns `FIELDS` for the rows that can be used."""
        try:
            rows = list(self._rows(self._record_batch(frame)))
            batch = self._assemble(rows, [self._key(row) for row in rows])
        except (DataError, UnreadableImageError) as error:
            self.errors.append(error)
            return pd.DataFrame({name: [] for name in FIELDS})
        inputs, labels, *given = (tensor.contiguous().numpy() for tensor in batch)
        weights = given[0] if given else np.ones(len(labels), np.float32)
        self.counts.append((len(rows), len(rows) - num_read(batch)))
        return pd.DataFrame({"inputs": list(inputs), "labels": labels.reshape(-1), "weights": weights})

    def _record_batch(self, frame: Any) -> pa.RecordBatch:
        return pa.RecordBatch.from_pandas(frame[self._schema.names], schema=self._schema, preserve_index=False)

    def _rows(self, batch: pa.RecordBatch) -> Iterator[Row]:
        """Those that can be used; the index has listed the others."""
        columns = self._index.columns
        images = image_bytes(batch, columns.image) if columns.image else None
        labels: list[Any] = label_values(batch, columns) if columns.label else [0] * batch.num_rows
        weights = weight_values(batch, columns.weight) if columns.weight else None
        features = feature_matrix(batch, columns.features, self._index.shapes) if columns.features else None
        for number, label in enumerate(labels):
            image = None if images is None else images[number].as_py()
            unusable = label is None or (images is not None and image is None)
            unusable = unusable or (weights is not None and bool(np.isnan(weights[number])))
            if unusable or (features is not None and not features[1][number]):
                continue
            is_class = columns.label is not None and columns.target == "class"
            yield Row(
                image,
                None if features is None else features[0][number].reshape(self._index.feature_shape),
                self._numbers[class_name(label)] if is_class else label,
                None if weights is None else float(weights[number]),
                f"{self._place}, {0 if image is None else len(image):,} bytes labelled {label}",
            )

    def _key(self, row: Row) -> SampleKey:
        return SampleKey(zlib.crc32(row.image or b""), self._epoch)


@dataclass(frozen=True)
class ShardedReading:
    """How one rank reads a split.

    Args:
        snapshot: The table.
        index: What is in it.
        assemble: Makes tensors of rows.
        rank: Number of this rank, from 0.
        num_ranks: Ranks that read together.
        pool: Threads that read and decode, or the thread that asks.
        num_threads: How many.
        seed: Of the order; None for the stored order.
        shuffle_row_groups: Read them in another order each epoch; with the seed only.
    """

    snapshot: Snapshot
    index: Index
    assemble: Assembling
    rank: int
    num_ranks: int
    pool: Pool
    num_threads: int
    seed: int | None
    shuffle_row_groups: bool

    @property
    def has_own_order(self) -> bool:
        """Whether the order is petastorm's: it takes a row group from whichever thread has one when it asks."""
        return self.pool == "thread" and self.num_threads > 1

    def open(self, epoch: int) -> tuple[Any, RowsToTensors]:
        """Give petastorm's reader of one epoch, and what makes its tensors.

        Raises:
            DataError: If petastorm cannot read the table.
        """
        rows = RowsToTensors(self.index, self.snapshot.schema, self.assemble, place=self.snapshot.place, epoch=epoch)
        shuffled = self.seed is not None
        # petastorm takes 0 for no seed at all, and numpy takes 32 bits
        seed = 1 + stable_seed(self.seed, epoch) % (2**32 - 1) if self.seed is not None else 1
        return self._reader(rows, seed=seed, shuffled=shuffled), rows

    def _reader(self, rows: RowsToTensors, *, seed: int, shuffled: bool) -> Any:
        _be_quiet()
        return petastorm.make_batch_reader(
            f"file://{_path(self.snapshot)}",
            filesystem=_StoreFiles(_store(self.snapshot)),
            schema_fields=[re.escape(name) for name in self.index.columns.of_a_sample],
            reader_pool_type=self.pool,
            workers_count=self.num_threads,
            seed=seed,
            shuffle_rows=shuffled,
            shuffle_row_groups=shuffled and self.shuffle_row_groups,
            num_epochs=1,
            cur_shard=self.rank if self.num_ranks > 1 else None,
            shard_count=self.num_ranks if self.num_ranks > 1 else None,
            transform_spec=TransformSpec(rows, edit_fields=self._fields(), selected_fields=list(FIELDS)),
        )

    def _fields(self) -> list[tuple[str, Any, tuple[int, ...], bool]]:
        inputs, labels, *_ = self.assemble([], [])
        return [
            ("inputs", np.dtype(str(inputs.dtype).removeprefix("torch.")).type, tuple(inputs.shape[1:]), False),
            ("labels", np.dtype(str(labels.dtype).removeprefix("torch.")).type, (), False),
            ("weights", np.float32, (), False),
        ]


def shares_of(snapshot: Snapshot, index: Index, split: Split, *, num_ranks: int) -> list[list[int]]:
    """Give, for each rank, how many rows come of each of its row groups: rank r of n reads those numbered r, r + n, ...

    Of a row group without a row that can be used comes a blank one.

    Raises:
        DataError: If petastorm cannot read the table, or one of the columns.
    """
    files = _StoreFiles(_store(snapshot))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dataset = pq.ParquetDataset(_path(snapshot), filesystem=files, validate_schema=False)
            known = set(infer_or_load_unischema(dataset).fields)
            pieces = load_row_groups(dataset)
    except (OSError, ValueError, RuntimeError, pa.ArrowException) as error:
        raise DataError(f"{snapshot.place}: petastorm cannot read this ({_first_line(error)}). {_INSTEAD}") from error
    _refuse_columns(snapshot, index.columns.of_a_sample, known)
    if len(pieces) < num_ranks:
        raise DataError(
            f"{snapshot.place}: petastorm shares out whole row groups, and here are {len(pieces)} for {num_ranks} "
            "processes. Write it with smaller row groups, or set data.class_path to lightkit.data.Table, which shares "
            "out rows."
        )
    rows = {(group.path, group.number): num for group, num in index.rows(split)}
    found = [max(1, rows.get((files.in_store(piece.path), piece.row_group), 0)) for piece in pieces]
    return [found[rank::num_ranks] for rank in range(num_ranks)]


def _refuse_columns(snapshot: Snapshot, names: Sequence[str], known: Collection[str]) -> None:
    for name in names:
        kind = str(snapshot.schema.field(name).type)
        if any(name in group.file.partition for group in snapshot.fragments):
            kind = "what the names of its folders say, which petastorm takes for other values"
        elif name in known:
            continue
        raise DataError(f"{snapshot.place}: petastorm cannot read column {name!r}: it holds {kind}. {_INSTEAD}")


_INSTEAD = "lightkit.data.Table reads the same Parquet files: set data.class_path to it."


class _StoreFiles(LegacyFileSystem):  # type: ignore[misc]
    """A store as a file system of pyarrow's old kind: the only one through which petastorm reads with pyarrow 14."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store

    def open(self, path: str, mode: str = "rb") -> Any:
        return self._store.opened().open_input_file(self.in_store(path))

    def isdir(self, path: str) -> bool:
        return bool(self._info(path).type == fs.FileType.Directory)

    def isfile(self, path: str) -> bool:
        return bool(self._info(path).type == fs.FileType.File)

    def exists(self, path: str) -> bool:
        return bool(self._info(path).type != fs.FileType.NotFound)

    def walk(self, path: str) -> Iterator[tuple[str, list[str], list[str]]]:
        """Give a folder's own folders and files; pyarrow asks no further."""
        entries = self._store.opened().get_file_info(fs.FileSelector(self.in_store(path)))
        folders = [_quoted(entry.base_name) for entry in entries if entry.type == fs.FileType.Directory]
        files = [_quoted(entry.base_name) for entry in entries if entry.type == fs.FileType.File]
        yield path, sorted(folders), sorted(files)

    def _info(self, path: str) -> fs.FileInfo:
        return self._store.opened().get_file_info(self.in_store(path))

    def in_store(self, path: str) -> str:
        """Give the store's own path of what petastorm was given."""
        plain = unquote(path)
        return plain if self._store.is_local else plain.lstrip("/")


def _store(snapshot: Snapshot) -> Store:
    group: RowGroup = snapshot.fragments[0]
    return group.file.store


def _path(snapshot: Snapshot) -> str:
    """Give the path that petastorm takes out of an address: with a slash in front, and quoted."""
    if not is_remote(snapshot.place):
        return _quoted(str(local_path(snapshot.place)))
    return _quoted("/" + snapshot.place.partition("://")[2].strip("/"))


def _quoted(path: str) -> str:
    """Quote what an address gives a meaning of its own; petastorm never undoes it, `_StoreFiles` does."""
    return path.replace("%", "%25").replace("#", "%23").replace("?", "%3F")


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _be_quiet() -> None:
    """Leave out what petastorm warns of: each call of pyarrow's that goes with the next version.

    For all the process, because the reader's threads warn as well; and each time, because others may have set filters
    since.
    """
    warnings.filterwarnings("ignore", module="petastorm")
