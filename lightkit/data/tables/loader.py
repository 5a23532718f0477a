"""Rows of a table as batches, and the loaders over them.

Resumable in training, exact over several ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from pytorch_lightning import Trainer
from torch.utils.data import Dataset

from lightkit.data.bad_samples import Defects, read_samples
from lightkit.data.image_dataset import Batch, Encoded, View, stack_images
from lightkit.data.loader import ResumableLoader, count_in_fractions, make_loader
from lightkit.data.sampler import ResumableSampler, SampleKey, position_of, stable_seed
from lightkit.data.tables.index import Index, Row
from lightkit.errors import DataError
from lightkit.images.image_file import UnreadableImageError
from lightkit.images.splits import Split


@dataclass(eq=False)
class BatchMaker:
    """Makes a batch of rows: decodes images, or stacks features.

    Args:
        view: Transform of an image; None for features.
        row_bytes: Size of a row in a batch.
        seed: Of the view's randomness.
        defects: Takes rows that cannot be used; None if that is an error.
        are_values: Labels are numbers to predict, not classes.
    """

    view: View | None
    row_bytes: int
    seed: int = 0
    defects: Defects | None = None
    are_values: bool = False

    def __call__(self, rows: Sequence[Row], keys: Sequence[SampleKey]) -> Batch:
        """Make a batch of at least one row: inputs, labels, and weights if rows have some.

        Returns:
            Images uint8 ``(batch, 3, height, width)`` or features float32 ``(batch, *shape)``;
            labels int64 ``(batch,)`` or values float32 ``(batch, 1)``; weights float32
            ``(batch,)``.

        Raises:
            UnreadableImageError: If no row can be used, or a row cannot and none may be left out.
        """

        def read(place: int) -> Any:
            row = rows[place]
            if row.defect is not None:
                message = (
                    f"{row.name}: {row.defect}. The table has changed"
                    " since it was opened: start again."
                )
                raise UnreadableImageError(message, reason=row.defect)
            if self.view is None:
                return row.features
            return self.view(Encoded(row.image or b"", name=row.name), self.seed, keys[place])

        # in training the next row of the batch is in a bad one's place
        def others(place: int) -> Sequence[int]:
            return [*range(place + 1, len(rows)), *range(place)]

        for_training = self.view is not None and self.view.for_training
        found = read_samples(
            range(len(rows)), read, name=lambda place: rows[place].name, defects=self.defects,
            replacements=others if for_training else None,
        )  # fmt: skip
        samples = [sample for _, sample in found]
        kept = [rows[place] for place, _ in found]
        inputs = torch.from_numpy(np.stack(samples)) if self.view is None else stack_images(samples)
        labels = torch.tensor([row.label or 0 for row in kept])
        batch = inputs, labels.float().unsqueeze(1) if self.are_values else labels
        if all(row.weight is None for row in kept):
            return batch
        return *batch, torch.tensor(
            [1.0 if row.weight is None else row.weight for row in kept], dtype=torch.float32
        )


class TableBatches(Dataset[Batch]):
    """A rank's batches, each made as a whole.

    Args:
        rows: Reads the rows of a batch.
        make_batch: Makes a batch of them.
        buffer_rows: Rows that are kept to shuffle among, for a batch that is asked for by its bare
            number.
        source: Names and images of the split's rows.
    """

    def __init__(
        self,
        rows: BatchRows,
        make_batch: BatchMaker,
        *,
        buffer_rows: int,
        source: TableImages | None = None,
    ) -> None:
        self.rows = rows
        self.make_batch = make_batch
        self.buffer_rows = buffer_rows
        self.source = source

    def __len__(self) -> int:
        return self.rows.plan.num_batches

    def in_order(self) -> Iterator[Batch]:
        """Make the batches of all rows of the split in stored order, those of other ranks too."""
        rows = self.rows.in_order()
        for number in range(rows.plan.num_batches):
            key = BatchKey(number, epoch=0, num_lanes=1, buffer_rows=self.buffer_rows)
            yield self.make_batch(rows.rows(key), [SampleKey(at, 0) for at in rows.places(key)])

    @property
    def num_samples(self) -> int:
        """Number of rows of the split, over all ranks."""
        return self.rows.plan.num_rows

    @property
    def sample_bytes(self) -> int:
        """Size of a batch."""
        return self.rows.plan.batch_size * self.make_batch.row_bytes

    def __getitem__(self, key: BatchKey | int) -> Batch:
        """Make a batch; a bare number is that of one in the first epoch.

        Lightning's ``overfit_batches`` asks so.
        """
        if not isinstance(key, BatchKey):
            key = BatchKey(key, epoch=0, num_lanes=1, buffer_rows=self.buffer_rows)
        return self.make_batch(
            self.rows.rows(key), [SampleKey(at, key.epoch) for at in self.rows.places(key)]
        )


class TableRows(Dataset[Any]):
    """A split's rows by their numbers, in stored order.

    Those that follow each other are read as a stream.

    Args:
        rows: Reads rows in stored order.
        make_batch: Makes a batch of them.
    """

    def __init__(self, rows: BatchRows, make_batch: BatchMaker) -> None:
        self.rows = rows
        self.make_batch = make_batch
        self.sample_bytes = make_batch.row_bytes

    def __len__(self) -> int:
        return self.rows.plan.num_rows

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Read a batch; torch's loader calls this method if there is one."""
        rows = [self.rows.at(index) for index in indices]
        return self.make_batch(rows, [SampleKey(index, 0) for index in indices])

    @staticmethod
    def collate(batch: Batch) -> Batch:
        """Return a batch as it is: for a loader's ``collate_fn``."""
        return batch


