"""Petastorm datasets as a Lightning data module: petastorm reads for training, `Table` the rest.

petastorm is imported inside a function: it needs pyarrow 14, whose file systems of old left it with
version 16.
"""

from __future__ import annotations

import math
import re
import warnings
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from itertools import chain, islice, repeat
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from lightkit.config.bounds import NonNegativeInt, PositiveInt
from lightkit.data.image_dataset import Batch
from lightkit.data.image_module import check_arguments, seed_of
from lightkit.data.loader import ResumableLoader
from lightkit.data.sampler import ResumableSampler, SampleKey, position_of, stable_seed
from lightkit.data.tables.index import Row
from lightkit.data.tables.module import Table
from lightkit.errors import ConfigError, DataError
from lightkit.images.image_file import map_in_order
from lightkit.rows.parquet_table import is_remote, local_path

_LAST_PYARROW = 14
_LAST_NUMPY = 1
_INSTEAD = "lightkit.data.Table reads the same Parquet files: set data.class_path to it."


class PetastormTable(Table):
    """Images or numbers from Petastorm datasets or other folders of Parquet, read by petastorm.

    It needs petastorm, whose last version (0.13.1) works with pyarrow 14 and numpy 1 at most, and
    so not beside a torch of today. `Table` reads the same files beside any, gives the same rows,
    shares out single rows in place of row groups, and has a bound on its memory: take this one only
    where petastorm itself is wanted.

    Training rows are read with ``make_batch_reader``, and come as the batches of `Table`, which
    itself reads for validation, test, ``lightkit predict`` and the checks of an export. Row groups
    are divided among the processes by their number, the same ones each epoch. A process with fewer
    rows than another reads its first ones of the epoch again, so that all have equally many batches
    and no row is left out. A training that is resumed within an epoch reads that epoch from its
    start, and skips the rows that it has had.

    Args:
        train: Folder or file of Parquet on this machine to train on.
        val: Likewise, for validation.
        test: Likewise, for testing.
        workers_count: Threads that decode rows; petastorm reads in one thread, so that a run can be
            repeated exactly.
        reader_pool_type: `thread`, or `dummy` to read in the training process's own thread.
        shuffling_queue_capacity: Encoded rows that each process keeps in memory and mixes; 0 mixes
            within row groups only.
        shuffle_row_groups: Read the row groups in another order each epoch.
        kwargs: As for Table: columns, target, sizes and augmentation.
    """

    source = "petastorm"

    def __init__(
        self,
        train: str,
        val: str | None = None,
        test: str | None = None,
        workers_count: PositiveInt = 1,
        reader_pool_type: Literal["thread", "dummy"] = "thread",
        shuffling_queue_capacity: NonNegativeInt = 1024,
        shuffle_row_groups: bool = True,
        **kwargs: Any,
    ) -> None:
        self.check_installed()
        super().__init__(
            path=None, train=train, val=val, test=test, format="auto", version=None, timestamp=None,
            storage_options=None, filter=None, split=None, key=None, val_fraction=0,
            test_fraction=0, num_workers=0,
            **kwargs,
        )  # fmt: skip
        check_arguments(
            self, workers_count=workers_count, shuffling_queue_capacity=shuffling_queue_capacity
        )
        for split, place in self.places.items():
            if is_remote(place) or (local_path(place) / "_delta_log").is_dir():
                raise ConfigError(
                    f"data.init_args.{split}: {place} is no folder of Parquet on this machine. Of a"
                    " Delta table petastorm would read deleted and replaced files as well, and"
                    " object stores are left to lightkit.data.Table, which reads both: set"
                    " data.class_path to it."
                )
        self.workers_count = workers_count
        self.reader_pool_type = reader_pool_type
        self.shuffling_queue_capacity = shuffling_queue_capacity
        self.shuffle_row_groups = shuffle_row_groups

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
        newest = {
            "pyarrow": (pa.__version__, _LAST_PYARROW),
            "numpy": (np.__version__, _LAST_NUMPY),
        }
        if petastorm and all(
            int(found.partition(".")[0]) <= last for found, last in newest.values()
        ):
            return
        raise ConfigError(
            "data.class_path: PetastormTable needs petastorm, whose last version, 0.13.1, works"
            f" with pyarrow {_LAST_PYARROW} and numpy {_LAST_NUMPY} at most; found petastorm"
            f" {petastorm or 'not installed'}, pyarrow {pa.__version__}, numpy {np.__version__}."
            " Take lightkit.data.Table, which reads the same Parquet files, or an environment of"
            " its own: pip install --constraint constraints-tpu.txt 'lightkit-train[petastorm]'."
        )

    def train_dataloader(self) -> Any:
        """Shuffled batches, augmented unless asked not to.

        After a restored checkpoint, the rest of its epoch first.
        """
        self._training = loader = PetastormLoader(self)
        loader.sampler.before_epoch = self._check_bad
        return loader


class _PetastormOrder(ResumableSampler):
    """Position of a training whose rows petastorm puts in an order of its own.

    So those of a batch are unknown.
    """

    def indices_of(self, *, epoch: int, batch: int) -> None:  # type: ignore[override]
        """Return None: petastorm does not say which rows a batch has."""


