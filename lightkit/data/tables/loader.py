"""Rows of a table as batches, and the loaders over them: resumable in training, exact over several ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from pytorch_lightning import Trainer
from torch.utils.data import Dataset

from lightkit.data.bad_samples import Defects, read_samples
from lightkit.data.image_dataset import Batch, stack_images
from lightkit.data.image_sources import Encoded
from lightkit.data.loader import ResumableLoader, count_in_fractions, make_loader
from lightkit.data.sampler import ResumableSampler, SampleKey, position_of
from lightkit.data.splits import Split
from lightkit.data.tables.batch_plan import BatchKey, BatchRows
from lightkit.data.tables.index import Index, Row
from lightkit.data.transforms import View
from lightkit.images.image_file import UnreadableImageError


@dataclass(eq=False)
class BatchMaker:
    """Makes a batch of rows: decodes images, or stacks features.

    Args:
        view: Transform of an image; None for features.
        row_bytes: Size of a row in a batch.
        seed: Of the view's randomness.
        defects: Takes rows that cannot be used; None if that is an error.
        are_values: Labels are numbers to predict, not classes.
    """

    view: View | None
    row_bytes: int
    seed: int = 0
    defects: Defects | None = None
    are_values: bool = False

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
        self, rows: BatchRows, make_batch: BatchMaker, *, buffer_rows: int, source: TableImages | None = None
    ) -> None:
        self.rows, self.make_batch, self.buffer_rows, self.source = rows, make_batch, buffer_rows, source

    def __len__(self) -> int:
        return self.rows.plan.num_batches

    @property
    def sample_bytes(self) -> int:
        """Size of a batch."""
        return self.rows.plan.batch_size * self.make_batch.row_bytes

    def __getitem__(self, key: BatchKey | int) -> Batch:
        """Make a batch; a bare number is that of one in the first epoch, as Lightning's ``overfit_batches`` asks."""
        if not isinstance(key, BatchKey):
            key = BatchKey(key, epoch=0, num_lanes=1, buffer_rows=self.buffer_rows)
        return self.make_batch(self.rows.rows(key), [SampleKey(at, key.epoch) for at in self.rows.places(key)])


class TableRows(Dataset[Any]):
    """A split's rows by their numbers, in stored order; those that follow each other are read as a stream.

    Args:
        rows: Reads rows in stored order.
        make_batch: Makes a batch of them.
    """

    def __init__(self, rows: BatchRows, make_batch: BatchMaker) -> None:
        self.rows, self.make_batch, self.sample_bytes = rows, make_batch, make_batch.row_bytes

    def __len__(self) -> int:
        return self.rows.plan.num_rows

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
        index, alone = self._index, replace(self._index.columns, image=None, features=(), weight=None)
        if alone.label is None:
            return [0] * len(self)
        groups = index.rows(self._split)
        return [int(row.label or 0) for at, _ in groups for row in index.read(self._split, at, columns=alone)]


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


class BatchOrder(ResumableSampler):
    """Yields the batches of an epoch, from any batch on.

    Every rank has its own rows and equally many batches, so there is nothing for Lightning to divide. How a resumed
    epoch was cut is in the loader's state, so that its rest is cut alike, also for another number of workers.

    Args:
        batches: Of this rank.
        seed: Of the order; here only for the state of a checkpoint.
    """

    def __init__(self, batches: TableBatches, *, seed: int) -> None:
        self.rows, self.plan = batches.rows, batches.rows.plan
        super().__init__(
            batches, batch_size=self.plan.batch_size, num_replicas=self.plan.num_replicas, rank=self.plan.rank,
            seed=seed,
        )  # fmt: skip
        self.own_cut = (1, batches.buffer_rows)
        """Worker processes that load, or 1, and rows that are kept to shuffle among."""
        self.resumed_cut = self.own_cut

    @property
    def cut(self) -> tuple[int, int]:
        """Lanes and buffer of the current epoch."""
        return self.resumed_cut if self.first_batch else self.own_cut

    def indices_of(self, *, epoch: int, batch: int) -> list[int]:
        """Give the places in stored order of the rows of a batch of an evaluation."""
        return list(self.rows.places(BatchKey(batch, epoch, *self.own_cut)))

    def __iter__(self) -> Iterator[BatchKey]:  # type: ignore[override]
        return iter([BatchKey(number, self.epoch, *self.cut) for number in range(self.first_batch, len(self))])

    def __len__(self) -> int:
        """Batches of the whole epoch: Lightning goes on counting at the restored batch."""
        return self.plan.num_batches

    def state_dict(self) -> dict[str, int]:
        """Return what decides which rows a batch has."""
        num_lanes, buffer = self.cut
        own = {"num_samples": self.plan.num_rows, "num_lanes": num_lanes, "shuffle_buffer": buffer}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Cut the rest of the epoch as the checkpoint's; warn if it will not be what it would have been."""
        self.resumed_cut = (state["num_lanes"], state["shuffle_buffer"])
        super().load_state_dict({**state, **dict(zip(("num_lanes", "shuffle_buffer"), self.cut, strict=True))})


def table_loader(
    batches: TableBatches, *, seed: int, trainer: Trainer | None = None, **options: Any
) -> ResumableLoader:
    """Make the loader of a rank's batches; if they are shuffled, from the trainer's restored checkpoint on.

    Args:
        batches: The batches.
        seed: Of the order.
        trainer: Knows the position and the device.
        options: As for `lightkit.data.train_loader`, and ``start_method`` of the worker processes; None is the
            machine's.
    """
    order, for_training = BatchOrder(batches, seed=seed), batches.rows.is_shuffled
    if for_training:
        order.resume(**position_of(trainer)._asdict())
    elif trainer is not None and trainer.world_size > 1:
        count_in_fractions()
    loader: ResumableLoader = make_loader(batches, None, seed, trainer, kind=ResumableLoader, sampler=order, **options)
    if for_training:
        order.own_cut = order.resumed_cut = (max(1, loader.num_workers), batches.buffer_rows)
    return loader