class TableImages:
    """A split's images as they are, in RGB, with their labels.

    One far from the last takes long to find.

    Args:
        index: Of the table.
        split: The split.
    """

    def __init__(self, index: Index, split: Split) -> None:
        self._index = index
        self._split = split
        self._rows = BatchRows(index.rows(split), partial(index.read, split), batch_size=1)
        self._names = RowNames(index, split)

    def __len__(self) -> int:
        return self._rows.plan.num_rows

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        row = self._rows.at(index)
        return Encoded(row.image or b"", name=row.name).whole(), int(row.label or 0)

    def name(self, index: int) -> str:
        """Return the file and the number of a row."""
        return self._names[index]

    def pixels(self, index: int) -> Encoded:
        """Return an image, which is not decoded yet; that of a row without one cannot be read."""
        row = self._rows.at(index)
        return Encoded(row.image or b"", name=row.name)


class RowNames(Sequence[str]):
    """File and row number of each of a split's rows, formatted when they are asked for.

    Args:
        index: Of the table.
        split: The split.
    """

    def __init__(self, index: Index, split: Split) -> None:
        self._index = index
        self._split = split
        self._groups = index.rows(split)
        self._stops = np.cumsum([0, *(num for _, num in self._groups)])
        self._last: tuple[int, list[str]] = (-1, [])

    def __len__(self) -> int:
        return int(self._stops[-1])

    def __getitem__(self, index: int) -> str:  # type: ignore[override]  # a slice of what may be very many is not needed
        if not 0 <= index < len(self):
            raise IndexError(index)
        at = int(np.searchsorted(self._stops, index, side="right")) - 1
        if self._last[0] != at:
            group = self._groups[at][0]
            self._last = (
                at,
                self._index.groups[group].row_names(self._index.row_numbers(group, self._split)),
            )
        return self._last[1][index - int(self._stops[at])]


