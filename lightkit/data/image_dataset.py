"""The dataset of images: decodes and transforms the samples of a batch, and stacks them as uint8."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightkit.data.bad_samples import Defects, read_samples
from lightkit.data.image_sources import PixelSource
from lightkit.data.sampler import SampleKey, epoch_order
from lightkit.data.transforms import View

Batch = tuple[Tensor, ...]
"""Images and labels; tables may have weights after them."""


class ImageSamples(Dataset[tuple[Tensor, int]]):
    """The images of a split as a model sees them, read in whole batches.

    Args:
        source: Images and labels.
        view: Transform of an image.
        seed: Of the epoch's order and of the view's randomness, which is from (seed, epoch, index) alone.
        defects: Notes samples that cannot be read; see `lightkit.data.bad_samples` for what stands in their place. None
            where one is an error.
    """

    def __init__(self, source: PixelSource, view: View, *, seed: int, defects: Defects | None) -> None:
        self.source, self.view, self.seed, self.defects = source, view, seed, defects

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, key: SampleKey | int) -> tuple[Tensor, int]:
        """Read one sample.

        Raises:
            UnreadableImageError: If it cannot be read.
        """
        key = key if isinstance(key, SampleKey) else SampleKey(key, epoch=0)
        return self.read(key), self.source.label(key.index)

    def __getitems__(self, keys: Sequence[SampleKey | int]) -> Batch:
        """Read a batch; torch's loader calls this method where a dataset has it.

        Returns:
            Images uint8 ``(batch, 3, height, width)``, with the channels last in memory, and labels ``(batch,)``, int64
            for whole numbers and float32 otherwise.

        Raises:
            UnreadableImageError: If a sample cannot be read and ``defects`` is None, or no sample can be read.
        """
        images, num_read = torch.empty(0), 0

        def read(key: SampleKey) -> None:
            nonlocal images, num_read
            image = self.read(key)
            if not num_read:  # channels last in memory
                images = torch.empty(len(keys), *image.movedim(0, -1).shape, dtype=image.dtype).movedim(-1, 1)
            images[num_read] = image  # at once, while it is in the processor's cache
            num_read += 1

        found = read_samples(
            [key if isinstance(key, SampleKey) else SampleKey(key, epoch=0) for key in keys],
            read,
            name=lambda key: self.source.name(key.index),
            defects=self.defects,
            replacements=self._iter_next if self.view.for_training else None,
        )
        return images[:num_read], stack_labels([self.source.label(key.index) for key, _ in found])

    def read(self, key: SampleKey) -> Tensor:
        """Read and transform one image, uint8 ``(3, height, width)``.

        Raises:
            UnreadableImageError: If it cannot be read.
        """
        return self.view(self.source.pixels(key.index), self.seed, key)

    def _iter_next(self, key: SampleKey) -> Iterator[SampleKey]:
        """Iterate over the samples after one in its epoch's order, and from the start on to that one."""
        order = epoch_order(len(self), seed=self.seed, epoch=key.epoch)
        at = order.index(key.index)
        yield from (SampleKey(index, key.epoch) for index in order[at + 1 :] + order[:at])

    @property
    def sample_bytes(self) -> int:
        """Size of a sample in a batch."""
        height, width = self.view.size
        return 3 * height * width

    @staticmethod
    def collate(batch: Batch) -> Batch:
        """Return a batch as it is: for a loader's ``collate_fn``."""
        return batch


def stack_images(images: Sequence[Tensor]) -> Tensor:
    """Stack images whose channels are first in their shape and last in memory; they stay there."""
    return torch.stack([image.movedim(0, -1) for image in images]).movedim(-1, 1)


def stack_labels(labels: Sequence[float]) -> Tensor:
    """Stack labels ``(batch,)``: int64 if all are whole numbers, else float32."""
    is_whole = all(isinstance(label, int) for label in labels)
    return torch.tensor(labels, dtype=torch.int64 if is_whole else torch.float32)
