"""Images of samples in an order that is told as it comes up, loaded by other processes where there are some."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lightkit.data.samples import ImageSamples
from lightkit.data.sampling import SampleKey
from lightkit.data.workers import Ahead, ahead_that_fits, worker_options
from lightkit.images.reading import UnreadableImageError

__all__ = ["ImagesAhead", "Loaded"]


class Loaded(NamedTuple):
    """Images that were loaded: those that could be, and why the others could not."""

    indices: list[int]
    images: Tensor
    unreadable: dict[int, str]


class ImagesAhead(Dataset[Loaded]):
    """Loads batches of images, ahead of time where there are processes for it.

    Args:
        samples: The images.
        ahead: Processes that load, and how far.
        ranks: Processes of this machine that do the same.
    """

    def __init__(self, samples: ImageSamples, ahead: Ahead, ranks: int) -> None:
        self._samples, self._ahead, self._ranks = samples, ahead, ranks
        self._batches: Iterator[Loaded] = iter(())
        self._planned: list[list[int]] = []

    def next_of(self, missing: Sequence[int], plan: Callable[[], list[list[int]]]) -> Loaded:
        """Give the next batch, some of which is missing; ``plan`` tells all that will be, where it goes on elsewhere.

        Args:
            missing: Of a batch that is asked for now.
            plan: Gives batches, the first of which has some of ``missing``.
        """
        if not self._planned or set(missing).isdisjoint(self._planned[0]):
            self._planned = plan()
            self._batches = self._loading([*self._planned])
        self._planned.pop(0)
        loaded = next(self._batches, None)
        assert loaded is not None  # a StopIteration would look like the end of an epoch
        return loaded

    def __getitem__(self, index: int) -> Loaded:
        return self.__getitems__([index])

    def __getitems__(self, indices: list[int]) -> Loaded:
        """Load some; torch's loader asks for this one."""
        view, read, unreadable = self._samples.view, list[int](), dict[int, str]()
        images = view.empty(len(indices))
        for index in indices:
            try:
                pixels = self._samples.source.pixels(index)
                images[len(read)] = view(pixels, self._samples.seed, SampleKey(index, epoch=0))
            except UnreadableImageError as error:
                unreadable[index] = error.reason
                continue
            read.append(index)
        return Loaded(read, images[: len(read)], unreadable)

    def _loading(self, batches: Sequence[list[int]]) -> Iterator[Loaded]:
        ahead = self._ahead._replace(num_workers=min(self._ahead.num_workers, len(batches)))
        if len(batches) == 1 or not ahead.num_workers:
            return map(self.__getitems__, batches)
        size = max(map(len, batches)) * self._samples.sample_bytes
        ahead = ahead_that_fits(ahead, batch_bytes=size, ranks=self._ranks)
        of_its_own = torch.Generator().manual_seed(self._samples.seed)
        loader: DataLoader[Loaded] = DataLoader(
            self, batch_sampler=batches, collate_fn=_as_it_is, generator=of_its_own, **worker_options(ahead, keep=False)
        )
        return iter(loader)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_batches": iter(()), "_planned": []}


def _as_it_is(loaded: Any) -> Any:
    return loaded
