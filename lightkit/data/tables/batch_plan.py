"""Which rows of a table are in which batch of which rank, and reading them one batch after another.

The plan is decided by numbers alone, so it is the same in every process and can be entered at any batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from lightkit.data.sampler import stable_seed
from lightkit.errors import DataError

R = TypeVar("R")

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
        return min(self.rank * self.num_rows // self.num_replicas, self.num_rows - self.num_own)

    @property
    def num_own(self) -> int:
        """Rows of this rank: one more or less than another's at most, and one for each batch.

        Only with a batch size of 1, or fewer rows than ranks, some rows are there twice where they do not share evenly.
        """
        ends = (rank * self.num_rows // self.num_replicas for rank in (self.rank, self.rank + 1))
        return max(-next(ends) + next(ends), self.num_batches)

    @property
    def num_batches(self) -> int:
        """Batches of each rank: as many as the largest share needs."""
        largest = -(-self.num_rows // self.num_replicas)
        return -(-largest // self.batch_size)

    def size(self, number: int) -> int:
        """Rows of a batch.

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


class BatchRows(Generic[R]):
    """Reads the rows of any batch; one that follows the last batch of its lane is read on from there.

    Of each lane it keeps one block of rows in training, and in any case one open row group, never more.

    Args:
        groups: Row groups of a split, each with its number of rows of that split.
        read: Reads the rows of the split in a row group from one on, in stored order, as a stream.
        batch_size: Most rows of a batch.
        num_replicas: Ranks that divide the rows.
        rank: Number of this one, from 0.
        seed: Of the order, which is another one in each epoch; None is the stored order.
    """

    def __init__(
        self,
        groups: Sequence[tuple[int, int]],
        read: Callable[[int, int], Iterator[R]],
        *,
        batch_size: int,
        num_replicas: int = 1,
        rank: int = 0,
        seed: int | None = None,
    ) -> None:
        self._groups, self._read, self._seed = groups, read, seed
        self.is_shuffled = seed is not None
        self.plan = RankPlan(sum(rows for _, rows in groups), batch_size, num_replicas, rank)
        self._order: tuple[int, EpochOrder] | None = None
        self._blocks: dict[int, tuple[tuple[int, ...], list[R]]] = {}
        self._cursors: dict[int, _Cursor[R]] = {}

    def __getstate__(self) -> dict[str, object]:  # a worker process is started with nothing that is open
        return {**vars(self), "_order": None, "_blocks": {}, "_cursors": {}}

    def rows(self, key: BatchKey) -> list[R]:
        """Read the rows of a batch.

        Raises:
            DataError: If a row group holds fewer rows than it did.
        """
        plan = self.plan.in_lanes(key.num_lanes)
        for lanes in (self._blocks, self._cursors):  # an epoch that was resumed may have had more of them
            for other in [other for other in lanes if other >= key.num_lanes]:
                lanes.pop(other)
        lane = key.number % key.num_lanes
        wanted, places = plan.within_lane(key.number), plan.lane(lane)
        if self._seed is None:
            return list(self._line(key.epoch, lane, places[wanted.start : wanted.stop]))
        block_rows, found, row = max(1, key.buffer_rows // key.num_lanes), list[R](), wanted.start
        while row < wanted.stop:
            number, block = block_of(len(places), block_rows, row)
            kept = self._block(key, lane, number, places[block.start : block.stop])
            stop = min(wanted.stop, block.stop)
            found += kept[row - block.start : stop - block.start]
            row = stop
        return found

    def places(self, key: BatchKey) -> range:
        """Give the places in the epoch's line of a batch: each is in one batch of one rank only."""
        plan = self.plan.in_lanes(key.num_lanes)
        within = plan.within_lane(key.number)
        return plan.lane(key.number % key.num_lanes)[within.start : within.stop]

    def at(self, place: int) -> R:
        """Read one row by its number, in stored order."""
        (row,) = self._line(0, 0, range(place, place + 1))  # to its end, so that the next is read on from there
        return row

    def _block(self, key: BatchKey, lane: int, number: int, places: range) -> list[R]:
        """Read a block's rows in the order in which they are taken."""
        assert self._seed is not None
        name = (key.epoch, lane, number, places.start, places.stop)
        if lane in self._blocks and self._blocks[lane][0] == name:
            return self._blocks[lane][1]
        self._blocks.pop(lane, None)  # before the next is read, so that both are never there together
        rows = list(self._line(key.epoch, lane, places))
        order = shuffled(len(rows), seed=self._seed, epoch=key.epoch, rank=self.plan.rank, lane=lane, block=number)
        block = [rows[place] for place in order]
        self._blocks[lane] = (name, block)
        return block

    def _line(self, epoch: int, lane: int, places: range) -> Iterator[R]:
        """Read the rows at some places of the epoch's line."""
        if self._order is None or self._order[0] != epoch:
            counts = [rows for _, rows in self._groups]
            self._order = (epoch, EpochOrder(counts, seed=self._seed, epoch=epoch))
        cursor = self._cursors.setdefault(lane, _Cursor(self._groups, self._read))
        for part in self._order[1].parts(places.start, places.stop):
            yield from cursor.rows(part)


class _Cursor(Generic[R]):
    """A place in one open row group."""

    def __init__(self, groups: Sequence[tuple[int, int]], read: Callable[[int, int], Iterator[R]]) -> None:
        self._groups, self._read = groups, read
        self._group, self._at = -1, 0
        self._rows: Iterator[R] = iter(())

    def rows(self, part: Part) -> Iterator[R]:
        """Read on to the rows of a part, or open the row group anew if they lie before this place."""
        group, num_rows = self._groups[part.group]
        if part.group != self._group or part.skip < self._at:
            self._at, self._rows = part.skip, self._read(group, part.skip)
        self._group = -1  # in the middle of reading, an error may come
        stop, num_read = part.skip + part.take, 0
        for row in islice(self._rows, part.skip - self._at, stop - self._at):
            yield row
            num_read += 1
        if num_read < part.take:
            raise DataError(
                f"row group {group} of the table has fewer than the {num_rows} rows that it had when the table was "
                "opened. Leave a table alone while it is trained on, or train on a version of a Delta table."
            )
        if stop < num_rows:
            self._group, self._at = part.group, stop
        else:  # close the file, and free what was read ahead
            self._rows = iter(())
