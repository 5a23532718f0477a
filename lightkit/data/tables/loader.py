"""Rows of a table as batches, and the loaders over them: resumable in training, exact over several ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from pytorch_lightning import Trainer
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from lightkit.data.bad_samples import Defects, read_samples
from lightkit.data.image_dataset import Batch, stack_images
from lightkit.data.image_sources import Encoded
from lightkit.data.loader import Ahead, Pinning, ahead_that_fits, count_in_fractions, local_ranks, pins, worker_options
from lightkit.data.sampler import Position, SampleKey, position_of, warn_of_changes
from lightkit.data.splits import Split
from lightkit.data.tables.batch_plan import BatchKey, BatchRows
from lightkit.data.tables.index import Index, Row
from lightkit.data.transforms import View
from lightkit.images.reading import UnreadableImageError

_NUM_TRIED = 4  # batches of which no row can be read, in training


class BatchMaker:
    """Makes a batch of rows: decodes images, or stacks features.

    Args:
        view: Transform of an image; None for features.
        row_bytes: Size of a row in a batch.
        seed: Of the view's randomness.
        defects: Takes rows that cannot be used; None if that is an error.
        are_values: Labels are numbers to predict, not classes.
    """

    def __init__(
        self, view: View | None, *, row_bytes: int, seed: int = 0, defects: Defects | None = None,
        are_values: bool = False,
    ) -> None:  # fmt: skip
        self.view, self.row_bytes, self.seed, self.defects, self.are_values = view, row_bytes, seed, defects, are_values

    def __call__(self, rows: Sequence[Row], keys: Sequence[SampleKey]) -> Batch:
        """Make a batch of at least one row: inputs, labels, and weights if rows have some.

        Returns:
            Images uint8 ``(batch, 3, height, width)`` or features float32 ``(batch, *shape)``; labels int64
            ``(batch,)`` or values float32 ``(batch, 1)``; weights float32 ``(batch,)``.

        Raises:
            UnreadableImageError: If no row can be used, or a row cannot and none may be left out.
        """

        def read(place: int) -> Any:
            row = rows[place]
            if row.defect is not None:
                message = f"{row.name}: {row.defect}. The table has changed since it was opened: start again."
                raise UnreadableImageError(message, reason=row.defect)
            if self.view is None:
                return row.features
            return self.view(Encoded(row.image or b"", name=row.name), self.seed, keys[place])

        def others(place: int) -> Sequence[int]:  # in training the next row of the batch is in a bad one's place
            return [*range(place + 1, len(rows)), *range(place)]

        for_training = self.view is not None and self.view.for_training
        found = read_samples(
            range(len(rows)), read, name=lambda place: rows[place].name, defects=self.defects,
            replacements=others if for_training else None,
        )  # fmt: skip
        samples, kept = [sample for _, sample in found], [rows[place] for place, _ in found]
        inputs = torch.from_numpy(np.stack(samples)) if self.view is None else stack_images(samples)
        labels = torch.tensor([row.label or 0 for row in kept])
        batch = inputs, labels.float().unsqueeze(1) if self.are_values else labels
        if all(row.weight is None for row in kept):
            return batch
        return *batch, torch.tensor([1.0 if row.weight is None else row.weight for row in kept], dtype=torch.float32)


class TableBatches(Dataset[Batch]):
    """A rank's batches, each made as a whole.

    Args:
        rows: Reads the rows of a batch.
        make_batch: Makes a batch of them.
        buffer_rows: Rows that are kept to shuffle among, for a batch that is asked for by its bare number.
        source: Names and images of the split's rows.
    """

    def __init__(
        self, rows: BatchRows[Row], make_batch: BatchMaker, *, buffer_rows: int, source: TableImages | None = None
    ) -> None:
        self.rows, self.make_batch, self.buffer_rows, self.source = rows, make_batch, buffer_rows, source

    def __len__(self) -> int:
        return self.rows.plan.num_batches

    def __getitem__(self, key: BatchKey | int) -> Batch:
        """Make a batch; a bare number is that of one in the first epoch, as Lightning's ``overfit_batches`` asks.

        In training, a batch of which no row can be read is replaced by the next one of its rank.
        """
        if not isinstance(key, BatchKey):
            if not 0 <= key < len(self):
                raise IndexError(key)
            key = BatchKey(key, epoch=0, num_lanes=1, buffer_rows=self.buffer_rows)
        reader = self.rows
        for ahead in range(_NUM_TRIED):
            other = key._replace(number=(key.number + ahead) % len(self))
            rows, places = reader.rows(other), reader.places(other)
            try:
                return self.make_batch(rows, [SampleKey(place, key.epoch) for place in places])
            except UnreadableImageError:
                if not self.rows.is_shuffled or ahead == _NUM_TRIED - 1:
                    raise
            reader = copy.copy(self.rows)  # with nothing open, so that the batches after this one are read on
        raise AssertionError


class TableRows(Dataset[Any]):
    """A split's rows by their numbers, in stored order; those that follow each other are read as a stream.

    Args:
        rows: Reads rows in stored order.
        make_batch: Makes a batch of them.
    """

    def __init__(self, rows: BatchRows[Row], make_batch: BatchMaker) -> None:
        self.rows, self.make_batch, self.sample_bytes = rows, make_batch, make_batch.row_bytes

    def __len__(self) -> int:
        return self.rows.plan.num_rows

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Read one row, without its weight."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        inputs, labels, *_ = self.__getitems__([index])
        return inputs[0], labels[0]

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Read a batch; torch's loader calls this method if there is one."""
        rows = [self.rows.at(index) for index in indices]
        return self.make_batch(rows, [SampleKey(index, 0) for index in indices])

    @staticmethod
    def collate(batch: Batch) -> Batch:
        """Return a batch as it is: for a loader's ``collate_fn``."""
        return batch


