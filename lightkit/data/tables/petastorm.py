"""Petastorm datasets as a Lightning data module: petastorm reads, `Table` does the rest.

petastorm is imported inside functions: it needs pyarrow 14, whose file systems of old left it with version 16.
"""

from __future__ import annotations

import logging
import math
import re
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from typing import Any, Literal
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import torch
from pyarrow import fs
from torch.utils.data import DataLoader

from lightkit.data.image_dataset import Batch
from lightkit.data.image_module import seed_of, training_view_of
from lightkit.data.sampler import Position, SampleKey, position_of, stable_seed, tell_of_changes
from lightkit.data.splits import Split
from lightkit.data.tables.index import Index
from lightkit.data.tables.loader import BatchMaker
from lightkit.data.tables.module import Table
from lightkit.data.tables.source import Snapshot, is_remote, local_path
from lightkit.data.transforms import View, preprocessing_of
from lightkit.errors import ConfigError, DataError
from lightkit.images.reading import UnreadableImageError

__all__ = ["PetastormTable"]

log = logging.getLogger("lightkit.data")

_LAST_PYARROW, _LAST_NUMPY = 14, 1
_FIELDS = ("inputs", "labels", "weights")  # of a batch of petastorm's; each has the rows first
_INSTEAD = "lightkit.data.Table reads the same Parquet files: set data.class_path to it."