class PetastormLoader(ResumableLoader):
    """Gives the training batches of this rank's row groups.

    Rank r of n reads those numbered r, r + n, ...

    Args:
        data: The data module, after its `setup`.

    Raises:
        DataError: If there are more ranks than row groups, or a rank has no row.
    """

    def __init__(self, data: PetastormTable) -> None:
        trainer = data.trainer
        index = data.index
        snapshot = data._tables["train"]
        rank, num_ranks = (trainer.global_rank, trainer.world_size) if trainer else (0, 1)
        num_rows = dict(index.rows("train"))  # the groups of this table are the first of the index
        sizes = [num_rows.get(number, 0) for number in range(len(snapshot.groups))]
        self.shares = [sum(sizes[rank::num_ranks]) for rank in range(num_ranks)]
        self.data = data
        self.place = data.places["train"]
        self.seed = seed_of(data)
        self.schema = pa.schema([snapshot.schema.field(name) for name in index.columns.of_a_sample])
        if not min(self.shares):
            raise DataError(
                f"{self.place}: petastorm divides whole row groups, and here are {len(sizes)} for"
                f" {num_ranks} processes, not all of which would have rows. Write it with smaller"
                " row groups, or set data.class_path to lightkit.data.Table, which divides rows."
            )
        if divided := {*self.schema.names} & {
            name for group in snapshot.groups for name in group.file.partition
        }:
            raise DataError(
                f"{self.place}: petastorm cannot read column {min(divided)!r}: it holds what the"
                f" names of its folders say, which petastorm takes for other values. {_INSTEAD}"
            )
        every = range(sum(sizes))
        options = {
            "batch_size": data.batch_size,
            "num_replicas": num_ranks,
            "rank": rank,
            "seed": self.seed,
        }
        sampler = _PetastormOrder(every, **options)
        sampler.resume(**position_of(trainer)._asdict())
        super().__init__(every, batch_size=None, sampler=sampler)  # type: ignore[arg-type]  # Lightning sets its epoch

    def __len__(self) -> int:
        return math.ceil(max(self.shares) / self.data.batch_size)

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        data = self.data
        sampler = self.sampler
        assert isinstance(sampler, ResumableSampler)
        size = data.batch_size
        epoch = sampler.epoch
        first = sampler.first_batch
        share = self.shares[sampler.rank]
        num_threads = data.workers_count
        make_batch = data._batch_maker(data._view("train"), data.defects)

        # a row has no number: its content decides its augmentation
        def make(some: list[Row]) -> Batch:
            return make_batch(
                some, [SampleKey(zlib.crc32(row.image or b""), epoch) for row in some]
            )

        # it stops and joins
        with self._open_reader(epoch) as reader, ThreadPoolExecutor(num_threads) as pool:
            found = self._rows(reader)
            # then the first again, up to the largest share
            own = self._shuffle(islice(found, share), epoch)
            rows = islice(chain(own, islice(found, max(self.shares) - share)), first * size, None)
            yield from map_in_order(
                pool, make, iter(lambda: list(islice(rows, size)), []), ahead=num_threads
            )

    def _shuffle(self, rows: Iterator[Row], epoch: int) -> Iterator[Row]:
        """Mix rows in a buffer of ``shuffling_queue_capacity`` rows."""
        rank: int = self.sampler.rank
        draw = np.random.default_rng(stable_seed(self.seed, epoch, rank))
        kept = list[Row]()
        for row in chain(rows, repeat(None)):
            if row is not None:
                kept.append(row)
            if row is None or len(kept) > self.data.shuffling_queue_capacity:
                if not kept:
                    return
                place = int(draw.integers(len(kept)))
                drawn = kept[place]
                kept[place] = kept[-1]
                kept.pop()
                yield drawn

    def _rows(self, reader: Any) -> Iterator[Row]:
        """Return the rows that can be used, without end; the index has listed the others."""
        index = self.data.index
        while True:
            try:
                content = next(reader).rows[0]
            except (OSError, ValueError, RuntimeError, KeyError, pa.ArrowException) as error:
                raise DataError(
                    f"{self.place}: petastorm cannot read on ({error}). {_INSTEAD}"
                ) from error
            batch = pa.ipc.read_record_batch(pa.py_buffer(content), self.schema)
            for row in index.make_rows(batch, [self.place] * batch.num_rows):
                if row.defect is None:
                    yield row._replace(
                        name=f"{self.place}, {len(row.image or b''):,} bytes with label {row.label}"
                    )

    def _open_reader(self, epoch: int) -> Any:
        """Open petastorm's reader of an epoch; each row group comes as a record batch in bytes."""
        # of each call of pyarrow's that goes with the next version, also in the reader's threads
        warnings.filterwarnings("ignore", module="petastorm")
        import pandas as pd
        import petastorm
        from petastorm.transform import TransformSpec

        def serialize(frame: Any) -> Any:
            batch = pa.RecordBatch.from_pandas(
                frame[schema.names], schema=schema, preserve_index=False
            )
            return pd.DataFrame({"rows": [batch.serialize().to_pybytes()]})

        schema = self.schema
        data = self.data
        rank = self.sampler.rank
        num_ranks = len(self.shares)
        try:
            return petastorm.make_batch_reader(
                f"file://{local_path(self.place)}",
                schema_fields=[re.escape(name) for name in schema.names],
                reader_pool_type=data.reader_pool_type,
                workers_count=1,
                # petastorm takes 0 for no seed at all, and numpy takes 32 bits
                seed=1 + stable_seed(self.seed, epoch) % (2**32 - 1),
                shuffle_rows=True,
                shuffle_row_groups=data.shuffle_row_groups,
                num_epochs=None,  # without end
                cur_shard=rank if num_ranks > 1 else None,
                shard_count=num_ranks if num_ranks > 1 else None,
                transform_spec=TransformSpec(
                    serialize,
                    edit_fields=[("rows", np.bytes_, (), False)],
                    selected_fields=["rows"],
                ),
            )
        except (OSError, ValueError, RuntimeError, pa.ArrowException) as error:
            raise DataError(
                f"{self.place}: petastorm cannot read this ({error}). {_INSTEAD}"
            ) from error
