"""Which rows of a table are in which batch of which rank, and reading them one batch after another.

The plan is decided by numbers alone, so it is the same in every process and can be entered at any batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from lightkit.data.sampler import stable_seed
from lightkit.errors import DataError

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

    def parts(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Give the rows from place ``start`` up to but not including ``stop`` of the line.

        Yields:
            Number of a row group in its split, rows of the split before those that are wanted, and how many are.
        """
        place = start
        while place < stop:
            row = (place + self._shift) % self.num_rows
            at = int(np.searchsorted(self._stops, row, side="right"))
            first = int(self._stops[at - 1]) if at else 0
            take = min(int(self._stops[at]) - row, stop - place)
            yield self._groups[at], row - first, take
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

    @property
    def start(self) -> int:
        """The place of this rank's first row."""
        return min(self.rank * self.num_rows // self.num_replicas, self.num_rows - self.num_own)

    @property
    def num_own(self) -> int:
        """Rows of this rank: one more or less than another's at most, and one for each batch.

        Only with a batch size of 1, or fewer rows than ranks, some rows are there twice where they do not share evenly.
        """
        begin, end = (rank * self.num_rows // self.num_replicas for rank in (self.rank, self.rank + 1))
        return max(end - begin, self.num_batches)

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
        lasts = [range(lane, self.num_batches, self.num_lanes)[-1:] for lane in range(number + 1)]
        sizes = [self.within_lane(last[0]).stop if last else 0 for last in lasts]
        return range(self.start + sum(sizes[:-1]), self.start + sum(sizes))

    def within_lane(self, number: int) -> range:
        """The rows of a batch, counted from the start of its lane."""
        earlier, lane = divmod(number, self.num_lanes)
        rows, larger = (self.batch_size, 0) if self.num_replicas == 1 else divmod(self.num_own, self.num_batches)
        before = earlier * rows + min(earlier, len(range(lane, larger, self.num_lanes)))
        return range(before, before + self.size(number))


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


def _random(*parts: int) -> np.random.Generator:
    return np.random.default_rng(stable_seed(*parts))


class BatchRows:
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
        read: Callable[[int, int], Iterator[Any]],
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
        self._blocks: dict[int, tuple[tuple[int, ...], list[Any]]] = {}
        self._cursors: dict[int, _Cursor] = {}

    def __getstate__(self) -> dict[str, object]:  # a worker process is started with nothing that is open
        return {**vars(self), "_order": None, "_blocks": {}, "_cursors": {}}

    def rows(self, key: BatchKey) -> list[Any]:
        """Read the rows of a batch.

        Raises:
            DataError: If a row group holds fewer rows than it did.
        """
        plan = replace(self.plan, num_lanes=key.num_lanes)
        for lanes in (self._blocks, self._cursors):  # an epoch that was resumed may have had more of them
            for other in [other for other in lanes if other >= key.num_lanes]:
                lanes.pop(other)
        lane = key.number % key.num_lanes
        wanted, places = plan.within_lane(key.number), plan.lane(lane)
        if self._seed is None:
            return list(self._line(key.epoch, lane, places[wanted.start : wanted.stop]))
        block_rows, found, row = max(1, key.buffer_rows // key.num_lanes), list[Any](), wanted.start
        while row < wanted.stop:
            number, block = block_of(len(places), block_rows, row)
            kept = self._block(key, lane, number, places[block.start : block.stop])
            stop = min(wanted.stop, block.stop)
            found += kept[row - block.start : stop - block.start]
            row = stop
        return found

    def places(self, key: BatchKey) -> range:
        """Give the places in the epoch's line of a batch: each is in one batch of one rank only."""
        plan = replace(self.plan, num_lanes=key.num_lanes)
        within = plan.within_lane(key.number)
        return plan.lane(key.number % key.num_lanes)[within.start : within.stop]

    def at(self, place: int) -> Any:
        """Read one row by its number, in stored order."""
        (row,) = self._line(0, 0, range(place, place + 1))  # to its end, so that the next is read on from there
        return row

    def _block(self, key: BatchKey, lane: int, number: int, places: range) -> list[Any]:
        """Read a block's rows in the order in which they are taken."""
        assert self._seed is not None
        name = (key.epoch, lane, number, places.start, places.stop)
        if lane in self._blocks and self._blocks[lane][0] == name:
            return self._blocks[lane][1]
        self._blocks.pop(lane, None)  # before the next is read, so that both are never there together
        rows = list(self._line(key.epoch, lane, places))
        order = _random(self._seed, key.epoch, _BLOCK, self.plan.rank, lane, number).permutation(len(rows))
        block = [rows[place] for place in order.tolist()]
        self._blocks[lane] = (name, block)
        return block

    def _line(self, epoch: int, lane: int, places: range) -> Iterator[Any]:
        """Read the rows at some places of the epoch's line."""
        if self._order is None or self._order[0] != epoch:
            counts = [rows for _, rows in self._groups]
            self._order = (epoch, EpochOrder(counts, seed=self._seed, epoch=epoch))
        cursor = self._cursors.setdefault(lane, _Cursor(self._groups, self._read))
        for part in self._order[1].parts(places.start, places.stop):
            yield from cursor.rows(*part)


class _Cursor:
    """A place in one open row group."""

    def __init__(self, groups: Sequence[tuple[int, int]], read: Callable[[int, int], Iterator[Any]]) -> None:
        self._groups, self._read = groups, read
        self._group, self._at = -1, 0
        self._rows: Iterator[Any] = iter(())

    def rows(self, number: int, skip: int, take: int) -> Iterator[Any]:
        """Read on to some rows of a row group, or open it anew if they lie before this place."""
        group, num_rows = self._groups[number]
        if number != self._group or skip < self._at:
            self._at, self._rows = skip, self._read(group, skip)
        self._group = -1  # in the middle of reading, an error may come
        stop, num_read = skip + take, 0
        for row in islice(self._rows, skip - self._at, stop - self._at):
            yield row
            num_read += 1
        if num_read < take:
            raise DataError(
                f"row group {group} of the table has fewer than the {num_rows} rows that it had when the table was "
                "opened. Leave a table alone while it is trained on, or train on a version of a Delta table."
            )
        if stop < num_rows:
            self._group, self._at = number, stop
        else:  # close the file, and free what was read ahead
            self._rows = iter(())
