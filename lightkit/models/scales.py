"""Mean and standard deviation of the columns of a training split.

Of all its samples, and the same on every rank.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from pytorch_lightning import Trainer
from pytorch_lightning.utilities.seed import isolate_rng
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from lightkit.errors import DataError
from lightkit.launch.watchdog import heartbeat
from lightkit.rank_zero import make_on_rank_zero

_MAX_BATCHES = 1000  # of a stream that does not say how long it is
_MIN_STD = 1e-12  # of the mean: what rounding makes of a constant
Tables = Sequence[tuple[Tensor, Tensor | None]]
"""Tables of a batch, ``(batch, columns)`` each, with the weights of the rows ``(batch,)``; None
where all count."""


class RunningScale:
    """Mean and standard deviation of columns, in float64, from one batch after another.

    The update is that of T. F. Chan, G. H. Golub and R. J. LeVeque, "Updating formulae and a
    pairwise algorithm for computing sample variances", COMPSTAT 1982. Values that are not finite
    count for nothing, and so do rows of weight 0; all other rows count alike.

    Args:
        num_columns: Number of columns.
    """

    def __init__(self, num_columns: int) -> None:
        self.count, self.mean, self.squares = torch.zeros(3, num_columns, dtype=torch.float64)

    def add(self, values: Tensor, weights: Tensor | None) -> None:
        """Add the rows of a batch.

        Args:
            values: ``(batch, columns)``.
            weights: ``(batch,)``; None where all rows count.
        """
        values = values.detach().cpu().double()
        counts = torch.isfinite(values)
        if weights is not None:
            counts &= (weights.detach().cpu() > 0)[:, None]
        if not len(values):
            return

        # differences to a value of the column itself are exact where the column is constant
        values = torch.where(counts, values, 0.0)
        start = values.gather(0, counts.long().argmax(dim=0, keepdim=True))[0]
        count = counts.sum(dim=0).double()
        mean = start + torch.where(counts, values - start, 0.0).sum(dim=0) / count.clamp_min(1)
        squares = torch.where(counts, values - mean, 0.0).square().sum(dim=0)
        self.merge(count, mean, squares)

    def merge(self, count: Tensor, mean: Tensor, squares: Tensor) -> None:
        """Add other rows by their number, mean, and sum of squared differences to it.

        Each is ``(columns,)``.
        """
        total = (self.count + count).clamp_min(1)
        has_both = (self.count > 0) & (count > 0)
        gap = torch.where(has_both, mean - self.mean, 0.0)
        self.mean = torch.where(self.count > 0, self.mean + gap * count / total, mean)
        self.squares = self.squares + squares + gap.square() * self.count * count / total
        self.count = self.count + count

    def compute(self) -> tuple[Tensor, Tensor]:
        """Return mean and population standard deviation of each column.

        0 and 1 without rows, 1 where it is constant.

        Raises:
            DataError: If there are no rows at all.
        """
        if not self.count.any():
            raise DataError(
                "The training split has no row that counts, so that"
                " inputs and targets have no scale."
            )
        std = (self.squares / self.count.clamp_min(1)).sqrt()
        return self.mean, torch.where(std > _MIN_STD * self.mean.abs(), std, 1.0)


def measure_scales(
    trainer: Trainer, tables: Callable[[Any], Tables], num_columns: Sequence[int]
) -> list[tuple[Tensor, Tensor]]:
    """Measure the training split of a trainer that is about to train; called by all ranks together.

    Rank 0 reads all samples in stored order, and the others take what it finds, so that the result
    depends neither on the number of ranks nor on batch size or seed. A stream, and a loader whose
    order only it knows, is read by each rank for its own share, at most 1,000 batches where its
    length is unknown. Loaders begin anew afterwards, and the random numbers of the training are
    those of before.

    Args:
        trainer: Has its training loader.
        tables: Returns the tables of a batch that are measured.
        num_columns: Of each table.

    Returns:
        For each table float64 ``(columns,)`` mean and standard deviation, see
        `RunningScale.compute`.

    Raises:
        LightkitError: As reading a batch does.
    """

    def measure(batches: Iterable[Any]) -> list[RunningScale]:
        scales = [RunningScale(num) for num in num_columns]
        for batch in batches:
            found = tables(trainer.strategy.batch_to_device(batch))
            for scale, (values, weights) in zip(scales, found, strict=True):
                scale.add(values, weights)
            heartbeat().beat()
        return scales

    loader = trainer.train_dataloader
    with isolate_rng():
        ordered = _read_in_order(loader)
        if ordered is None:
            scales = measure(_read_share(trainer, loader))
            return [_merge_ranks(trainer, scale).compute() for scale in scales]
        return make_on_rank_zero(lambda: [scale.compute() for scale in measure(ordered)], trainer)


def count_documents(trainer: Trainer, num_numbers: int) -> tuple[Tensor, int]:
    """Count the texts of the training split in which each n-gram occurs.

    Called by all ranks together.

    The split is read as by `measure_scales`.

    Args:
        trainer: Has its training loader, whose batches begin with ``(ids, counts)``.
        num_numbers: Number of n-grams that there are.

    Returns:
        int64 ``(num_numbers,)``, and the number of texts.
    """

    def count(batches: Iterable[Any]) -> list[tuple[Tensor, Tensor]]:
        found = torch.zeros(num_numbers, dtype=torch.int64)
        num_texts = 0
        for batch in batches:
            ids, counts = batch[0]
            found += torch.bincount(ids[counts > 0], minlength=num_numbers)
            num_texts += len(ids)
            heartbeat().beat()
        return [(found, torch.tensor(num_texts))]

    loader = trainer.train_dataloader
    with isolate_rng():
        ordered = _read_in_order(loader)
        if ordered is None:
            [(found, num)] = count(_read_share(trainer, loader))
            if trainer.world_size > 1:
                device = trainer.strategy.root_device
                found = trainer.strategy.reduce(found.to(device), reduce_op="sum").cpu()
                num = trainer.strategy.reduce(num.to(device), reduce_op="sum").cpu()
        else:
            [(found, num)] = make_on_rank_zero(lambda: count(ordered), trainer)
    return found, int(num)


def _read_in_order(loader: Any) -> Iterable[Any] | None:
    """Return all batches of a loader's split in stored order, on any rank.

    None where that is unknown.
    """
    dataset: Any = getattr(loader, "dataset", None)
    if callable(in_order := getattr(dataset, "in_order", None)):  # of lightkit's tables
        batches: Iterable[Any] = in_order()
        return batches
    is_plain = isinstance(loader, DataLoader) and type(loader).__iter__ is DataLoader.__iter__
    if not is_plain or isinstance(dataset, IterableDataset):
        return None

    # Lightning puts its own sampler in the place of a random one; lightkit's has `indices_of`
    is_known = type(loader.sampler) in (RandomSampler, SequentialSampler, DistributedSampler)
    is_known = is_known or hasattr(loader.sampler, "indices_of")
    if not is_known or type(loader.batch_sampler) not in (BatchSampler, type(None)):
        return None
    return DataLoader(
        dataset, batch_size=loader.batch_size, shuffle=False, collate_fn=loader.collate_fn
    )


def _read_share(trainer: Trainer, loader: Any) -> Iterator[Any]:
    """Read the batches of this rank once."""
    num_batches = trainer.num_training_batches
    return itertools.islice(
        copy.copy(loader), _MAX_BATCHES if math.isinf(num_batches) else int(num_batches)
    )


def _merge_ranks(trainer: Trainer, scale: RunningScale) -> RunningScale:
    """Merge what the ranks have counted, by sums."""
    if trainer.world_size == 1:
        return scale

    def add(values: Tensor) -> Tensor:
        summed: Tensor = trainer.strategy.reduce(
            values.to(trainer.strategy.root_device), reduce_op="sum"
        )
        return summed.cpu()

    merged = RunningScale(len(scale.count))
    merged.count = add(scale.count)
    merged.mean = add(scale.count * scale.mean) / merged.count.clamp_min(1)
    merged.squares = add(scale.squares + scale.count * (scale.mean - merged.mean).square())
    return merged
