"""Images of samples in an order that is told as it comes up, loaded by other processes where there are some."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lightkit.data.samples import Batch, ImageSamples
from lightkit.data.sampling import SampleKey
from lightkit.data.workers import Ahead, ahead_that_fits, worker_options
from lightkit.images.reading import UnreadableImageError

__all__ = ["BatchesAhead", "ImagesAhead", "Keys", "Loaded"]

Keys = Sequence[SampleKey | int]
_Key = TypeVar("_Key")
_Made = TypeVar("_Made")


class Loaded(NamedTuple):
    """Images that were loaded: those that could be, and why the others could not."""

    indices: list[int]
    images: Tensor
    unreadable: dict[int, str]


class _Ahead(Generic[_Key, _Made]):
    """Batches that are planned, made ahead of time where there are processes for it, and given one by one.

    Args:
        samples: The images.
        ahead: Processes that load, and how far.
        ranks: Processes of this machine that do the same.
    """

    def __init__(self, samples: ImageSamples, ahead: Ahead, ranks: int) -> None:
        self._samples, self._ahead, self._ranks = samples, ahead, ranks
        self.end()

    def end(self) -> None:
        """Forget what was to come, and end the processes that load it."""
        self._batches: Iterator[_Made] = iter(())
        self._planned: list[list[_Key]] = []

    def _begin(self, dataset: Any, planned: list[list[_Key]]) -> None:
        """Let ``dataset`` make these batches, in place of what was planned before."""
        self._planned = planned
        self._batches = _loading(dataset, planned, self._samples, self._ahead, self._ranks)

    def _next(self) -> _Made:
        """Give the next batch that was planned."""
        self._planned.pop(0)
        batch = next(self._batches, None)
        assert batch is not None  # a StopIteration would look like the end of an epoch
        if not self._planned:
            self.end()
        return batch

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_batches": iter(()), "_planned": []}


class ImagesAhead(_Ahead[int, Loaded], Dataset[Loaded]):
    """Loads batches of images, ahead of time where there are processes for it."""

    def next_of(self, missing: Sequence[int], plan: Callable[[], list[list[int]]]) -> Loaded:
        """Give the next batch that was planned; some of ``missing`` is in it or in a later one.

        Args:
            missing: Of a batch that is asked for now.
            plan: Gives batches, the first of which has some of ``missing``; asked where none that was planned has.
        """
        wanted = set(missing)
        if all(wanted.isdisjoint(batch) for batch in self._planned):  # one was loaded by itself: the first has none
            self._begin(self, plan())
        return self._next()

    def alone(self, index: int) -> Loaded:
        """Load one in this process; what was planned goes on as it was."""
        return self.__getitems__([index])

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


class BatchesAhead(_Ahead[SampleKey | int, Batch]):
    """Loads a loader's own batches, ahead of time where there are processes for it."""

    def of(self, keys: Keys, coming: Callable[[], Sequence[Keys]]) -> Batch:
        """Give a batch.

        Args:
            keys: Of its samples.
            coming: Gives those of it and of all that follow; asked where another was planned.
        """
        if not self._planned or self._planned[0] != [*keys]:
            self._begin(self._samples, [[*batch] for batch in coming()])
        return self._next()


def _loading(
    dataset: Any, batches: Sequence[list[Any]], samples: ImageSamples, asked: Ahead, ranks: int
) -> Iterator[Any]:
    """Give what ``dataset`` makes of each of these batches, by as many processes as are asked for and fit."""
    ahead, batches = asked._replace(num_workers=min(asked.num_workers, len(batches))), [*batches]
    if len(batches) == 1 or not ahead.num_workers:
        return map(dataset.__getitems__, batches)
    size = max(map(len, batches)) * samples.sample_bytes
    ahead = ahead_that_fits(ahead, batch_bytes=size, ranks=ranks)
    of_its_own = torch.Generator().manual_seed(samples.seed)
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_sampler=batches, collate_fn=_as_it_is, generator=of_its_own, **worker_options(ahead, keep=False)
    )
    return iter(loader)


def _as_it_is(loaded: Any) -> Any:
    return loaded
