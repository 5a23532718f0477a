"""Samplers: the order of training samples and their randomness, from (seed, epoch, index) alone.

Nothing here draws from a global random state, so that a run that was killed in the middle of an
epoch can go on with exactly the samples, in exactly the form, that it would have seen.
"""

from __future__ import annotations

import hashlib
import logging
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pytorch_lightning import Trainer
from pytorch_lightning.loops.progress import _ProcessedTracker
from torch.utils.data import BatchSampler, DistributedSampler, Sampler

log = logging.getLogger("lightkit.data")

_POOL = 16
"""Batches whose samples are sorted by length together."""
_CHUNK = 1 << 16
"""Indices of an order that are Python's numbers at a time."""


class SampleKey(NamedTuple):
    """Index with epoch and position that a `ResumableSampler` yields.

    The epoch travels with the index, because a persistent worker process is never told which epoch
    it works for.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs on a pair
    epoch: int


class Position(NamedTuple):
    """A place within a training: ``batches`` batches of epoch ``epoch`` are done."""

    epoch: int
    batches: int


class ResumableSampler(DistributedSampler[SampleKey]):
    """Yields the samples of an epoch in an order that (seed, epoch) decides, from any batch on.

    Args:
        dataset: Anything with a length.
        batch_size: Samples of one batch on one process; the unit of the offset in `resume`.
        num_replicas: Processes that train together.
        rank: Number of this process, from 0.
        seed: Decides the order, together with the epoch.

    Attributes:
        lengths: Of the samples, such as the characters of texts: batches are of samples of like
            length then, see `group_by_length`. None for batches of any samples.
        has_keys: Whether it yields `SampleKey` rather than an index, for a dataset whose samples
            are the same in each epoch.
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        batch_size: int,
        num_replicas: int = 1,
        rank: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(dataset, num_replicas=num_replicas, rank=rank, shuffle=True, seed=seed)  # type: ignore[arg-type]
        self.batch_size = batch_size
        self.lengths: NDArray[np.int64] | None = None
        self.has_keys = True
        self.before_epoch: Callable[[], None] | None = None
        self._start = Position(epoch=0, batches=0)

    def resume(self, *, epoch: int, batches: int) -> None:
        """Start epoch ``epoch`` after its first ``batches`` batches; other epochs are whole."""
        self.epoch = epoch
        self._start = Position(epoch, batches)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch.

        Lightning says it before each, also before the one that is being resumed.
        """
        if self.before_epoch is not None:
            self.before_epoch()
        self.epoch = epoch
        if epoch != self._start.epoch:
            self._start = Position(epoch, 0)

    @property
    def first_batch(self) -> int:
        """Number of the batch that the epoch starts with."""
        return self._start.batches if self._start.epoch == self.epoch else 0

    def indices_of(self, *, epoch: int, batch: int) -> list[int]:
        """Return the indices of a batch's samples.

        What a callback tells of a batch after it was given.
        """
        order = self._order(epoch)[self.rank : self.total_size : self.num_replicas]
        return order[batch * self.batch_size : (batch + 1) * self.batch_size]

    def state_dict(self) -> dict[str, int]:
        """Return what decides the order of the samples and the size of a batch."""
        return {
            "num_samples": len(self.dataset),  # type: ignore[arg-type]
            "batch_size": self.batch_size,
            "num_processes": self.num_replicas,
            "seed": self.seed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Warn where the rest of a resumed epoch will not be what it would have been.

        Args:
            state: What decided it, from a checkpoint that was taken in the middle of an epoch.
        """
        changes = [
            f"{name} was {state[name]}, is {value}"
            for name, value in self.state_dict().items()
            if state.get(name, value) != value
        ]
        if changes:
            log.warning(
                "The checkpoint was taken in the middle of an epoch, and the training data has"
                " changed since (%s): the rest of this epoch is not the rest of that one. Later"
                " epochs are whole.",
                "; ".join(changes),
            )

    def __iter__(self) -> Iterator[SampleKey]:
        epoch = self.epoch
        done = self.first_batch * self.batch_size
        if not self.has_keys and self.lengths is None:
            return cast("Iterator[SampleKey]", self._iterate_indices(epoch, done))
        left = self._order(epoch)[self.rank : self.total_size : self.num_replicas][done:]
        if not self.has_keys:
            return iter(cast("list[SampleKey]", left))
        return iter([SampleKey(index, epoch) for index in left])

    def _iterate_indices(self, epoch: int, done: int) -> Iterator[int]:
        """Yield the indices of this process after some that are done.

        A table may have a hundred million rows, and an index takes 8 bytes in an array and 40 in a
        list.
        """
        num = len(self.dataset)  # type: ignore[arg-type]
        order = permute(num, seed=self.seed, epoch=epoch)
        if 0 < num != self.total_size:
            order = np.resize(order, self.total_size)  # repeated from the start
        own = order[self.rank : self.total_size : self.num_replicas][done:]
        for start in range(0, len(own), _CHUNK):
            yield from own[start : start + _CHUNK].tolist()

    def _order(self, epoch: int) -> list[int]:
        """All indices in the order of ``epoch``.

        Repeated from the start until the processes' shares are equal.
        """
        order = epoch_order(len(self.dataset), seed=self.seed, epoch=epoch)  # type: ignore[arg-type]
        if self.lengths is not None:
            size = self.batch_size * self.num_replicas
            order = group_by_length(
                order, self.lengths, size=size, seed=stable_seed(self.seed, epoch)
            )
        if self.total_size == len(order) or not order:
            return order
        return [order[place % len(order)] for place in range(self.total_size)]

    # `__len__` is inherited and always counts the whole epoch: Lightning takes the number of
    # batches from it, and goes on counting at the restored batch.


