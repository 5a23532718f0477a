"""Rows of a table as batches: decoded, put together, and without those that cannot be used."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from lightkit.data.image_dataset import STANDS_IN, Batch, Sample, make_batch, num_read, stand_ins
from lightkit.data.image_sources import Encoded
from lightkit.data.sampler import SampleKey
from lightkit.data.skipped_samples import Defect, Defects
from lightkit.data.tables.blocks import BatchRows
from lightkit.data.tables.plan import BatchKey, RankPlan
from lightkit.data.tables.rows import Row
from lightkit.data.transforms import View
from lightkit.errors import DataError

__all__ = ["Assembling", "FeatureBatches", "ImageBatches", "TableBatches", "TableImages", "TableRows"]

Group = TypeVar("Group")
_NUM_TRIED = 4


class Assembling(Protocol):
    """Makes a batch of rows."""

    @property
    def row_bytes(self) -> int:
        """Size of a row in a batch."""

    def __call__(self, rows: Sequence[Row], keys: Sequence[SampleKey], /) -> Batch:
        """Give the batch; a blank row of weight 0 where there is none that can be used.

        Raises:
            DataError: If a row cannot be used, where none may be left out.
        """


class ImageBatches:
    """Decodes images.

    Args:
        view: What an image becomes.
        seed: Of the view's randomness.
        defects: Takes rows that cannot be used; None where that is an error.
        are_values: Labels are numbers to tell, not classes.
    """

    def __init__(self, view: View, *, seed: int, defects: Defects | None, are_values: bool = False) -> None:
        self.view, self.seed, self.defects, self.are_values = view, seed, defects, are_values

    @property
    def row_bytes(self) -> int:
        """Size of an image in a batch."""
        height, width = self.view.size
        return 3 * height * width

    def __call__(self, rows: Sequence[Row], keys: Sequence[SampleKey]) -> Batch:
        """Give images uint8 ``(batch, 3, height, width)``, labels int64 ``(batch,)`` or values float32 ``(batch, 1)``.

        A third element, weights float32 ``(batch,)``, is there where rows have some.
        """
        rows, keys = _usable(rows, keys, self.defects)
        if not rows:
            blank = torch.zeros(1, 3, *self.view.size, dtype=torch.uint8)
            return blank, _labels([0], are_values=self.are_values), torch.tensor([STANDS_IN])
        samples = [Sample(_encoded(row), _label(row), row.place, row.weight) for row in rows]
        images, labels, *weights = make_batch(samples, self.view, keys, seed=self.seed, defects=self.defects)
        return (images, _labels(labels.tolist(), are_values=self.are_values), *weights)


class FeatureBatches:
    """Stacks features.

    Args:
        shape: Of a row's features.
        defects: Takes rows that cannot be used; None where that is an error.
        are_values: Labels are numbers to tell, not classes.
    """

    def __init__(self, shape: tuple[int, ...], *, defects: Defects | None = None, are_values: bool = False) -> None:
        self.shape, self.defects, self.are_values = shape, defects, are_values

    @property
    def row_bytes(self) -> int:
        """Size of a row's features in a batch."""
        return 4 * int(np.prod(self.shape))

    def __call__(self, rows: Sequence[Row], keys: Sequence[SampleKey]) -> Batch:
        """Give features float32 ``(batch, *shape)``, labels int64 ``(batch,)`` or values float32 ``(batch, 1)``.

        A third element, weights float32 ``(batch,)``, is there where rows have some.
        """
        rows, _ = _usable(rows, keys, self.defects)
        if not rows:
            return torch.zeros(1, *self.shape), _labels([0], are_values=self.are_values), torch.tensor([STANDS_IN])
        features = torch.from_numpy(np.stack([np.asarray(row.features, dtype=np.float32) for row in rows]))
        labels = _labels([_label(row) for row in rows], are_values=self.are_values)
        if all(row.weight is None for row in rows):
            return features, labels
        weights = [1.0 if row.weight is None else row.weight for row in rows]
        return features, labels, torch.tensor(weights, dtype=torch.float32)