class PetastormTable(Table):
    """Images or numbers from Petastorm datasets or other folders of Parquet, read by petastorm itself.

    It needs petastorm, whose last version (0.13.1) works with pyarrow 14 and numpy 1 at most, and so not beside a torch
    of today. `Table` reads the same files beside any, gives the same rows, shares out single rows in place of row
    groups, and has a bound on its memory: take this one only where petastorm itself is wanted.

    Rows are read with ``make_batch_reader`` and its ``BatchedDataLoader``, and come as the batches of `Table`. Row
    groups are shared out among the processes by their number, the same ones each epoch. Where a process has fewer rows
    than another, it gets blank batches of weight 0 at the end of the epoch, which count for nothing: no row is lost,
    and all have equally many batches. A training that is resumed within an epoch reads it from the start, and passes
    over what it has had. ``lightkit predict`` and the proof of an export read as `Table` does.

    Args:
        train: Folder or file of Parquet, or an address such as s3://bucket/table, to train on.
        val: Likewise, for validation.
        test: Likewise, for testing.
        storage_options: For an object store, as the classes of pyarrow.fs take them.
        image: Column of encoded images; default is `image`, where no ``features`` are given.
        features: Column of numbers or lists of them, or several, which are joined into one vector.
        label: Column of what is to be predicted; null where there is none.
        weight: Column of numbers by which the loss of a row is multiplied.
        target: Whether labels are classes or numbers to tell; `auto` takes floating point for numbers.
        image_size: Side of the square images that the model gets, in pixels.
        batch_size: Rows of one batch on one process.
        workers_count: Threads that read and decode row groups, of which up to four for each thread are in memory. With
            more than one, petastorm hands row groups over as they come, so that no run can be repeated exactly, and a
            training that is resumed within an epoch may meet rows of it twice or not at all.
        reader_pool_type: `thread`, or `dummy` to read and decode in the training process's own.
        shuffling_queue_capacity: Rows, decoded, that each process keeps in memory and mixes; 0 mixes within row groups
            only.
        shuffle_row_groups: Read the row groups in another order each epoch.
        augment: Change training images at random; false shows training what evaluation sees.
        crop_scale: Least and greatest share of an image's area that a random training crop keeps.
        color_jitter: Strength of random changes of brightness, contrast, saturation and hue in training; 0 for none.
        rand_augment: Apply RandAugment in training.
        seed: Decides order and augmentation; default is the run's seed_everything.
        on_bad_image: What to do about rows that cannot be used: `skip` leaves them out and lists them in the run
            folder, `error` decodes every image before training and ends the command with the list.
        max_bad_fraction: Share of such rows from which on it is an error in either case: of the table before training,
            and of those of an epoch at its end.
    """

    source = "petastorm"

    def __init__(
        self,
        train: str,
        val: str | None = None,
        test: str | None = None,
        storage_options: dict[str, Any] | None = None,
        image: str | None = None,
        features: str | list[str] | None = None,
        label: str | None = "label",
        weight: str | None = None,
        target: Literal["auto", "class", "value"] = "auto",
        image_size: int = 224,
        batch_size: int = 32,
        workers_count: int = 1,
        reader_pool_type: Literal["thread", "dummy"] = "thread",
        shuffling_queue_capacity: int = 1024,
        shuffle_row_groups: bool = True,
        augment: bool = True,
        crop_scale: tuple[float, float] = (0.35, 1.0),
        color_jitter: float = 0.0,
        rand_augment: bool = False,
        seed: int | None = None,
        on_bad_image: Literal["skip", "error"] = "skip",
        max_bad_fraction: float = 0.05,
    ) -> None:
        self.check_installed()
        super().__init__(
            train=train, val=val, test=test, storage_options=storage_options, image=image, features=features,
            label=label, weight=weight, split=None, val_fraction=0, test_fraction=0, target=target,
            image_size=image_size, batch_size=batch_size, num_workers=0, augment=augment, crop_scale=crop_scale,
            color_jitter=color_jitter, rand_augment=rand_augment, seed=seed, on_bad_image=on_bad_image,
            max_bad_fraction=max_bad_fraction,
        )  # fmt: skip
        for name, value, least in (
            ("workers_count", workers_count, 1), ("shuffling_queue_capacity", shuffling_queue_capacity, 0),
        ):  # fmt: skip
            if value < least:
                raise ConfigError(f"data.init_args.{name}: expected {least} or more, got {value}.")
        for split, place in self.places.items():
            if not is_remote(place) and (local_path(place) / "_delta_log").is_dir():
                raise _is_delta(split, place)
        self.workers_count = workers_count
        self.reader_pool_type = reader_pool_type
        self.shuffling_queue_capacity = shuffling_queue_capacity
        self.shuffle_row_groups = shuffle_row_groups
        self._loaders: list[_PetastormLoader] = []

    @classmethod
    def check_installed(cls) -> None:
        """Refuse at once if petastorm does not work; `lightkit check` asks as well.

        Raises:
            ConfigError: If it is not installed, or another package is too new for it.
        """
        try:
            petastorm: str | None = metadata.version("petastorm")
        except metadata.PackageNotFoundError:
            petastorm = None
        newest = {"pyarrow": (pa.__version__, _LAST_PYARROW), "numpy": (np.__version__, _LAST_NUMPY)}
        if petastorm and all(int(found.partition(".")[0]) <= last for found, last in newest.values()):
            return
        raise ConfigError(
            "data.class_path: PetastormTable needs petastorm, whose last version, 0.13.1, works with pyarrow "
            f"{_LAST_PYARROW} and numpy {_LAST_NUMPY} at most; found petastorm {petastorm or 'not installed'}, pyarrow "
            f"{pa.__version__}, numpy {np.__version__}. Take lightkit.data.Table, which reads the same Parquet files, "
            "or an environment of its own: pip install --constraint constraints-tpu.txt 'lightkit[petastorm]'."
        )

    def setup(self, stage: str | None = None) -> None:
        """Open the tables and look at their labels, once, as `Table` does.

        Raises:
            ConfigError: If one is a Delta table.
            DataError: If one cannot be used, or ``stage`` needs one that is not given.
        """
        super().setup(stage)
        for split, table in self._tables.items():
            if table.kind == "delta":
                raise _is_delta(split, table.place)

    def train_dataloader(self) -> Any:
        """Shuffled batches, augmented unless asked not to; after a restored checkpoint, the rest of its epoch first."""
        loader = self._petastorm_loader("train", training_view_of(self, preprocessing_of(self.image_size)))
        loader.before_epoch = self._refuse_bad_epoch
        self._training = loader  # type: ignore[assignment]  # it counts as `TableLoader` does
        shares = loader.shares
        if self.trainer is not None and self.trainer.is_global_zero and min(shares) < 0.9 * max(shares):
            log.warning(
                "data: petastorm shares out whole row groups: the processes have from %d to %d rows. Those with fewer "
                "get blank batches of weight 0 for the rest of each epoch. lightkit.data.Table shares out rows.",
                min(shares), max(shares),
            )  # fmt: skip
        return loader

    def teardown(self, stage: str) -> None:
        """End the readers' threads; refuse a fit whose last epoch lacked too many rows.

        Raises:
            DataError: If they are more than ``max_bad_fraction``.
        """
        for loader in self._loaders:
            loader.close()
        self._loaders = []
        super().teardown(stage)

    def _eval_loader(self, split: Split) -> DataLoader[Any]:
        return self._petastorm_loader(split, self._centre)  # type: ignore[return-value]  # Lightning takes any iterable

    def _petastorm_loader(self, split: Split, view: View) -> _PetastormLoader:
        trainer, for_training = self.trainer, split == "train"
        loader = _PetastormLoader(
            self._tables[split], self.index, split, self._batch_maker(view),
            batch_size=self.batch_size,
            rank=trainer.global_rank if trainer else 0,
            num_ranks=trainer.world_size if trainer else 1,
            pool=self.reader_pool_type,
            num_threads=self.workers_count,
            capacity=self.shuffling_queue_capacity if for_training else 0,
            shuffle_row_groups=self.shuffle_row_groups,
            seed=seed_of(self) if for_training else None,
            start=position_of(trainer) if for_training else Position(0, 0),
        )  # fmt: skip
        self._loaders.append(loader)
        return loader


