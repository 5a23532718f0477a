"""A split's features in place of its images: computed when they are first asked for, and kept in memory."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightkit.data.feature_rows import FeatureRows, Place, RowView
from lightkit.data.images_ahead import BatchesAhead, ImagesAhead, Keys, Loaded
from lightkit.data.samples import Batch, ImageSamples, Sample, make_batch, stand_ins
from lightkit.data.sampling import SampleKey

__all__ = ["ComputesFeatures", "FeatureSamples"]

log = logging.getLogger("lightkit.data")


class ComputesFeatures(Protocol):
    """What a model gives that has the same features of an image in each epoch."""

    def example(self, size: tuple[int, int], /) -> Tensor | None:
        """Give the features ``(1, ...)`` of one image of this height and width; None where there are none."""

    def key(self) -> bytes | None:
        """Give what is another where features would be others; None where they may change at any step."""

    def is_frozen(self) -> bool:
        """Tell, quickly, whether what `key` has last looked at is still not trained."""

    def of(self, images: Tensor, /) -> Tensor:
        """Give the features of normalised images."""


class FeatureSamples(Dataset[tuple[Tensor, int]]):
    """A split's features, given in whole batches as `ImageSamples` gives images.

    Args:
        samples: The images.
        computes: Computes features.
        table: Keeps them.
        images: Loads the images whose features are missing.
        batches: Loads batches of images, once features are no longer the same at each step.
        on_device: From uint8 images to normalised ones where the model is.
        batch_size: Images whose features are computed at a time.
        num_batches: Gives the number of batches after which an epoch ends, counted from its first, also where a
            training goes on later.
    """

    def __init__(
        self,
        samples: ImageSamples,
        computes: ComputesFeatures,
        table: FeatureRows,
        *,
        images: ImagesAhead,
        batches: BatchesAhead,
        on_device: Callable[[Tensor], Tensor],
        batch_size: int,
        num_batches: Callable[[], float],
    ) -> None:
        self.samples, self.source, self.defects = samples, samples.source, samples.defects
        self._computes, self._table, self._images = computes, table, images
        self._batches, self._num_batches = batches, num_batches
        self._on_device, self._batch_size = on_device, batch_size
        self._coming: Iterable[Keys] = ()
        self._is_new_epoch, self._is_off = True, False
        self._labels = _column([samples.source.label(index) for index in range(len(samples))])

    def begin(self, batches: Iterable[Keys]) -> None:
        """Take the keys of an epoch's batches; a loader says so before it gives the first."""
        self._coming, self._is_new_epoch = batches, True
        self._end()

    def forget(self) -> None:
        """Give the memory of all features back, and end the processes that load."""
        self._table.clear()
        self._end()

    def _end(self) -> None:
        self._images.end()
        self._batches.end()

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, key: SampleKey | int) -> tuple[Tensor, int]:
        """Give one sample.

        Raises:
            UnreadableImageError: If its image cannot be read.
        """
        index = _index(key)
        with torch.inference_mode(mode=False):
            self._have_alone([index])
            return self._table.row(index), self.source.label(index)

    def __getitems__(self, keys: Keys) -> Batch:
        """Give a batch: features, labels, and weights where `make_batch` gives them."""
        self._check_key()
        if self._is_off:
            return self._batches.of(keys, lambda: self._from(keys))
        indices = [_index(key) for key in keys]
        with torch.inference_mode(mode=False):  # training could not take what validation has made
            self._have(indices)
            if self._table.unreadable.isdisjoint(indices):
                return self._table.rows(indices), self._labels[indices]
            return self._without_unreadable(keys)

    @staticmethod
    def collate(batch: Batch) -> Batch:
        """Give a batch as it is."""
        return batch

    def _check_key(self) -> None:
        """See whether the backbone is still what it was; whether it is trained by now, before each batch."""
        if self._is_new_epoch:
            key, self._is_new_epoch = self._computes.key(), False
            if key is not None:
                self._is_off = False
                self._table.keep_for(key)
                return
        elif self._is_off or self._computes.is_frozen():
            return
        if not self._is_off and self.samples.view.for_training:
            log.warning(
                "data: not all of the backbone is frozen any more; its features are computed at each step. With "
                "model.init_args.features: each_step, decoded images could be kept instead."
            )
        self._is_off = True
        self._end()

    def _have(self, indices: Sequence[int]) -> None:
        """Compute what is missing of these, and what else comes with it."""
        while missing := self._table.missing(indices):
            self._keep(self._images.next_of(missing, lambda: self._plan(indices)))

    def _have_alone(self, indices: Sequence[int]) -> None:
        """Compute what is missing of these, which nobody has planned."""
        for index in self._table.missing(indices):
            self._keep(self._images.alone(index))

    def _plan(self, indices: Sequence[int]) -> list[list[int]]:
        """Give what is missing, in batches, in the order in which it will be asked for."""
        asked = dict.fromkeys(_index(key) for batch in self._from(indices) for key in batch)
        missing = self._table.missing(asked)
        return [missing[at : at + self._batch_size] for at in range(0, len(missing), self._batch_size)]

    def _from(self, keys: Keys) -> list[Keys]:
        """Give a batch, and those of the epoch that will be asked for after it."""
        sampler = getattr(self._coming, "sampler", None)
        num, indices = self._num_batches() - getattr(sampler, "first_batch", 0), [_index(key) for key in keys]
        coming = list(self._coming if num == math.inf else islice(self._coming, max(0, int(num))))
        start = next(
            (number for number, batch in enumerate(coming) if [_index(key) for key in batch] == indices), len(coming)
        )
        return [keys, *coming[start + 1 :]]

    def _keep(self, loaded: Loaded) -> None:
        for index, reason in loaded.unreadable.items():
            self._table.put_unreadable(index, reason)
        if loaded.indices:
            # Always as many at a time, so that the same kernels compute them: a training that goes on later, and has
            # others left to compute, gets the same numbers to the last bit.
            num, lacking = len(loaded.indices), self._batch_size - len(loaded.indices)
            images = torch.cat([loaded.images, loaded.images[-1:].expand(lacking, -1, -1, -1)])
            self._table.put(loaded.indices, self._computes.of(self._on_device(images))[:num])

    def _without_unreadable(self, keys: Keys) -> Batch:
        whole = [key if isinstance(key, SampleKey) else SampleKey(key, epoch=0) for key in keys]
        others = (
            self._sample(index) for key in whole[:1] for index in stand_ins(len(self), key, seed=self.samples.seed)
        )  # lazily, as in `ImageSamples`
        samples = [self._sample(key.index) for key in whole]
        view = RowView(self._table, self._have_alone, for_training=self.samples.view.for_training)
        return make_batch(samples, view, whole, seed=self.samples.seed, defects=self.defects, others=others)

    def _sample(self, index: int) -> Sample:
        place: Any = Place(index)
        return Sample(place, self.source.label(index), self.source.name(index))


def _index(key: SampleKey | int) -> int:
    return key.index if isinstance(key, SampleKey) else key


def _column(labels: Sequence[float]) -> Tensor:
    return torch.tensor(labels, dtype=torch.int64 if all(isinstance(one, int) for one in labels) else torch.float32)
