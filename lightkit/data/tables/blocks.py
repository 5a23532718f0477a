"""Reading a batch's rows: on from where the batch before ended, with no more in memory than is shuffled together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Generic, TypeVar

from lightkit.data.tables.plan import BatchKey, EpochOrder, Part, RankPlan, block_of, shuffled
from lightkit.errors import DataError

__all__ = ["BatchRows"]

Group = TypeVar("Group")
Row = TypeVar("Row")

Read = Callable[[Group, int], Iterator[Row]]


class BatchRows(Generic[Group, Row]):
    """Gives the rows of any batch; one that follows the last batch of its lane is read on from there.

    Of each lane it keeps one block of rows in training, and in any case one open row group, never more.

    Args:
        groups: Row groups of a split, each with its number of rows of that split.
        read: Gives the rows of the split in a row group from one on, in stored order, as a stream.
        batch_size: Most rows of a batch.
        num_replicas: Ranks that share the rows.
        rank: Number of this one, from 0.
        seed: Of the order, which is another one in each epoch; None is the stored order.
    """

    def __init__(
        self,
        groups: Sequence[tuple[Group, int]],
        read: Read[Group, Row],
        *,
        batch_size: int,
        num_replicas: int = 1,
        rank: int = 0,
        seed: int | None = None,
    ) -> None:
        self._groups, self._read, self._seed = groups, read, seed
        self._plan = RankPlan(sum(rows for _, rows in groups), batch_size, num_replicas, rank)
        self._order: tuple[int, EpochOrder] | None = None
        self._blocks: dict[int, tuple[tuple[int, ...], list[Row]]] = {}
        self._cursors: dict[int, _Cursor[Group, Row]] = {}

    def __getstate__(self) -> dict[str, object]:  # what a worker process is started with: nothing that is open
        return {**vars(self), "_order": None, "_blocks": {}, "_cursors": {}}

    @property
    def plan(self) -> RankPlan:
        """How the rows are shared out, in one lane."""
        return self._plan

    def rows(self, key: BatchKey) -> list[Row]:
        """Read the rows of a batch.

        Raises:
            DataError: If a row group holds fewer rows than it did.
        """
        plan = self._plan.in_lanes(key.num_lanes)
        for lanes in (self._blocks, self._cursors):  # an epoch that was resumed may have had more of them
            for other in [other for other in lanes if other >= key.num_lanes]:
                lanes.pop(other)
        lane = key.number % key.num_lanes
        wanted, place = plan.within_lane(key.number), plan.lane(lane)
        if self._seed is None:
            return list(self._line(key.epoch, lane, place[wanted.start : wanted.stop]))
        block_rows, found, row = max(1, key.buffer_rows // key.num_lanes), list[Row](), wanted.start
        while row < wanted.stop:
            number, block = block_of(len(place), block_rows, row)
            kept = self._block(key, lane, number, place[block.start : block.stop])
            stop = min(wanted.stop, block.stop)
            found += kept[row - block.start : stop - block.start]
            row = stop
        return found

    def places(self, key: BatchKey) -> range:
        """The places in the epoch's line that a batch stands for: each is in one batch of one rank only."""
        plan = self._plan.in_lanes(key.num_lanes)
        within = plan.within_lane(key.number)
        return plan.lane(key.number % key.num_lanes)[within.start : within.stop]

    def at(self, place: int) -> Row:
        """Read one row by its number, in stored order."""
        (row,) = self._line(0, 0, range(place, place + 1))  # to its end, so that the next is read on from there
        return row

    def _block(self, key: BatchKey, lane: int, number: int, places: range) -> list[Row]:
        """A block's rows in the order in which they are taken."""
        assert self._seed is not None
        name = (key.epoch, lane, number, places.start, places.stop)
        if lane in self._blocks and self._blocks[lane][0] == name:
            return self._blocks[lane][1]
        self._blocks.pop(lane, None)  # before the next is read, so that both are never there together
        rows = list(self._line(key.epoch, lane, places))
        order = shuffled(len(rows), seed=self._seed, epoch=key.epoch, rank=self._plan.rank, lane=lane, block=number)
        block = [rows[place] for place in order]
        self._blocks[lane] = (name, block)
        return block

    def _line(self, epoch: int, lane: int, places: range) -> Iterator[Row]:
        """The rows at some places of the epoch's line."""
        if self._order is None or self._order[0] != epoch:
            counts = [rows for _, rows in self._groups]
            self._order = (epoch, EpochOrder(counts, seed=self._seed, epoch=epoch))
        cursor = self._cursors.setdefault(lane, _Cursor(self._groups, self._read))
        for part in self._order[1].parts(places.start, places.stop):
            yield from cursor.rows(part)


class _Cursor(Generic[Group, Row]):
    """A place in one open row group."""

    def __init__(self, groups: Sequence[tuple[Group, int]], read: Read[Group, Row]) -> None:
        self._groups, self._read = groups, read
        self._group, self._at = -1, 0
        self._rows: Iterator[Row] = iter(())

    def rows(self, part: Part) -> Iterator[Row]:
        """Read on to the rows of a part, or open the row group anew where they lie before this place."""
        if part.group != self._group or part.skip < self._at:
            self._at, self._rows = part.skip, self._read(self._groups[part.group][0], part.skip)
        self._group = -1  # in the middle of reading, an error may come
        stop, num_read = part.skip + part.take, 0
        for row in islice(self._rows, part.skip - self._at, stop - self._at):
            yield row
            num_read += 1
        group, num_rows = self._groups[part.group]
        if num_read < part.take:
            raise DataError(
                f"{getattr(group, 'path', group)}: a row group has fewer than the {num_rows} rows that it had when the "
                "table was opened. Leave a table alone while it is trained on, or train on a version of a Delta table."
            )
        if stop < num_rows:
            self._group, self._at = part.group, stop
        else:  # let go of the file and of what was read ahead
            self._rows = iter(())