class BatchOrder(ResumableSampler):
    """Yields the batches of an epoch, from any batch on.

    Every rank has its own rows and equally many batches, so there is nothing for Lightning to
    divide. How a resumed epoch was cut is in the loader's state, so that its rest is cut alike,
    also for another number of workers.

    Args:
        batches: Of this rank.
        seed: Of the order; here only for the state of a checkpoint.
    """

    def __init__(self, batches: TableBatches, *, seed: int) -> None:
        self.rows = batches.rows
        self.plan = batches.rows.plan
        super().__init__(
            batches, batch_size=self.plan.batch_size, num_replicas=self.plan.num_replicas,
            rank=self.plan.rank,
            seed=seed,
        )  # fmt: skip
        self.own_cut = (1, batches.buffer_rows)
        """Worker processes that load, or 1, and rows that are kept to shuffle among."""
        self.resumed_cut = self.own_cut

    @property
    def cut(self) -> tuple[int, int]:
        """Lanes and buffer of the current epoch."""
        return self.resumed_cut if self.first_batch else self.own_cut

    def indices_of(self, *, epoch: int, batch: int) -> list[int]:
        """Return the numbers, in stored order, of the rows of a batch, as the epoch is cut."""
        cut = (
            self.resumed_cut if epoch == self._start.epoch and self._start.batches else self.own_cut
        )
        return self.rows.numbers(BatchKey(batch, epoch, *cut))

    def __iter__(self) -> Iterator[BatchKey]:  # type: ignore[override]
        return iter(
            [
                BatchKey(number, self.epoch, *self.cut)
                for number in range(self.first_batch, len(self))
            ]
        )

    def __len__(self) -> int:
        """Batches of the whole epoch: Lightning goes on counting at the restored batch."""
        return self.plan.num_batches

    def state_dict(self) -> dict[str, int]:
        """Return what decides which rows a batch has."""
        num_lanes, buffer = self.cut
        own = {"num_samples": self.plan.num_rows, "num_lanes": num_lanes, "shuffle_buffer": buffer}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Cut the rest of the epoch as the checkpoint's.

        Warn if it will not be what it would have been.
        """
        self.resumed_cut = (state["num_lanes"], state["shuffle_buffer"])
        super().load_state_dict(
            {**state, **dict(zip(("num_lanes", "shuffle_buffer"), self.cut, strict=True))}
        )


def table_loader(
    batches: TableBatches, *, seed: int, trainer: Trainer | None = None, **options: Any
) -> ResumableLoader:
    """Make the loader of a rank's batches.

    If they are shuffled, from the trainer's restored checkpoint on.

    Args:
        batches: The batches.
        seed: Of the order.
        trainer: Knows the position and the device.
        options: As for `lightkit.data.train_loader`, and ``start_method`` of the worker processes;
            None is the machine's.
    """
    order = BatchOrder(batches, seed=seed)
    for_training = batches.rows.is_shuffled
    if for_training:
        order.resume(**position_of(trainer)._asdict())
    elif trainer is not None and trainer.world_size > 1:
        count_in_fractions()
    loader: ResumableLoader = make_loader(
        batches, None, seed, trainer, kind=ResumableLoader, sampler=order, **options
    )
    if for_training:
        order.own_cut = order.resumed_cut = (max(1, loader.num_workers), batches.buffer_rows)
    return loader


_ROTATION, _GROUPS, _BLOCK = range(3)  # keep the seeds of the three apart


class BatchKey(NamedTuple):
    """One batch of one epoch, and how the epoch is cut.

    A persistent worker process is told nothing else.

    Args:
        number: Of the batch on its rank, from 0.
        epoch: Of the training; 0 in evaluation.
        num_lanes: Rows of a rank are cut into that many lanes; batch ``number`` is of lane
            ``number % num_lanes``.
        buffer_rows: Rows that all lanes together keep to shuffle among.
    """

    number: int
    epoch: int
    num_lanes: int
    buffer_rows: int


class EpochOrder:
    """All rows of a split in one line: the stored order, or the row groups mixed in each epoch.

    The mixed line is a ring that starts anywhere, also within a row group, so that the borders of
    what is shuffled together lie elsewhere in each epoch, also where there is only one row group.

    Args:
        counts: Rows of the split in each row group.
        seed: Decides the order, together with the epoch; None is the stored order.
        epoch: Of the training.
    """

    def __init__(self, counts: Sequence[int], *, seed: int | None = None, epoch: int = 0) -> None:
        groups = np.arange(len(counts))
        self.num_rows = sum(counts)
        self._shift = 0
        if seed is not None and self.num_rows:
            groups = _random(seed, epoch, _GROUPS).permutation(len(counts))
            self._shift = int(_random(seed, epoch, _ROTATION).integers(self.num_rows))
        self._groups: list[int] = groups.tolist()
        self._stops = (
            np.cumsum(np.asarray(counts, dtype=np.int64)[groups])
            if counts
            else np.zeros(0, dtype=np.int64)
        )
        self._starts: list[int] = np.cumsum([0, *counts]).tolist()  # of the groups in stored order

    def parts(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Return the rows from place ``start`` up to but not including ``stop`` of the line.

        Yields:
            Number of a row group in its split, rows of the split before those that are wanted, and
            how many are.
        """
        place = start
        while place < stop:
            row = (place + self._shift) % self.num_rows
            at = int(np.searchsorted(self._stops, row, side="right"))
            first = int(self._stops[at - 1]) if at else 0
            take = min(int(self._stops[at]) - row, stop - place)
            yield self._groups[at], row - first, take
            place += take

    def number(self, place: int) -> int:
        """Return the number, in stored order, of the row at a place of the line."""
        group, before, _ = next(self.parts(place, place + 1))
        return self._starts[group] + before