class TableBatches(Dataset[Batch], Generic[Group]):
    """A rank's batches, each made as a whole.

    Args:
        rows: Reads the rows of a batch.
        assemble: Makes a batch of them.
        buffer_rows: Rows that are kept to shuffle among, where a batch is asked for by its bare number.
    """

    def __init__(self, rows: BatchRows[Group, Row], assemble: Assembling, *, buffer_rows: int) -> None:
        self.rows, self.assemble, self.buffer_rows = rows, assemble, buffer_rows

    @property
    def plan(self) -> RankPlan:
        """How this rank's rows are cut."""
        return self.rows.plan

    @property
    def batch_bytes(self) -> int:
        """Size of a batch."""
        return self.plan.batch_size * self.assemble.row_bytes

    def __len__(self) -> int:
        return self.plan.num_batches

    def __getitem__(self, key: BatchKey | int) -> Batch:
        """Give a batch; a bare number is that of one in the first epoch, as Lightning's ``overfit_batches`` asks."""
        if not isinstance(key, BatchKey):
            if not 0 <= key < len(self):
                raise IndexError(key)
            key = BatchKey(key, epoch=0, num_lanes=1, buffer_rows=self.buffer_rows)
        rows, places = self.rows.rows(key), self.rows.places(key)
        batch = self.assemble(rows, [SampleKey(place, key.epoch) for place in places])
        return _stood_in(batch, self.rows, self.assemble, SampleKey(key.number, key.epoch))


class TableRows(Dataset[Any], Generic[Group]):
    """A split's rows by their numbers, in stored order; those that follow each other are read as a stream.

    Args:
        rows: Reads rows in stored order.
        assemble: Makes a batch of them.
    """

    def __init__(self, rows: BatchRows[Group, Row], assemble: Assembling) -> None:
        self.rows, self.assemble = rows, assemble

    @property
    def sample_bytes(self) -> int:
        """Size of a row in a batch."""
        return self.assemble.row_bytes

    def __len__(self) -> int:
        return self.rows.plan.num_rows

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Give one row, without its weight; a blank one where it cannot be decoded and may be left out."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        inputs, labels, *_ = self.assemble([self.rows.at(index)], [SampleKey(index, 0)])
        return inputs[0], labels[0]

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Give a batch; torch's loader asks for this one, where there is one."""
        rows = [self.rows.at(index) for index in indices]
        batch = self.assemble(rows, [SampleKey(index, 0) for index in indices])
        return _stood_in(batch, self.rows, self.assemble, SampleKey(indices[0], 0))

    @staticmethod
    def collate(batch: Batch) -> Batch:
        """Give a batch as it is: for a loader's ``collate_fn``."""
        return batch


class TableImages(Generic[Group]):
    """A split's images as they are, in RGB, with their labels; far from the last one it takes long to find one.

    Args:
        rows: Reads rows in stored order.
        labels: Of all rows.
    """

    def __init__(self, rows: BatchRows[Group, Row], labels: Sequence[int]) -> None:
        self._rows, self.labels = rows, labels

    def __len__(self) -> int:
        return self._rows.plan.num_rows

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        row = self._rows.at(index)
        return _encoded(row).whole(), int(_label(row))


def _stood_in(batch: Batch, rows: BatchRows[Group, Row], assemble: Assembling, key: SampleKey) -> Batch:
    """Give a batch as it is, or in place of a blank one a row that can be used, still of weight 0."""
    if num_read(batch):
        return batch
    others = copy.copy(rows)  # with nothing open, so that the batches after this one are read on
    for place in stand_ins(rows.plan.num_rows, key, seed=0)[:_NUM_TRIED]:
        other = assemble([others.at(place)], [key])
        if num_read(other):
            return other[0], other[1], torch.tensor([STANDS_IN])
    return batch


def _encoded(row: Row) -> Encoded:
    return Encoded(row.image or b"", name=row.place)


def _usable(
    rows: Sequence[Row], keys: Sequence[SampleKey], defects: Defects | None
) -> tuple[Sequence[Row], Sequence[SampleKey]]:
    """Leave out rows that could be used when the table was opened, and cannot be now."""
    if all(row.defect is None for row in rows):
        return rows, keys
    for row in rows:
        if row.defect is not None:
            if defects is None:
                raise DataError(f"{row.place}: {row.defect}. The table has changed since it was opened: start again.")
            defects.note(Defect(row.place, row.defect))
    kept = [number for number, row in enumerate(rows) if row.defect is None]
    return [rows[number] for number in kept], [keys[number] for number in kept]


def _label(row: Row) -> float:
    """Give 0 where the table has no label; a row that lacks it has a defect."""
    return 0 if row.label is None else row.label


def _labels(labels: Sequence[float], *, are_values: bool) -> Tensor:
    if are_values:
        return torch.tensor(labels, dtype=torch.float32).unsqueeze(1)
    return torch.tensor(labels, dtype=torch.int64)
