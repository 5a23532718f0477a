"""Batches of petastorm's `BatchedDataLoader`, a reader an epoch: as many on every rank, and each closed behind."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from lightkit.data.image_dataset import STANDS_IN, Batch
from lightkit.data.sampler import Position, stable_seed, tell_of_changes
from lightkit.data.tables.petastorm_reading import FIELDS, RowsToTensors, ShardedReading
from lightkit.errors import DataError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from petastorm.pytorch import BatchedDataLoader

__all__ = ["PetastormLoader"]

log = logging.getLogger("lightkit.data")


class PetastormLoader:
    """Gives the batches of this rank's row groups, and blank ones of weight 0 where another rank has more.

    Args:
        reading: Opens a reader for an epoch.
        shares: Of each rank, rows of each of its row groups.
        batch_size: Rows of a batch.
        capacity: Rows, ready for the model, that are kept to shuffle among; 0 keeps the reader's order.
        start: Epoch and batch to go on at.
    """

    batch_sampler = None
    """Lightning asks whoever has a `sampler`."""
    num_seen = 0
    """Rows of all row groups that were read since `forget_counts`, those that were left out counted."""
    num_left_out = 0
    """Those of them that could not be decoded."""

    def __init__(
        self,
        reading: ShardedReading,
        shares: Sequence[Sequence[int]],
        *,
        batch_size: int,
        capacity: int,
        start: Position,
    ) -> None:
        self.reading, self.batch_size, self.capacity = reading, batch_size, capacity
        self.shares = [sum(share) for share in shares]
        self._num_groups = len(shares[reading.rank])
        self.before_epoch: Callable[[], None] | None = None
        self._start, self._epoch = start, start.epoch
        self._open: Iterator[Batch] | None = None
        self.sampler = self  # Lightning tells the epoch to a loader's sampler

    def __len__(self) -> int:
        return math.ceil(max(self.shares) / self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch. Lightning says it before each, also before the one that is being resumed."""
        if self.before_epoch is not None:
            self.before_epoch()
        self._epoch = epoch
        if epoch != self._start.epoch:
            self._start = Position(epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """What decides which rows a batch has; Lightning resumes within an epoch only where a loader has a state."""
        return {
            "shares": self.shares,
            "batch_size": self.batch_size,
            "num_threads": self.reading.num_threads,
            "shuffling_queue_capacity": self.capacity,
            "seed": self.reading.seed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Say so where the rest of the epoch will not be what it would have been."""
        if self.reading.has_own_order:
            log.warning(
                "The checkpoint was taken in the middle of an epoch, and data.init_args.workers_count (%d) lets "
                "petastorm hand over row groups as they come: the rest of this epoch is not the rest of that one. "
                "Later epochs are whole.",
                self.reading.num_threads,
            )
            return
        now = self.state_dict()
        tell_of_changes(state, now)

    def __iter__(self) -> Iterator[Batch]:
        self.close()
        position = self._start if self._start.epoch == self._epoch else Position(self._epoch, 0)
        self._open = self._batches(position)
        return self._open

    def forget_counts(self) -> None:
        """Count from 0 again."""
        self.num_seen = self.num_left_out = 0

    def close(self) -> None:
        """End the threads of a reader that was not read to its end."""
        if self._open is not None:
            self._open.close()  # type: ignore[attr-defined]  # it is a generator
            self._open = None

    def _batches(self, position: Position) -> Iterator[Batch]:
        """Give an epoch from a batch on; those before are read, and thrown away."""
        given, last = 0, self.reading.assemble([], [])
        reader, rows = self.reading.open(position.epoch)
        try:
            for batch in self._read(reader, rows, position.epoch):
                given, last = given + 1, batch
                if given > len(self):
                    raise DataError(
                        f"{self.reading.snapshot.place}: there are more rows than when the table was opened. Start "
                        "again when nobody writes to it."
                    )
                if given > position.batches:
                    yield batch
        finally:
            reader.stop()
            reader.join()
            self._count(rows)
        for _ in range(max(given, position.batches), len(self)):
            yield last[0][:1], last[1][:1], torch.tensor([STANDS_IN])

    def _read(self, reader: Any, rows: RowsToTensors, epoch: int) -> Iterator[Batch]:
        seed = 0 if self.reading.seed is None else stable_seed(self.reading.seed, epoch, self.reading.rank)
        random = torch.Generator().manual_seed(seed)
        whole = _Whole(reader, rows, self._num_groups, place=self.reading.snapshot.place)
        found = iter(BatchedDataLoader(whole, batch_size=self.batch_size, shuffling_queue_capacity=self.capacity))
        while True:
            try:
                with _as_torchs_own(random):
                    batch = next(found, None)
            except (OSError, RuntimeError, pa.ArrowException) as error:
                raise DataError(f"{self.reading.snapshot.place}: petastorm cannot read on ({error}).") from error
            if rows.errors:
                raise rows.errors[0]
            if batch is None:
                return
            yield self._completed(*(batch[name] for name in FIELDS))

    def _completed(self, inputs: Tensor, labels: Tensor, weights: Tensor) -> Batch:
        columns = self.reading.index.columns
        if columns.target == "value":
            labels = labels.unsqueeze(1)
        if columns.weight is None and bool((weights == 1).any()):  # without those that stand for no row
            return inputs[weights == 1], labels[weights == 1]
        return inputs, labels, weights

    def _count(self, rows: RowsToTensors) -> None:
        self.num_seen += sum(seen for seen, _ in rows.counts)
        self.num_left_out += sum(left_out for _, left_out in rows.counts)


class _Whole:
    """A reader that ends only when all of its row groups have come.

    petastorm 0.13.1 asks first whether all that was given to its threads is done and then whether all was given; where
    that happens in between, as it does with few row groups or on a busy machine, it ends too early, and loses the rest.

    Args:
        reader: petastorm's.
        rows: Knows of errors.
        num_groups: Row groups of this rank.
        place: What people know the table by.
    """

    batched_output = True
    patience_s = 10.0
    """Seconds for which a reader may say that it has ended while row groups are missing: its threads need less."""

    def __init__(self, reader: Any, rows: RowsToTensors, num_groups: int, *, place: str) -> None:
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
            now = time.monotonic()
            deadline = now + self.patience_s if deadline is None else deadline
            if now > deadline:
                raise self._short()
            time.sleep(0.001)  # the threads that have the rest need the processor

    def _short(self) -> DataError:
        num = f"{self._missing} row groups" if self._missing > 1 else "a row group"
        return DataError(
            f"{self._place}: petastorm has ended without {num} that it had to read. Start again when nobody writes to "
            "the table; or set data.class_path to lightkit.data.Table, which reads the same files."
        )


@contextmanager
def _as_torchs_own(random: torch.Generator) -> Iterator[None]:
    """Let petastorm, which shuffles with torch's own generator, draw from another one, and leave the model's alone."""
    before = torch.get_rng_state()
    torch.set_rng_state(random.get_state())
    try:
        yield
    finally:
        random.set_state(torch.get_rng_state())
        torch.set_rng_state(before)