@dataclass(frozen=True)
class RankPlan:
    """Share of one of several ranks in a line of rows.

    A stretch of it, in as many batches as every other rank has.

    Args:
        num_rows: Of all ranks.
        batch_size: Most rows of a batch.
        num_replicas: Ranks that share the rows.
        rank: Number of this one, from 0.
        num_lanes: Each lane is a stretch of its own, so that a worker process reads on where it
            stands.
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

        Only with a batch size of 1, or fewer rows than ranks, some rows are there twice where they
        do not share evenly.
        """
        begin, end = (
            rank * self.num_rows // self.num_replicas for rank in (self.rank, self.rank + 1)
        )
        return max(end - begin, self.num_batches)

    @property
    def num_batches(self) -> int:
        """Batches of each rank: as many as the largest share needs."""
        largest = -(-self.num_rows // self.num_replicas)
        return -(-largest // self.batch_size)

    def size(self, number: int) -> int:
        """Rows of a batch.

        Alone, all batches are full but the last. Among several ranks they are as equal as can be:
        whatever is taken as a mean over a batch, and then over ranks, so counts each row about
        alike.
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
        rows, larger = (
            (self.batch_size, 0)
            if self.num_replicas == 1
            else divmod(self.num_own, self.num_batches)
        )
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
    # the last whose border, number * num_rows // num_blocks, is <= row
    number = ((row + 1) * num_blocks - 1) // num_rows
    return number, range(number * num_rows // num_blocks, (number + 1) * num_rows // num_blocks)


def _random(*parts: int) -> np.random.Generator:
    return np.random.default_rng(stable_seed(*parts))


class BatchRows:
    """Reads the rows of any batch.

    One that follows the last batch of its lane is read on from there.

    Of each lane it keeps one block of rows in training, and in any case one open row group, never
    more.

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
        self._groups = groups
        self._read = read
        self._seed = seed
        self.is_shuffled = seed is not None
        self.plan = RankPlan(sum(rows for _, rows in groups), batch_size, num_replicas, rank)
        self._order: tuple[int, EpochOrder] | None = None
        self._blocks: dict[int, tuple[tuple[int, ...], list[Any]]] = {}
        self._cursors: dict[int, _Cursor] = {}

    # a worker process is started with nothing that is open
    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_order": None, "_blocks": {}, "_cursors": {}}

    def in_order(self) -> BatchRows:
        """Return a reader of all rows of the split in stored order, as a single process does."""
        return BatchRows(self._groups, self._read, batch_size=self.plan.batch_size)

    def rows(self, key: BatchKey) -> list[Any]:
        """Read the rows of a batch.

        Raises:
            DataError: If a row group holds fewer rows than it did.
        """
        plan = replace(self.plan, num_lanes=key.num_lanes)
        # an epoch that was resumed may have had more of them
        for lanes in (self._blocks, self._cursors):
            for other in [other for other in lanes if other >= key.num_lanes]:
                lanes.pop(other)
        lane = key.number % key.num_lanes
        wanted = plan.within_lane(key.number)
        places = plan.lane(lane)
        if self._seed is None:
            return list(self._line(key.epoch, lane, places[wanted.start : wanted.stop]))
        block_rows = max(1, key.buffer_rows // key.num_lanes)
        found = list[Any]()
        row = wanted.start
        while row < wanted.stop:
            number, block = block_of(len(places), block_rows, row)
            kept = self._block(key, lane, number, places[block.start : block.stop])
            stop = min(wanted.stop, block.stop)
            found += kept[row - block.start : stop - block.start]
            row = stop
        return found

    def places(self, key: BatchKey) -> range:
        """Return the places in the epoch's line of a batch: each is in one batch of one rank."""
        plan = replace(self.plan, num_lanes=key.num_lanes)
        within = plan.within_lane(key.number)
        return plan.lane(key.number % key.num_lanes)[within.start : within.stop]

    def numbers(self, key: BatchKey) -> list[int]:
        """Return the numbers, in stored order, of the rows that `rows` reads, unread."""
        plan = replace(self.plan, num_lanes=key.num_lanes)
        lane = key.number % key.num_lanes
        wanted = plan.within_lane(key.number)
        places = plan.lane(lane)
        order = self._line_order(key.epoch)
        found: list[int] = []
        row = wanted.start
        while row < wanted.stop:
            if self._seed is None:
                found.append(order.number(places[row]))
                row += 1
                continue
            number, block = block_of(len(places), max(1, key.buffer_rows // key.num_lanes), row)
            stop = min(wanted.stop, block.stop)
            taken = self._block_order(key.epoch, lane, number, len(block))[
                row - block.start : stop - block.start
            ]
            found += [order.number(places[block.start + place]) for place in taken]
            row = stop
        return found

    def at(self, place: int) -> Any:
        """Read one row by its number, in stored order."""
        # to its end, so that the next is read on from there
        (row,) = self._line(0, 0, range(place, place + 1))
        return row

    def _block(self, key: BatchKey, lane: int, number: int, places: range) -> list[Any]:
        """Read a block's rows in the order in which they are taken."""
        name = (key.epoch, lane, number, places.start, places.stop)
        if lane in self._blocks and self._blocks[lane][0] == name:
            return self._blocks[lane][1]
        # before the next is read, so that both are never there together
        self._blocks.pop(lane, None)
        rows = list(self._line(key.epoch, lane, places))
        block = [rows[place] for place in self._block_order(key.epoch, lane, number, len(rows))]
        self._blocks[lane] = (name, block)
        return block

    def _block_order(self, epoch: int, lane: int, number: int, num_rows: int) -> list[int]:
        """Draw the order in which a block's rows are taken."""
        assert self._seed is not None
        random = _random(self._seed, epoch, _BLOCK, self.plan.rank, lane, number)
        order: list[int] = random.permutation(num_rows).tolist()
        return order

    def _line_order(self, epoch: int) -> EpochOrder:
        if self._order is None or self._order[0] != epoch:
            counts = [rows for _, rows in self._groups]
            self._order = (epoch, EpochOrder(counts, seed=self._seed, epoch=epoch))
        return self._order[1]

    def _line(self, epoch: int, lane: int, places: range) -> Iterator[Any]:
        """Read the rows at some places of the epoch's line."""
        order = self._line_order(epoch)
        cursor = self._cursors.setdefault(lane, _Cursor(self._groups, self._read))
        for part in order.parts(places.start, places.stop):
            yield from cursor.rows(*part)


class _Cursor:
    """A place in one open row group."""

    def __init__(
        self, groups: Sequence[tuple[int, int]], read: Callable[[int, int], Iterator[Any]]
    ) -> None:
        self._groups = groups
        self._read = read
        self._group = -1
        self._at = 0
        self._rows: Iterator[Any] = iter(())

    def rows(self, number: int, skip: int, take: int) -> Iterator[Any]:
        """Read on to some rows of a row group, or open it anew if they lie before this place."""
        group, num_rows = self._groups[number]
        if number != self._group or skip < self._at:
            self._rows = self._read(group, skip)
            self._at = skip
        self._group = -1  # in the middle of reading, an error may come
        stop = skip + take
        num_read = 0
        for row in islice(self._rows, skip - self._at, stop - self._at):
            yield row
            num_read += 1
        if num_read < take:
            raise DataError(
                f"row group {group} of the table has fewer than the {num_rows} rows that it had"
                " when the table was opened. Leave a table alone while it is trained on, or train"
                " on a version of a Delta table."
            )
        if stop < num_rows:
            self._group = number
            self._at = stop
        else:  # close the file, and free what was read ahead
            self._rows = iter(())
