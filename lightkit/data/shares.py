"""What each of several processes evaluates: every sample once among them, in equally many batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized

from torch.utils.data import BatchSampler, DistributedSampler, Sampler

__all__ = ["EvenBatches", "Share"]


class Share(DistributedSampler[int]):
    """Yields each rank's samples, in the dataset's order: every sample is on one rank only.

    Where a rank has fewer samples than there are batches, it gets some of the others' as well, because every rank needs
    a sample in every batch. That is so where there are fewer samples than ranks, and at a batch size of 1.

    Args:
        dataset: Anything with a length.
        batch_size: Most samples of one batch on one rank.
        num_replicas: Ranks that evaluate together.
        rank: Number of this one, from 0.
    """

    def __init__(self, dataset: Sized, *, batch_size: int, num_replicas: int, rank: int) -> None:
        super().__init__(dataset, num_replicas=num_replicas, rank=rank, shuffle=False)  # type: ignore[arg-type]
        self.num_batches = -(-self.num_samples // batch_size)  # of the largest share, and therefore of each

    def __iter__(self) -> Iterator[int]:
        num = len(self.dataset)  # type: ignore[arg-type]
        return ((self.rank + turn * self.num_replicas) % num for turn in range(len(self)))

    def __len__(self) -> int:
        own = len(range(self.rank, len(self.dataset), self.num_replicas))  # type: ignore[arg-type]
        return max(own, self.num_batches)


class EvenBatches(BatchSampler):
    """Cuts a `Share` into as many batches as the other ranks have, so that none waits for another's collectives.

    The batches of a rank differ by one sample at most. What Lightning puts in place of a share, as ``overfit_batches``
    does, is cut as a `BatchSampler` cuts it.
    """

    def __init__(self, sampler: Sampler[int] | Iterable[int], batch_size: int, drop_last: bool = False) -> None:
        super().__init__(sampler, batch_size, drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        if not isinstance(self.sampler, Share):
            yield from super().__iter__()
            return
        samples, num_batches = iter(self.sampler), self.sampler.num_batches
        for batch in range(num_batches):
            size = len(range(batch, len(self.sampler), num_batches))
            yield [next(samples) for _ in range(size)]

    def __len__(self) -> int:
        return self.sampler.num_batches if isinstance(self.sampler, Share) else super().__len__()