class TableImages:
    """A split's images as they are, in RGB, with their labels; one far from the last takes long to find.

    Args:
        index: Of the table.
        split: The split.
    """

    def __init__(self, index: Index, split: Split) -> None:
        self._index, self._split = index, split
        self._rows = BatchRows(index.rows(split), partial(index.read, split), batch_size=1)
        self._names = RowNames(index, split)

    def __len__(self) -> int:
        return self._rows.plan.num_rows

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        row = self._rows.at(index)
        return Encoded(row.image or b"", name=row.name).whole(), int(row.label or 0)

    def name(self, index: int) -> str:
        """Return the file and the number of a row."""
        return self._names[index]

    def pixels(self, index: int) -> Encoded:
        """Return an image, which is not decoded yet; that of a row without one cannot be read."""
        row = self._rows.at(index)
        return Encoded(row.image or b"", name=row.name)

    @property
    def labels(self) -> list[int]:
        """Classes of all rows, read from the label column alone."""
        if self._index.columns.label is None:
            return [0] * len(self)
        groups = self._index.rows(self._split)
        return [label for group, _ in groups for label in self._index.labels(group, self._split)]


class RowNames(Sequence[str]):
    """File and row number of each of a split's rows, formatted when they are asked for.

    Args:
        index: Of the table.
        split: The split.
    """

    def __init__(self, index: Index, split: Split) -> None:
        self._index, self._split = index, split
        self._groups = index.rows(split)
        self._stops = np.cumsum([0, *(num for _, num in self._groups)])
        self._last: tuple[int, list[str]] = (-1, [])

    def __len__(self) -> int:
        return int(self._stops[-1])

    def __getitem__(self, index: int) -> str:  # type: ignore[override]  # a slice of what may be very many is not needed
        if not 0 <= index < len(self):
            raise IndexError(index)
        at = int(np.searchsorted(self._stops, index, side="right")) - 1
        if self._last[0] != at:
            group = self._groups[at][0]
            self._last = at, self._index.groups[group].row_names(self._index.row_numbers(group, self._split))
        return self._last[1][index - int(self._stops[at])]


