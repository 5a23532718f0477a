"""Loaders over a table's batches: resumable in training, exact over several ranks, counted for what was left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from pytorch_lightning import Trainer
from torch.utils.data import DataLoader, DistributedSampler

from lightkit.data.image_dataset import num_read
from lightkit.data.loader import (
    Ahead,
    CountedBatches,
    Pinning,
    ahead_that_fits,
    count_in_fractions,
    local_ranks,
    pins,
    worker_options,
)
from lightkit.data.sampler import Position, position_of, tell_of_changes
from lightkit.data.tables.plan import BatchKey, RankPlan

__all__ = ["BatchOrder", "BatchSource", "TableLoader", "table_loader"]


class BatchSource(Protocol):
    """Gives whole batches."""

    @property
    def plan(self) -> RankPlan:
        """How this rank's rows are cut."""

    @property
    def batch_bytes(self) -> int:
        """Size of a batch."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: BatchKey | int, /) -> Any: ...


class BatchOrder(DistributedSampler[BatchKey]):
    """Yields the batches of an epoch, from any batch on.

    Every rank has its own rows and equally many batches, so there is nothing for Lightning to share out.

    Args:
        source: The batches of this rank.
        num_lanes: Worker processes, or 1.
        buffer_rows: Rows that are kept to shuffle among.
        seed: Of the order; here only for what a checkpoint says.
    """

    def __init__(self, source: BatchSource, *, num_lanes: int, buffer_rows: int, seed: int) -> None:
        plan = source.plan
        super().__init__(source, num_replicas=plan.num_replicas, rank=plan.rank, shuffle=False, seed=seed)  # type: ignore[arg-type]
        self.plan, self.num_lanes, self.buffer_rows = plan, num_lanes, buffer_rows
        self.start = Position(epoch=0, batches=0)
        self.before_epoch: Callable[[], None] | None = None
        self._cut = (num_lanes, buffer_rows)

    @property
    def mixed_rows(self) -> int:
        """Rows that are mixed among each other: those of a lane."""
        return max(1, self.buffer_rows // self.num_lanes)

    def resume(self, *, epoch: int, batches: int) -> None:
        """Start epoch ``epoch`` after its first ``batches`` batches; other epochs are whole."""
        self.epoch, self.start = epoch, Position(epoch, batches)

    def go_on_with(self, *, num_lanes: int, buffer_rows: int) -> None:
        """Cut the epoch that is resumed as it was cut before."""
        self._cut = (num_lanes, buffer_rows)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch. Lightning says it before each, also before the one that is being resumed."""
        if self.before_epoch is not None:
            self.before_epoch()
        self.epoch = epoch
        if epoch != self.start.epoch:
            self.start = Position(epoch, 0)

    def __iter__(self) -> Iterator[BatchKey]:
        epoch, batches = self.start if self.start.epoch == self.epoch else Position(self.epoch, 0)
        lanes, buffer = self._cut if batches else (self.num_lanes, self.buffer_rows)
        return iter([BatchKey(number, epoch, lanes, buffer) for number in range(batches, len(self))])

    def __len__(self) -> int:
        """Batches of the whole epoch: Lightning goes on counting at the restored batch."""
        return self.plan.num_batches


class TableLoader(DataLoader[Any]):
    """A loader over a `BatchOrder`.

    Lightning asks a training loader for the two methods of its state before it believes that a training can go on in
    the middle of an epoch. The position itself is Lightning's own count, see `lightkit.data.sampler.position_of`; what
    is kept here is how the epoch was cut, so that its rest is cut alike, also for another number of workers.
    """

    order: BatchOrder
    """The order of its batches, also where Lightning has put another in its place."""
    num_seen = 0
    """Rows of all batches that were given since `forget_counts`, those that were left out counted."""
    num_left_out = 0
    """Those of them that could not be read."""

    def state_dict(self) -> dict[str, int]:
        """What decides which rows a batch has."""
        order = self.sampler
        if not isinstance(order, BatchOrder):  # Lightning's overfit_batches puts another in its place
            return {}
        lanes, buffer = order._cut if order.start.batches else (order.num_lanes, order.buffer_rows)
        return {
            "num_rows": order.plan.num_rows,
            "batch_size": order.plan.batch_size,
            "num_processes": order.plan.num_replicas,
            "seed": order.seed,
            "num_lanes": lanes,
            "shuffle_buffer": buffer,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on as the checkpoint's epoch was cut; say so where its rest will not be what it would have been."""
        order = self.sampler
        if not isinstance(order, BatchOrder) or "num_lanes" not in state:
            return
        order.go_on_with(num_lanes=state["num_lanes"], buffer_rows=state["shuffle_buffer"])
        now = {name: value for name, value in self.state_dict().items() if name not in ("num_lanes", "shuffle_buffer")}
        tell_of_changes(state, now)

    def __iter__(self) -> Any:
        order, batches = self.sampler, super().__iter__()
        if not isinstance(order, BatchOrder):
            return batches
        return CountedBatches(batches, self.count, first=order.start.batches)

    def forget_counts(self) -> None:
        """Count from 0 again."""
        self.num_seen = self.num_left_out = 0

    def count(self, number: int, batch: Any) -> None:
        """Count the rows of a batch that was given."""
        order = self.sampler
        assert isinstance(order, BatchOrder)
        size = order.plan.size(number)
        self.num_seen += size
        self.num_left_out += size - num_read(batch)


def table_loader(
    source: BatchSource,
    *,
    seed: int,
    shuffle_buffer: int,
    for_training: bool,
    trainer: Trainer | None = None,
    num_workers: int = 0,
    prefetch_factor: int = 2,
    persistent_workers: bool = True,
    pin_memory: Pinning = "auto",
    start_method: str | None = None,
) -> TableLoader:
    """Give a rank's batches of a table.

    Args:
        source: Its batches.
        seed: Of the order.
        shuffle_buffer: Rows of a rank that are kept in memory and shuffled among.
        for_training: Go on where the trainer's restored checkpoint left off; evaluation is always whole.
        trainer: Tells the position and the device.
        num_workers: Processes that load; 0 loads in the training process.
        prefetch_factor: Batches that each of them prepares ahead.
        persistent_workers: Keep them from epoch to epoch.
        pin_memory: See `pins`.
        start_method: How they are started; None is the machine's way.
    """
    ahead = Ahead(min(num_workers, len(source)), prefetch_factor)
    if ahead.num_workers:
        ranks = 1 if trainer is None else local_ranks(trainer)
        ahead = ahead_that_fits(ahead, batch_bytes=source.batch_bytes, ranks=ranks)
    lanes = max(1, ahead.num_workers) if for_training else 1
    order = BatchOrder(source, num_lanes=lanes, buffer_rows=shuffle_buffer, seed=seed)
    if for_training:
        order.resume(**position_of(trainer)._asdict())
    elif trainer is not None and trainer.world_size > 1:
        count_in_fractions()
    loader = TableLoader(
        source,  # type: ignore[arg-type]
        batch_size=None,
        sampler=order,
        pin_memory=pins(pin_memory, trainer),
        generator=torch.Generator().manual_seed(seed),
        multiprocessing_context=start_method if ahead.num_workers else None,
        **worker_options(ahead, keep=persistent_workers),
    )
    loader.order = order
    return loader
