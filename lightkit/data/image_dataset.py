"""Samples put together into batches of uint8 images, a batch at a time; what cannot be read is left out."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightkit.data.image_sources import Pixels, PixelSource, Unreadable
from lightkit.data.sampler import SampleKey, stable_seed
from lightkit.data.skipped_samples import Defect, Defects
from lightkit.data.transforms import View
from lightkit.images.reading import UnreadableImageError

__all__ = ["STANDS_IN", "Batch", "ImageSamples", "Sample", "make_batch", "num_read", "stand_ins"]

STANDS_IN = -0.0
"""Weight of a sample that is there in place of another; its sign tells it from a weight of 0 that the data say."""
_NUM_TRIED = 8
_NUM_WITHOUT_WEIGHTS = 2

Batch = tuple[Tensor, ...]
"""Images, labels, and weights where they differ."""


class Sample(NamedTuple):
    """One image with what belongs to it.

    Args:
        pixels: The image.
        label: Its class, or a number.
        name: What people know it by.
        weight: Of its loss and in the metrics; None for 1.
    """

    pixels: Pixels
    label: float
    name: str
    weight: float | None = None


def make_batch(
    samples: Sequence[Sample],
    view: View,
    keys: Sequence[SampleKey],
    *,
    seed: int,
    defects: Defects | None,
    others: Iterable[Sample] = (),
) -> Batch:
    """Decode samples and put them together, without those that cannot be read.

    Where none of them can, another one stands in with a weight of 0, as no model takes an empty batch; in training also
    where a single one of several can, as BatchNorm may need two.

    Args:
        samples: At least one.
        view: What an image becomes.
        keys: One for each sample; decide the view's randomness.
        seed: Of that randomness.
        defects: Takes what cannot be read; None where that is an error.
        others: Samples that may stand in; a few are tried.

    Returns:
        Images uint8 ``(batch, 3, height, width)``, with the channels last in memory; labels ``(batch,)``, int64 for
        whole numbers and float32 otherwise; weights float32 ``(batch,)``, only where a sample has one or stands in.
        Where nothing can be read, nor stand in, one blank image of weight 0.

    Raises:
        UnreadableImageError: If a sample cannot be read, and ``defects`` is None.
    """
    images = view.empty(len(samples))
    read: list[Sample] = []
    for sample, key in zip(samples, keys, strict=True):
        try:
            images[len(read)] = view(sample.pixels, seed, key)
        except UnreadableImageError as error:
            if defects is None:
                raise
            defects.note(Defect(sample.name, error.reason))
            continue
        read.append(sample)
    least = min(2, len(samples)) if view.for_training else 1
    if len(read) < least:
        for sample in islice(others, _NUM_TRIED):
            with suppress(UnreadableImageError):  # its own batch tells of it
                images[len(read)] = view(sample.pixels, seed, keys[0])
                read.append(sample._replace(weight=STANDS_IN))
            if len(read) == least:
                break
    if not read:
        return images[:1].zero_(), _numbers([samples[0].label]).zero_(), torch.tensor([STANDS_IN])
    labels = _numbers([sample.label for sample in read])
    if all(sample.weight is None for sample in (*samples, *read)):
        return images[: len(read)], labels
    weights = [1.0 if sample.weight is None else sample.weight for sample in read]
    return images[: len(read)], labels, torch.tensor(weights, dtype=torch.float32)


def num_read(batch: Batch) -> int:
    """Count a batch's samples, without those that stand in for others."""
    if len(batch) == _NUM_WITHOUT_WEIGHTS:
        return len(batch[1])
    weights = batch[2]
    return len(weights) - int(((weights == 0) & weights.signbit()).sum())


def stand_ins(num: int, key: SampleKey, *, seed: int) -> list[int]:
    """Give the indices, below ``num``, of samples that may stand in for one; the same ones each time."""
    generator = random.Random(stable_seed(seed, key.epoch, key.index))  # noqa: S311 (no secret)
    return [generator.randrange(num) for _ in range(_NUM_TRIED)]


class ImageSamples(Dataset[tuple[Tensor, int]]):
    """A split's images as a model sees them, given in whole batches.

    Args:
        source: Images and labels.
        view: What an image becomes.
        seed: Of the view's randomness, which is from (seed, epoch, index) alone.
        defects: Takes what cannot be read, which is left out of its batch; None where that is an error, as where rows
            must stand beside the names of their files.
    """

    def __init__(self, source: PixelSource, view: View, *, seed: int, defects: Defects | None) -> None:
        self.source = source
        self.view = view
        self.seed = seed
        self.defects = defects

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, key: SampleKey | int) -> tuple[Tensor, int]:
        """Give one sample.

        Raises:
            UnreadableImageError: If it cannot be read.
        """
        key = _key(key)
        return self.view(self.source.pixels(key.index), self.seed, key), self.source.label(key.index)

    def __getitems__(self, keys: Sequence[SampleKey | int]) -> Batch:
        """Give a batch, see `make_batch`; torch's loader asks for this one, where there is one."""
        whole = [_key(key) for key in keys]
        samples = [self._sample(key.index) for key in whole]
        others = (
            self._sample(index) for key in whole[:1] for index in stand_ins(len(self), key, seed=self.seed)
        )  # lazily
        return make_batch(samples, self.view, whole, seed=self.seed, defects=self.defects, others=others)

    @property
    def sample_bytes(self) -> int:
        """Size of a sample in a batch."""
        height, width = self.view.size
        return 3 * height * width

    @staticmethod
    def collate(batch: Batch) -> Batch:
        """Give a batch as it is: for a loader's ``collate_fn``."""
        return batch

    def _sample(self, index: int) -> Sample:
        name = self.source.name(index)
        try:
            pixels: Pixels = self.source.pixels(index)
        except UnreadableImageError as error:
            pixels = Unreadable(name, error.reason)
        return Sample(pixels, self.source.label(index), name)


def _key(key: SampleKey | int) -> SampleKey:
    return key if isinstance(key, SampleKey) else SampleKey(key, epoch=0)


def _numbers(values: Sequence[float]) -> Tensor:
    is_whole = all(isinstance(value, int) for value in values)
    return torch.tensor(values, dtype=torch.int64 if is_whole else torch.float32)