class BatchOrder(DistributedSampler[BatchKey]):
    """Yields the batches of an epoch, from any batch on.

    Every rank has its own rows and equally many batches, so there is nothing for Lightning to divide.

    Args:
        batches: Of this rank.
        num_lanes: Worker processes, or 1.
        buffer_rows: Rows that are kept to shuffle among.
        seed: Of the order; here only for the state of a checkpoint.
    """

    def __init__(self, batches: TableBatches, *, num_lanes: int, buffer_rows: int, seed: int) -> None:
        plan = batches.rows.plan
        super().__init__(batches, num_replicas=plan.num_replicas, rank=plan.rank, shuffle=False, seed=seed)
        self.plan, self.num_lanes, self.buffer_rows = plan, num_lanes, buffer_rows
        self._rows = batches.rows
        self.start = Position(epoch=0, batches=0)
        self.before_epoch: Callable[[], None] | None = None
        self.resumed_cut = (num_lanes, buffer_rows)
        """Lanes and buffer of the epoch that is resumed, which is cut as it was before."""

    def resume(self, *, epoch: int, batches: int) -> None:
        """Start epoch ``epoch`` after its first ``batches`` batches; other epochs are whole."""
        self.epoch, self.start = epoch, Position(epoch, batches)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch. Lightning calls this before each, also before the one that is being resumed."""
        if self.before_epoch is not None:
            self.before_epoch()
        self.epoch = epoch
        if epoch != self.start.epoch:
            self.start = Position(epoch, 0)

    @property
    def cut(self) -> tuple[int, int]:
        """Lanes and buffer of the current epoch."""
        return self.resumed_cut if self.start.batches else (self.num_lanes, self.buffer_rows)

    def indices_of(self, *, epoch: int, batch: int) -> list[int]:
        """Give the places in stored order of the rows of a batch of an evaluation."""
        return list(self._rows.places(BatchKey(batch, epoch, self.num_lanes, self.buffer_rows)))

    def __iter__(self) -> Iterator[BatchKey]:
        epoch, batches = self.start if self.start.epoch == self.epoch else Position(self.epoch, 0)
        lanes, buffer = self.cut if batches else (self.num_lanes, self.buffer_rows)
        return (BatchKey(number, epoch, lanes, buffer) for number in range(batches, len(self)))

    def __len__(self) -> int:
        """Batches of the whole epoch: Lightning goes on counting at the restored batch."""
        return self.plan.num_batches


class TableLoader(DataLoader[Any]):
    """A loader over a `BatchOrder`.

    Lightning asks a training loader for the two methods of its state before it believes that a training can go on in
    the middle of an epoch. The position itself is Lightning's own count, see `lightkit.data.sampler.position_of`; what
    is kept here is how the epoch was cut, so that its rest is cut alike, also for another number of workers.
    """

    order: BatchOrder
    """The order of its batches, also if Lightning has put another in its place."""

    def state_dict(self) -> dict[str, int]:
        """Return what decides which rows a batch has."""
        order = self.sampler
        if not isinstance(order, BatchOrder):  # Lightning's overfit_batches puts another in its place
            return {}
        lanes, buffer = order.cut
        return {
            "num_rows": order.plan.num_rows,
            "batch_size": order.plan.batch_size,
            "num_processes": order.plan.num_replicas,
            "seed": order.seed,
            "num_lanes": lanes,
            "shuffle_buffer": buffer,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Cut the rest of the epoch as the checkpoint's; warn if it will not be what it would have been."""
        order = self.sampler
        if not isinstance(order, BatchOrder) or "num_lanes" not in state:
            return
        order.resumed_cut = (state["num_lanes"], state["shuffle_buffer"])
        now = {name: value for name, value in self.state_dict().items() if name not in ("num_lanes", "shuffle_buffer")}
        warn_of_changes(state, now)


def table_loader(
    batches: TableBatches,
    *,
    seed: int,
    trainer: Trainer | None = None,
    num_workers: int = 0,
    prefetch_factor: int = 2,
    persistent_workers: bool = True,
    pin_memory: Pinning = "auto",
    start_method: str | None = None,
) -> TableLoader:
    """Make the loader of a rank's batches; if they are shuffled, from the trainer's restored checkpoint on.

    Args:
        batches: The batches.
        seed: Of the order.
        trainer: Knows the position and the device.
        num_workers: Processes that load; 0 loads in the training process.
        prefetch_factor: Batches that each of them prepares ahead.
        persistent_workers: Keep them from epoch to epoch.
        pin_memory: See `pins`.
        start_method: Of the processes; None is the machine's.
    """
    plan, for_training = batches.rows.plan, batches.rows.is_shuffled
    ahead = Ahead(min(num_workers, plan.num_batches), prefetch_factor)
    if ahead.num_workers:
        ranks = 1 if trainer is None else local_ranks(trainer)
        ahead = ahead_that_fits(ahead, batch_bytes=plan.batch_size * batches.make_batch.row_bytes, ranks=ranks)
    lanes = max(1, ahead.num_workers) if for_training else 1
    order = BatchOrder(batches, num_lanes=lanes, buffer_rows=batches.buffer_rows, seed=seed)
    if for_training:
        order.resume(**position_of(trainer)._asdict())
    elif trainer is not None and trainer.world_size > 1:
        count_in_fractions()
    loader = TableLoader(
        batches,
        batch_size=None,
        sampler=order,
        pin_memory=pins(pin_memory, trainer),
        generator=torch.Generator().manual_seed(seed),
        multiprocessing_context=start_method if ahead.num_workers else None,
        **worker_options(ahead, keep=persistent_workers),
    )
    loader.order = order
    return loader
