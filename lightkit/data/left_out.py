"""Samples that were left out of the batches of an epoch, counted; too many of them end a training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from pytorch_lightning import Trainer
from torch.utils.data import DataLoader

from lightkit.data.feature_samples import FeatureSamples
from lightkit.data.samples import num_read
from lightkit.data.sampling import ResumableSampler
from lightkit.data.shares import EvenBatches, Share
from lightkit.errors import DataError

__all__ = ["Counted", "CountedBatches", "CountingLoader", "refuse_left_out"]


class Counted(Protocol):
    """A loader that counts what it gives."""

    num_seen: int
    num_left_out: int

    def forget_counts(self) -> None:
        """Count from 0 again."""


class CountingLoader(DataLoader[Any]):
    """A loader that counts where its dataset, with ``defects``, leaves samples out of its batches, see `make_batch`."""

    num_seen = 0
    """Samples of all batches that were given since `forget_counts`, those that were left out counted."""
    num_left_out = 0
    """Those of them that could not be read."""

    def __iter__(self) -> Any:
        batches, sampler = super().__iter__(), self.sampler
        if isinstance(self.dataset, FeatureSamples):
            self.dataset.begin(self.batch_sampler)  # type: ignore[arg-type]  # a loader of single samples has none
        if not hasattr(self.dataset, "defects"):
            return batches
        first = sampler.first_batch if isinstance(sampler, ResumableSampler) else 0
        return CountedBatches(batches, self.count, first=first)

    def forget_counts(self) -> None:
        """Count from 0 again."""
        self.num_seen = self.num_left_out = 0

    def count(self, number: int, batch: Any) -> None:
        """Count the samples of a batch that was given."""
        size = self._size(number)
        self.num_seen += size
        self.num_left_out += size - num_read(batch)

    def _size(self, number: int) -> int:
        """Samples that a batch was to have."""
        batches: Any = self.batch_sampler
        num: int = len(batches.sampler)
        if isinstance(batches, EvenBatches) and isinstance(batches.sampler, Share):
            return len(range(number, num, len(batches)))
        return min(int(batches.batch_size), num - number * int(batches.batch_size))


def refuse_left_out(loaders: Sequence[Counted], *, what: str, max_fraction: float, trainer: Trainer | None) -> None:
    """Refuse to go on after an epoch that lacked too much, all ranks together, and count from 0 again.

    Args:
        loaders: Have counted; equally many on each rank.
        what: Is counted, such as images.
        max_fraction: Share of all that may be lacking; of none of the loaders may everything be.
        trainer: Knows the ranks.

    Raises:
        DataError: If more is.
    """
    counts = torch.tensor([[loader.num_seen, loader.num_left_out] for loader in loaders], dtype=torch.float64)
    for loader in loaders:
        loader.forget_counts()
    if trainer is not None and trainer.world_size > 1:
        counts = trainer.strategy.reduce(counts.to(trainer.strategy.root_device), reduce_op="sum")
    by_loader = [(int(seen), int(left_out)) for seen, left_out in counts.tolist()]
    seen, left_out = (sum(column) for column in zip(*by_loader, strict=True))
    of_these = f"of the {seen} {what} of an epoch could not be read"
    if left_out > max_fraction * seen:
        told = f"{left_out} {of_these}, more than data.init_args.max_bad_fraction ({max_fraction:g}) allows."
    elif any(lacking and lacking == num for num, lacking in by_loader):
        told = f"{left_out} {of_these}, among them all of a split."
    else:
        return
    raise DataError(f"{told} Repair or replace them; bad_images.csv in the run folder lists them.")


class CountedBatches:
    """The batches of an epoch on their way, counted.

    Args:
        batches: Of the epoch.
        count: Takes the number of each batch, and the batch.
        first: Number of the first of them.
    """

    def __init__(self, batches: Iterator[Any], count: Callable[[int, Any], None], *, first: int) -> None:
        self._batches, self._count, self._number = batches, count, first

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = next(self._batches)
        self._count(self._number, batch)
        self._number += 1
        return batch
