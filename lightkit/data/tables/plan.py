"""Which rows of a table are in which batch: decided by numbers alone, the same in every process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from lightkit.data.sampler import stable_seed

__all__ = ["BatchKey", "EpochOrder", "Part", "RankPlan", "block_of", "shuffled"]

_ROTATION, _GROUPS, _BLOCK = range(3)  # keep the seeds of the three apart


class BatchKey(NamedTuple):
    """One batch of one epoch, and how the epoch is cut: a persistent worker process is told nothing else.

    Args:
        number: Of the batch on its rank, from 0.
        epoch: Of the training; 0 in evaluation.
        num_lanes: Rows of a rank are cut into that many lanes; batch ``number`` is of lane ``number % num_lanes``.
        buffer_rows: Rows that all lanes together keep to shuffle among.
    """

    number: int
    epoch: int
    num_lanes: int
    buffer_rows: int


class Part(NamedTuple):
    """Some rows of one row group.

    Args:
        group: Number of the row group in its split.
        skip: Rows of the split before them in it.
        take: How many.
    """

    group: int
    skip: int
    take: int


class EpochOrder:
    """All rows of a split in one line: the stored order, or the row groups mixed anew in each epoch.

    The mixed line is a ring that starts anywhere, also within a row group, so that the borders of what is shuffled
    together lie elsewhere in each epoch, also where there is only one row group.

    Args:
        counts: Rows of the split in each row group.
        seed: Decides the order, together with the epoch; None is the stored order.
        epoch: Of the training.
    """

    def __init__(self, counts: Sequence[int], *, seed: int | None = None, epoch: int = 0) -> None:
        groups = np.arange(len(counts))
        self.num_rows, self._shift = sum(counts), 0
        if seed is not None and self.num_rows:
            groups = _random(seed, epoch, _GROUPS).permutation(len(counts))
            self._shift = int(_random(seed, epoch, _ROTATION).integers(self.num_rows))
        self._groups: list[int] = groups.tolist()
        self._stops = np.cumsum(np.asarray(counts, dtype=np.int64)[groups]) if counts else np.zeros(0, dtype=np.int64)

    def parts(self, start: int, stop: int) -> Iterator[Part]:
        """Give the rows from place ``start`` up to but not including ``stop`` of the line."""
        place = start
        while place < stop:
            row = (place + self._shift) % self.num_rows
            at = int(np.searchsorted(self._stops, row, side="right"))
            first = int(self._stops[at - 1]) if at else 0
            take = min(int(self._stops[at]) - row, stop - place)
            yield Part(self._groups[at], row - first, take)
            place += take


@dataclass(frozen=True)
class RankPlan:
    """What one of several ranks has of a line of rows: a stretch of it, in as many batches as every other rank has.

    Args:
        num_rows: Of all ranks.
        batch_size: Most rows of a batch.
        num_replicas: Ranks that share the rows.
        rank: Number of this one, from 0.
        num_lanes: Each lane is a stretch of its own, so that a worker process reads on where it stands.
    """

    num_rows: int
    batch_size: int
    num_replicas: int = 1
    rank: int = 0
    num_lanes: int = 1

    def in_lanes(self, num_lanes: int) -> RankPlan:
        """The same stretch, cut into another number of lanes."""
        return replace(self, num_lanes=num_lanes)

    @property
    def start(self) -> int:
        """The place of this rank's first row."""
        return self.rank * self.num_rows // self.num_replicas

    @property
    def num_own(self) -> int:
        """Rows of this rank: one more or less than another's at most."""
        return (self.rank + 1) * self.num_rows // self.num_replicas - self.start

    @property
    def num_batches(self) -> int:
        """Batches of each rank: as many as the largest share needs."""
        largest = -(-self.num_rows // self.num_replicas)
        return -(-largest // self.batch_size)

    def size(self, number: int) -> int:
        """Rows of a batch; none where a rank has fewer rows than there are batches.

        Alone, all batches are full but the last. Among several ranks they are as equal as can be: whatever is taken as
        a mean over a batch, and then over ranks, so counts each row about alike.
        """
        if self.num_replicas == 1:
            return min(self.batch_size, self.num_own - number * self.batch_size)
        return len(range(number, self.num_own, self.num_batches))

    def lane(self, number: int) -> range:
        """The places of a lane's rows."""
        starts = [0]
        for lane in range(number + 1):
            starts.append(starts[-1] + self._lane_rows(lane))
        return range(self.start + starts[-2], self.start + starts[-1])

    def within_lane(self, number: int) -> range:
        """The rows of a batch, counted from the start of its lane."""
        before = self._before(number)
        return range(before, before + self.size(number))

    def _before(self, number: int) -> int:
        """Rows of a batch's lane that are in earlier batches."""
        earlier, lane = divmod(number, self.num_lanes)
        if self.num_replicas == 1:
            return earlier * self.batch_size
        rows, larger = divmod(self.num_own, self.num_batches)
        return earlier * rows + min(earlier, len(range(lane, larger, self.num_lanes)))

    def _lane_rows(self, lane: int) -> int:
        batches = range(lane, self.num_batches, self.num_lanes)
        return self.within_lane(batches[-1]).stop if batches else 0


def block_of(num_rows: int, block_rows: int, row: int) -> tuple[int, range]:
    """Find the block of a lane's row: its number, and its rows.

    Args:
        num_rows: Of the lane, cut into blocks as equal as can be.
        block_rows: Most rows of a block.
        row: Counted from the start of the lane.
    """
    num_blocks = -(-num_rows // block_rows)
    number = (
        (row + 1) * num_blocks - 1
    ) // num_rows  # the last whose border, number * num_rows // num_blocks, is <= row
    return number, range(number * num_rows // num_blocks, (number + 1) * num_rows // num_blocks)


def shuffled(num_rows: int, *, seed: int, epoch: int, rank: int, lane: int, block: int) -> list[int]:
    """The order in which the rows of a block are taken."""
    order: list[int] = _random(seed, epoch, _BLOCK, rank, lane, block).permutation(num_rows).tolist()
    return order


def _random(*parts: int) -> np.random.Generator:
    return np.random.default_rng(stable_seed(*parts))