def epoch_order(num_samples: int, *, seed: int, epoch: int) -> list[int]:
    """Return all indices in the order of a training epoch, before it is divided among processes."""
    order: list[int] = permute(num_samples, seed=seed, epoch=epoch).tolist()
    return order


def permute(num_samples: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the order of `epoch_order` as an array."""
    generator = torch.Generator().manual_seed(stable_seed(seed, epoch))
    order: NDArray[np.int64] = torch.randperm(num_samples, generator=generator).numpy()
    return order


def group_by_length(
    order: Sequence[int], lengths: NDArray[np.int64], *, size: int, seed: int
) -> list[int]:
    """Return an order in which the samples of a batch of all processes are of like length.

    The batches are mixed.

    Samples are sorted within `_POOL` batches of the order; so each epoch has other batches. What is
    left over at the end of the order, less than a batch, stays there.

    Args:
        order: Of all samples.
        lengths: Of the samples.
        size: Samples of a batch of all processes together.
        seed: Decides the order of the batches.
    """
    whole = len(order) // size * size
    batches = []
    for start in range(0, whole, _POOL * size):
        pool = np.array(order[start : min(start + _POOL * size, whole)])
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        batches.extend(pool.reshape(-1, size).tolist())
    mixed = torch.randperm(len(batches), generator=torch.Generator().manual_seed(seed)).tolist()
    return [*(index for at in mixed for index in batches[at]), *order[whole:]]


def position_of(trainer: Trainer | None) -> Position:
    """Return the position of the trainer's next batch.

    Also before its loops have digested a restored checkpoint.

    Lightning (read in 2.6.6) asks for the training loader and begins to prefetch before it calls
    `set_epoch` and before the loops' `reset`, so the counters are still as the checkpoint left
    them. The rules of ``_FitLoop.reset`` and ``_TrainingEpochLoop.reset`` are therefore repeated
    here.
    """
    if trainer is None:
        return Position(0, 0)
    fit_loop = trainer.fit_loop
    epoch = cast(_ProcessedTracker, fit_loop.epoch_progress.current).processed
    if not fit_loop.epoch_loop.restarting:  # fresh, or the checkpoint's epoch was finished
        return Position(epoch, 0)
    batch = fit_loop.epoch_loop.batch_progress
    current = cast(_ProcessedTracker, batch.current)
    saved_on_batch_end = (
        current.ready == current.started == current.processed == current.completed + 1
    )
    # Lightning takes the epoch for finished, and begins the next
    if saved_on_batch_end and batch.is_last_batch:
        return Position(epoch + 1, 0)
    return Position(epoch, current.processed if saved_on_batch_end else current.completed)


def stable_seed(*parts: int) -> int:
    """Mix integers into a seed of 63 bits that is the same in every process, on every machine."""
    digest = hashlib.blake2b(":".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def global_seed() -> int:
    """The seed that ``seed_everything`` has set, or 0."""
    return int(os.environ.get("PL_GLOBAL_SEED", "0"))


@contextmanager
def sample_randomness(seed: int, key: SampleKey) -> Iterator[None]:
    """Make all randomness inside depend on (seed, epoch, index) alone.

    Leave the global states as they were.

    Covers torch on the CPU, numpy's global state and Python's `random`, so that any library's
    transforms can be used.
    """
    mixed = stable_seed(seed, key.epoch, key.index)
    torch_state = torch.get_rng_state()
    numpy_state = np.random.get_state()
    python_state = random.getstate()
    # not torch.manual_seed: that seeds the GPUs' generators too, which belong to the model
    torch.default_generator.manual_seed(mixed)
    np.random.seed(mixed % 2**32)
    random.seed(mixed)
    try:
        yield
    finally:
        torch.set_rng_state(torch_state)
        np.random.set_state(numpy_state)
        random.setstate(python_state)


class EvenDistributedSampler(DistributedSampler[int]):
    """Yields each rank's samples, in the dataset's order: every sample is on one rank only.

    Where a rank has fewer samples than there are batches, it gets some of the others' as well,
    because every rank needs a sample in every batch. That is so where there are fewer samples than
    ranks, and at a batch size of 1.

    Args:
        dataset: Anything with a length.
        batch_size: Most samples of one batch on one rank.
        num_replicas: Ranks that evaluate together.
        rank: Number of this one, from 0.
    """

    def __init__(self, dataset: Sized, *, batch_size: int, num_replicas: int, rank: int) -> None:
        super().__init__(dataset, num_replicas=num_replicas, rank=rank, shuffle=False)  # type: ignore[arg-type]
        # of the largest share, and therefore of each
        self.num_batches = -(-self.num_samples // batch_size)

    @property
    def num_repeated(self) -> int:
        """Samples that ranks have in addition, because others have them too."""
        smallest, num_larger = divmod(len(self.dataset), self.num_replicas)  # type: ignore[arg-type]
        return self.num_replicas - num_larger if self.num_batches > smallest else 0

    def __iter__(self) -> Iterator[int]:
        return map(self._index_of, range(len(self)))

    def _index_of(self, turn: int) -> int:
        return (self.rank + turn * self.num_replicas) % len(self.dataset)  # type: ignore[arg-type]

    def indices_of(self, *, epoch: int, batch: int) -> list[int]:  # the same in each epoch
        """Return the indices of the samples in a batch of `EvenBatchSampler`."""
        size, larger = divmod(len(self), self.num_batches)
        start = batch * size + min(batch, larger)
        return [self._index_of(turn) for turn in range(start, start + size + (batch < larger))]

    def __len__(self) -> int:
        own = len(range(self.rank, len(self.dataset), self.num_replicas))  # type: ignore[arg-type]
        return max(own, self.num_batches)


class EvenBatchSampler(BatchSampler):
    """Cut an `EvenDistributedSampler` into as many batches as the other ranks have.

    So no collective is missed.

    The batches of a rank differ by one sample at most. What Lightning puts in place of a share, as
    ``overfit_batches`` does, is cut as a `BatchSampler` cuts it.
    """

    def __init__(
        self, sampler: Sampler[int] | Iterable[int], batch_size: int, drop_last: bool = False
    ) -> None:
        super().__init__(sampler, batch_size, drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        if not isinstance(self.sampler, EvenDistributedSampler):
            yield from super().__iter__()
            return
        samples = iter(self.sampler)
        num_batches = self.sampler.num_batches
        for batch in range(num_batches):
            size = len(range(batch, len(self.sampler), num_batches))
            yield [next(samples) for _ in range(size)]

    def __len__(self) -> int:
        return (
            self.sampler.num_batches
            if isinstance(self.sampler, EvenDistributedSampler)
            else super().__len__()
        )