def _is_delta(split: str | None, place: str) -> ConfigError:
    return ConfigError(
        f"data.init_args.{split}: {place} is a Delta table, of which petastorm would read deleted and replaced files "
        "as well. Set data.class_path to lightkit.data.Table, which reads its log."
    )


class _PetastormLoader:
    """Gives the batches of this rank's row groups, and blank ones of weight 0 if another rank has more.

    Rank r of n reads the row groups numbered r, r + n, ...

    Args:
        snapshot: The table.
        index: Its rows.
        split: To read.
        make_batch: Makes tensors of rows.
        batch_size: Rows of a batch.
        rank: Number of this rank, from 0.
        num_ranks: Ranks that read together.
        pool: Threads that read and decode, or the thread that asks.
        num_threads: Number of threads.
        capacity: Rows, ready for the model, that are kept to shuffle among; 0 keeps the reader's order.
        shuffle_row_groups: Read them in another order each epoch; with the seed only.
        seed: Of the order; None for the stored order.
        start: Epoch and batch to go on at.

    Raises:
        DataError: If petastorm cannot read the table or one of the columns, or there are more ranks than row groups.
    """

    batch_sampler = None
    """Lightning asks every object with a `sampler`."""

    def __init__(
        self,
        snapshot: Snapshot,
        index: Index,
        split: Split,
        make_batch: BatchMaker,
        *,
        batch_size: int,
        rank: int,
        num_ranks: int,
        pool: Literal["thread", "dummy"],
        num_threads: int,
        capacity: int,
        shuffle_row_groups: bool,
        seed: int | None,
        start: Position,
    ) -> None:
        self._snapshot, self._index, self._make_batch = snapshot, index, make_batch
        self._batch_size, self._rank, self._num_ranks = batch_size, rank, num_ranks
        self._pool, self._num_threads, self._capacity = pool, num_threads, capacity
        self._shuffle_row_groups, self._seed = shuffle_row_groups, seed
        self._files = _legacy_filesystem(snapshot)
        sizes = self._row_group_sizes(split)
        if len(sizes) < num_ranks:
            raise DataError(
                f"{snapshot.place}: petastorm shares out whole row groups, and here are {len(sizes)} for {num_ranks} "
                "processes. Write it with smaller row groups, or set data.class_path to lightkit.data.Table, which "
                "shares out rows."
            )
        self.shares = [sum(sizes[other::num_ranks]) for other in range(num_ranks)]
        self._num_groups = len(sizes[rank::num_ranks])
        self.before_epoch: Callable[[], None] | None = None
        self._start, self._epoch = start, start.epoch
        self._open: Iterator[Batch] | None = None
        self.sampler = self  # Lightning sets the epoch of a loader's sampler

    def __len__(self) -> int:
        return math.ceil(max(self.shares) / self._batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch. Lightning calls this before each, also before the one that is being resumed."""
        if self.before_epoch is not None:
            self.before_epoch()
        self._epoch = epoch
        if epoch != self._start.epoch:
            self._start = Position(epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """Return what decides which rows a batch has; without it Lightning would not resume within an epoch."""
        return {
            "shares": self.shares,
            "batch_size": self._batch_size,
            "num_threads": self._num_threads,
            "shuffling_queue_capacity": self._capacity,
            "seed": self._seed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Warn if the rest of the epoch will not be what it would have been."""
        if self._pool == "dummy" or self._num_threads == 1:
            tell_of_changes(state, self.state_dict())
            return
        log.warning(
            "The checkpoint was taken in the middle of an epoch, and data.init_args.workers_count (%d) lets petastorm "
            "hand over row groups as they come: the rest of this epoch is not the rest of that one. Later epochs are "
            "whole.",
            self._num_threads,
        )

    def close(self) -> None:
        """End the threads of a reader that was not read to its end."""
        if self._open is not None:
            self._open.close()  # type: ignore[attr-defined]  # it is a generator
            self._open = None

    def __iter__(self) -> Iterator[Batch]:
        self.close()
        self._open = self._batches(self._start if self._start.epoch == self._epoch else Position(self._epoch, 0))
        return self._open

    def _batches(self, position: Position) -> Iterator[Batch]:
        """Give an epoch from a batch on; those before are read, and thrown away."""
        given, last = 0, self._make_batch([], [])
        rows = _RowsToTensors(self._index, self._snapshot, self._make_batch, epoch=position.epoch)
        reader = self._reader(rows, position.epoch)
        try:
            for batch in self._read(reader, rows, position.epoch):
                given, last = given + 1, batch
                if given > len(self):
                    raise DataError(
                        f"{self._snapshot.place}: there are more rows than when the table was opened. Start again when "
                        "nobody writes to it."
                    )
                if given > position.batches:
                    yield batch
        finally:
            reader.stop()
            reader.join()
        for _ in range(max(given, position.batches), len(self)):
            yield last[0][:1], last[1][:1], torch.zeros(1)

    def _read(self, reader: Any, rows: _RowsToTensors, epoch: int) -> Iterator[Batch]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from petastorm.pytorch import BatchedDataLoader

        seed = 0 if self._seed is None else stable_seed(self._seed, epoch, self._rank)
        random = torch.Generator().manual_seed(seed)
        whole = _WholeReader(reader, rows, self._num_groups, place=self._snapshot.place)
        found = iter(BatchedDataLoader(whole, batch_size=self._batch_size, shuffling_queue_capacity=self._capacity))
        columns = self._index.columns
        while True:
            try:
                with _swapped_generator(random):
                    batch = next(found, None)
            except (OSError, RuntimeError, pa.ArrowException) as error:
                raise DataError(f"{self._snapshot.place}: petastorm cannot read on ({error}).") from error
            if rows.errors:
                raise rows.errors[0]
            if batch is None:
                return
            inputs, labels, weights = (batch[name] for name in _FIELDS)
            labels = labels.unsqueeze(1) if columns.target == "value" else labels
            if columns.weight is None and bool((weights == 1).any()):  # without those that stand for no row
                yield inputs[weights == 1], labels[weights == 1]
            else:
                yield inputs, labels, weights

    def _reader(self, rows: _RowsToTensors, epoch: int) -> Any:
        """Open petastorm's reader of an epoch."""
        import petastorm
        from petastorm.transform import TransformSpec

        # of each call of pyarrow's that goes with the next version, also in the reader's threads
        warnings.filterwarnings("ignore", module="petastorm")
        inputs, labels, *_ = self._make_batch([], [])
        shuffled = self._seed is not None
        fields = [
            ("inputs", np.dtype(str(inputs.dtype).removeprefix("torch.")).type, tuple(inputs.shape[1:]), False),
            ("labels", np.dtype(str(labels.dtype).removeprefix("torch.")).type, (), False),
            ("weights", np.float32, (), False),
        ]
        return petastorm.make_batch_reader(
            f"file://{_petastorm_path(self._snapshot)}",
            filesystem=self._files,
            schema_fields=[re.escape(name) for name in self._index.columns.of_a_sample],
            reader_pool_type=self._pool,
            workers_count=self._num_threads,
            # petastorm takes 0 for no seed at all, and numpy takes 32 bits
            seed=1 if self._seed is None else 1 + stable_seed(self._seed, epoch) % (2**32 - 1),
            shuffle_rows=shuffled,
            shuffle_row_groups=shuffled and self._shuffle_row_groups,
            num_epochs=1,
            cur_shard=self._rank if self._num_ranks > 1 else None,
            shard_count=self._num_ranks if self._num_ranks > 1 else None,
            transform_spec=TransformSpec(rows, edit_fields=fields, selected_fields=list(_FIELDS)),
        )

    def _row_group_sizes(self, split: Split) -> list[int]:
        """Count the rows that come of each row group, in petastorm's order: a blank one of one without usable rows."""
        snapshot, index = self._snapshot, self._index
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                import pyarrow.parquet as pq
                from petastorm.etl.dataset_metadata import infer_or_load_unischema, load_row_groups

                dataset = pq.ParquetDataset(_petastorm_path(snapshot), filesystem=self._files, validate_schema=False)
                known = set(infer_or_load_unischema(dataset).fields)
                pieces = load_row_groups(dataset)
        except (OSError, ValueError, RuntimeError, pa.ArrowException) as error:
            reason = str(error).split("\n", 1)[0] or type(error).__name__
            raise DataError(f"{snapshot.place}: petastorm cannot read this ({reason}). {_INSTEAD}") from error
        for name in index.columns.of_a_sample:
            kind = str(snapshot.schema.field(name).type)
            if any(name in group.file.partition for group in snapshot.groups):
                kind = "what the names of its folders say, which petastorm takes for other values"
            elif name in known:
                continue
            raise DataError(f"{snapshot.place}: petastorm cannot read column {name!r}: it holds {kind}. {_INSTEAD}")
        groups = ((index.groups[group], num) for group, num in index.rows(split))
        rows = {(group.file.path, group.number): num for group, num in groups}
        return [max(1, rows.get((self._files.in_store(piece.path), piece.row_group), 0)) for piece in pieces]


class _RowsToTensors:
    """Converts the rows of a row group to tensors, in the thread that has read it.

    petastorm would print an error and lose its type, so errors are kept for the thread that asks for batches.

    Args:
        index: Knows columns and classes.
        snapshot: The table.
        make_batch: Makes a batch of rows.
        epoch: Decides each image's augmentation, with its content, because rows have no number.
    """

    def __init__(self, index: Index, snapshot: Snapshot, make_batch: BatchMaker, *, epoch: int) -> None:
        self._index, self._make_batch, self._place, self._epoch = index, make_batch, snapshot.place, epoch
        self._schema = pa.schema([snapshot.schema.field(name) for name in index.columns.of_a_sample])
        self.errors: list[Exception] = []

    def __call__(self, frame: Any) -> Any:
        """Give columns `_FIELDS` for the rows that can be used; the index has listed the others."""
        import pandas as pd

        columns = self._index.columns
        batch = pa.RecordBatch.from_pandas(frame[self._schema.names], schema=self._schema, preserve_index=False)
        try:
            rows = [
                row._replace(name=f"{self._place}, {len(row.image or b''):,} bytes with label {row.label}")
                for row in self._index.make_rows(batch, columns, [""] * batch.num_rows)
                if row.defect is None and (row.image is not None or not columns.image)
            ]
            made = self._make_batch(rows, [SampleKey(zlib.crc32(row.image or b""), self._epoch) for row in rows])
        except (DataError, UnreadableImageError) as error:
            self.errors.append(error)
            return pd.DataFrame({name: [] for name in _FIELDS})
        inputs, labels, *given = (tensor.contiguous().numpy() for tensor in made)
        weights = given[0] if given else np.ones(len(labels), np.float32)
        return pd.DataFrame({"inputs": list(inputs), "labels": labels.reshape(-1), "weights": weights})


class _WholeReader:
    """A reader that ends only when all of its row groups have come.

    petastorm 0.13.1 asks first whether all that was given to its threads is done and then whether all was given; if
    that happens in between, as it does with few row groups or on a busy machine, it ends too early, and loses the rest.

    Args:
        reader: petastorm's.
        rows: Knows of errors.
        num_groups: Row groups of this rank.
        place: Address of the table.
    """

    batched_output = True
    patience_s = 10.0
    """Seconds for which a reader may have ended while row groups are missing: its threads need less."""

    def __init__(self, reader: Any, rows: _RowsToTensors, num_groups: int, *, place: str) -> None:
        self._reader, self._rows, self._missing, self._place = reader, rows, num_groups, place

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """Give a row group.

        Raises:
            DataError: If the reader has ended, and some have not come.
        """
        deadline: float | None = None
        while True:
            try:
                group = next(self._reader)
            except StopIteration:
                if self._missing <= 0 or self._rows.errors:
                    raise
            else:
                self._missing -= 1
                return group
            deadline = time.monotonic() + self.patience_s if deadline is None else deadline
            if time.monotonic() > deadline:
                num = f"{self._missing} row groups" if self._missing > 1 else "a row group"
                raise DataError(
                    f"{self._place}: petastorm has ended without {num} that it had to read. Start again when nobody "
                    "writes to the table; or set data.class_path to lightkit.data.Table, which reads the same files."
                )
            time.sleep(0.001)  # the threads that have the rest need the processor


@contextmanager
def _swapped_generator(random: torch.Generator) -> Iterator[None]:
    """Let petastorm, which shuffles with torch's own generator, draw from another one, and leave the model's alone."""
    before = torch.get_rng_state()
    torch.set_rng_state(random.get_state())
    try:
        yield
    finally:
        random.set_state(torch.get_rng_state())
        torch.set_rng_state(before)


def _legacy_filesystem(snapshot: Snapshot) -> Any:
    """Convert a table's file system to pyarrow's old kind: the only one through which petastorm reads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pyarrow.filesystem import FileSystem

    filesystem, is_local = snapshot.groups[0].file.filesystem, snapshot.is_local

    class LegacyFiles(FileSystem):  # type: ignore[misc]
        def open(self, path: str, mode: str = "rb") -> Any:
            return filesystem.open_input_file(self.in_store(path))

        def isdir(self, path: str) -> bool:
            return bool(self._type(path) == fs.FileType.Directory)

        def isfile(self, path: str) -> bool:
            return bool(self._type(path) == fs.FileType.File)

        def exists(self, path: str) -> bool:
            return bool(self._type(path) != fs.FileType.NotFound)

        def walk(self, path: str) -> Iterator[tuple[str, Sequence[str], Sequence[str]]]:
            """Give a folder's own folders and files; pyarrow asks no further."""
            entries = filesystem.get_file_info(fs.FileSelector(self.in_store(path)))
            folders = [_quote(entry.base_name) for entry in entries if entry.type == fs.FileType.Directory]
            files = [_quote(entry.base_name) for entry in entries if entry.type == fs.FileType.File]
            yield path, sorted(folders), sorted(files)

        def _type(self, path: str) -> Any:
            return filesystem.get_file_info(self.in_store(path)).type

        def in_store(self, path: str) -> str:
            """Convert petastorm's path to that of the file system."""
            return unquote(path) if is_local else unquote(path).lstrip("/")

    return LegacyFiles()


def _petastorm_path(snapshot: Snapshot) -> str:
    """Give the path that petastorm takes out of an address: with a slash in front, and quoted."""
    if not is_remote(snapshot.place):
        return _quote(str(local_path(snapshot.place)))
    return _quote("/" + snapshot.place.partition("://")[2].strip("/"))


def _quote(path: str) -> str:
    """Quote what has a meaning in an address; petastorm never undoes it, `_legacy_filesystem` does."""
    return path.replace("%", "%25").replace("#", "%23").replace("?", "%3F")
