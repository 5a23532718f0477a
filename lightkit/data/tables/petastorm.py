"""Petastorm datasets as a Lightning data module: petastorm reads for training, `Table` does the rest.

petastorm is imported inside a function: it needs pyarrow 14, whose file systems of old left it with version 16.
"""

from __future__ import annotations

import logging
import math
import re
import time
import warnings
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from itertools import chain, islice, repeat
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from lightkit.data.image_dataset import Batch
from lightkit.data.image_module import seed_of, training_view_of
from lightkit.data.sampler import Position, SampleKey, position_of, stable_seed, warn_of_changes
from lightkit.data.tables.index import Row
from lightkit.data.tables.loader import BatchMaker
from lightkit.data.tables.module import Table
from lightkit.data.tables.source import is_remote, local_path
from lightkit.data.transforms import preprocessing_of
from lightkit.errors import ConfigError, DataError
from lightkit.images.reading import map_in_order

log = logging.getLogger("lightkit.data")

_LAST_PYARROW, _LAST_NUMPY = 14, 1
_PATIENCE_S = 10.0
_INSTEAD = "lightkit.data.Table reads the same Parquet files: set data.class_path to it."


class PetastormTable(Table):
    """Images or numbers from Petastorm datasets or other folders of Parquet, read by petastorm itself.

    It needs petastorm, whose last version (0.13.1) works with pyarrow 14 and numpy 1 at most, and so not beside a torch
    of today. `Table` reads the same files beside any, gives the same rows, shares out single rows in place of row
    groups, and has a bound on its memory: take this one only where petastorm itself is wanted.

    Training rows are read with ``make_batch_reader``, and come as the batches of `Table`, which itself reads for
    validation, test, ``lightkit predict`` and the checks of an export. Row groups are divided among the processes by
    their number, the same ones each epoch. A process with fewer rows than another reads its first ones of the epoch
    again, so that all have equally many batches and no row is left out. A training that is resumed within an epoch
    reads that epoch from its start, and skips the rows that it has had.

    Args:
        train: Folder or file of Parquet on this machine to train on.
        val: Likewise, for validation.
        test: Likewise, for testing.
        image: Column of encoded images; default is `image`, where no ``features`` are given.
        features: Column of numbers or lists of them, or several, which are joined into one vector.
        label: Column of what is to be predicted; null where there is none.
        weight: Column of numbers by which the loss of a row is multiplied.
        target: Whether labels are classes or numbers to tell; `auto` takes floating point for numbers.
        image_size: Side of the square images that the model gets, in pixels.
        batch_size: Rows of one batch on one process.
        workers_count: Threads that decode rows; petastorm reads in one thread, so that a run can be repeated exactly.
        reader_pool_type: `thread`, or `dummy` to read in the training process's own thread.
        shuffling_queue_capacity: Encoded rows that each process keeps in memory and mixes; 0 mixes within row groups
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
            train=train, val=val, test=test, image=image, features=features,
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
            if is_remote(place) or (local_path(place) / "_delta_log").is_dir():
                raise ConfigError(
                    f"data.init_args.{split}: {place} is no folder of Parquet on this machine. Of a Delta table "
                    "petastorm would read deleted and replaced files as well, and object stores are left to "
                    "lightkit.data.Table, which reads both: set data.class_path to it."
                )
        self.workers_count = workers_count
        self.reader_pool_type = reader_pool_type
        self.shuffling_queue_capacity = shuffling_queue_capacity
        self.shuffle_row_groups = shuffle_row_groups
        self._petastorm: _PetastormLoader | None = None

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

    def train_dataloader(self) -> Any:
        """Shuffled batches, augmented unless asked not to; after a restored checkpoint, the rest of its epoch first."""
        maker = self._batch_maker(training_view_of(self, preprocessing_of(self.image_size)), self.defects)
        loader = self._petastorm = _PetastormLoader(self, maker)
        self._training = loader  # type: ignore[assignment]  # `Table` asks only whether there is one
        shares = loader.shares
        if self.trainer is not None and self.trainer.is_global_zero and min(shares) < 0.9 * max(shares):
            log.warning(
                "data: petastorm divides whole row groups: the processes have from %d to %d rows. Those with fewer "
                "read some of theirs twice in each epoch. lightkit.data.Table divides rows.",
                min(shares), max(shares),
            )  # fmt: skip
        return loader

    def teardown(self, stage: str) -> None:
        """End the reader's threads; refuse a fit whose last epoch lacked too many rows.

        Raises:
            DataError: If they are more than ``max_bad_fraction``.
        """
        if self._petastorm is not None:
            self._petastorm.close()
        super().teardown(stage)


class _PetastormLoader:
    """Gives the training batches of this rank's row groups; rank r of n reads those numbered r, r + n, ...

    Args:
        data: The data module, after its `setup`.
        make_batch: Makes tensors of rows.

    Raises:
        DataError: If there are more ranks than row groups, or a rank has no row.
    """

    batch_sampler = None
    """Lightning asks every object with a `sampler`."""

    def __init__(self, data: PetastormTable, make_batch: BatchMaker) -> None:
        trainer, index, snapshot = data.trainer, data.index, data._tables["train"]
        self._data, self._make_batch, self._seed = data, make_batch, seed_of(data)
        self._rank, self._num_ranks = (trainer.global_rank, trainer.world_size) if trainer else (0, 1)
        self._schema = pa.schema([snapshot.schema.field(name) for name in index.columns.of_a_sample])
        num_rows = dict(index.rows("train"))  # the groups of this table are the first of the index
        sizes = [num_rows.get(number, 0) for number in range(len(snapshot.groups))]
        self.shares = [sum(sizes[rank :: self._num_ranks]) for rank in range(self._num_ranks)]
        if not min(self.shares):
            raise DataError(
                f"{snapshot.place}: petastorm divides whole row groups, and here are {len(sizes)} for "
                f"{self._num_ranks} processes, not all of which would have rows. Write it with smaller row groups, or "
                "set data.class_path to lightkit.data.Table, which divides rows."
            )
        if divided := {*self._schema.names} & {name for group in snapshot.groups for name in group.file.partition}:
            raise DataError(
                f"{snapshot.place}: petastorm cannot read column {min(divided)!r}: it holds what the names of its "
                f"folders say, which petastorm takes for other values. {_INSTEAD}"
            )
        self._start = position_of(trainer)
        self._epoch = self._start.epoch
        self._open: Iterator[Batch] | None = None
        self.sampler = self  # Lightning sets the epoch of a loader's sampler

    def __len__(self) -> int:
        return math.ceil(max(self.shares) / self._data.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch. Lightning calls this before each, also before the one that is being resumed."""
        self._data._refuse_bad_epoch()
        self._epoch = epoch
        if epoch != self._start.epoch:
            self._start = Position(epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """Return what decides which rows a batch has; without it Lightning would not resume within an epoch."""
        capacity = self._data.shuffling_queue_capacity
        batch_size = self._data.batch_size
        return {
            "shares": self.shares, "batch_size": batch_size, "shuffling_queue_capacity": capacity, "seed": self._seed
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Warn if the rest of the epoch will not be what it would have been."""
        warn_of_changes(state, self.state_dict())

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
        """Give the batches of an epoch from one on."""
        size, epoch = self._data.batch_size, position.epoch
        reader = self._open_reader(epoch)
        found, share = self._rows(reader), self.shares[self._rank]
        own = self._shuffle(islice(found, share), epoch)
        rows = islice(chain(own, islice(found, max(self.shares) - share)), position.batches * size, None)

        def make(some: list[Row]) -> Batch:  # a row has no number: its content decides its augmentation
            return self._make_batch(some, [SampleKey(zlib.crc32(row.image or b""), epoch) for row in some])

        num_threads = self._data.workers_count
        try:
            with ThreadPoolExecutor(num_threads) as pool:
                yield from map_in_order(pool, make, iter(lambda: list(islice(rows, size)), []), ahead=num_threads)
        finally:
            reader.stop()
            reader.join()

    def _shuffle(self, rows: Iterator[Row], epoch: int) -> Iterator[Row]:
        """Mix rows in a buffer of ``shuffling_queue_capacity`` rows."""
        draw, kept = np.random.default_rng(stable_seed(self._seed, epoch, self._rank)), list[Row]()
        for row in chain(rows, repeat(None)):
            if row is not None:
                kept.append(row)
            if row is None or len(kept) > self._data.shuffling_queue_capacity:
                if not kept:
                    return
                place = int(draw.integers(len(kept)))
                kept[place], kept[-1] = kept[-1], kept[place]
                yield kept.pop()

    def _rows(self, reader: Any) -> Iterator[Row]:
        """Give the rows that can be used, without end; the index has listed the others."""
        index, place, since_s = self._data.index, self._data.places["train"], time.monotonic()
        while True:
            try:
                content = next(reader).rows[0]
            except StopIteration:  # petastorm 0.13.1 may end for a moment while its thread has the last row groups
                if time.monotonic() - since_s > _PATIENCE_S:
                    raise DataError(
                        f"{place}: petastorm has ended before all rows have come. Start again when no program writes "
                        f"to the table. {_INSTEAD}"
                    ) from None
                time.sleep(0.001)
                continue
            except (OSError, ValueError, RuntimeError, KeyError, pa.ArrowException) as error:
                raise DataError(f"{place}: petastorm cannot read on ({error}). {_INSTEAD}") from error
            batch = pa.ipc.read_record_batch(pa.py_buffer(content), self._schema)
            for row in index.make_rows(batch, index.columns, [""] * batch.num_rows):
                if row.defect is None:
                    yield row._replace(name=f"{place}, {len(row.image or b''):,} bytes with label {row.label}")
            since_s = time.monotonic()

    def _open_reader(self, epoch: int) -> Any:
        """Open petastorm's reader of an epoch; each row group comes as a record batch in bytes."""
        # of each call of pyarrow's that goes with the next version, also in the reader's threads
        warnings.filterwarnings("ignore", module="petastorm")
        import pandas as pd
        import petastorm
        from petastorm.transform import TransformSpec

        def serialize(frame: Any) -> Any:
            batch = pa.RecordBatch.from_pandas(frame[schema.names], schema=schema, preserve_index=False)
            return pd.DataFrame({"rows": [batch.serialize().to_pybytes()]})

        schema, place = self._schema, self._data.places["train"]
        try:
            return petastorm.make_batch_reader(
                f"file://{local_path(place)}",
                schema_fields=[re.escape(name) for name in schema.names],
                reader_pool_type=self._data.reader_pool_type,
                workers_count=1,
                # petastorm takes 0 for no seed at all, and numpy takes 32 bits
                seed=1 + stable_seed(self._seed, epoch) % (2**32 - 1),
                shuffle_rows=True,
                shuffle_row_groups=self._data.shuffle_row_groups,
                num_epochs=-(-max(self.shares) // self.shares[self._rank]),
                cur_shard=self._rank if self._num_ranks > 1 else None,
                shard_count=self._num_ranks if self._num_ranks > 1 else None,
                transform_spec=TransformSpec(
                    serialize, edit_fields=[("rows", np.bytes_, (), False)], selected_fields=["rows"]
                ),
            )
        except (OSError, ValueError, RuntimeError, pa.ArrowException) as error:
            reason = str(error).split("\n", 1)[0] or type(error).__name__
            raise DataError(f"{place}: petastorm cannot read this ({reason}). {_INSTEAD}") from error
