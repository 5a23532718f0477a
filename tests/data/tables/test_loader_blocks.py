"""Reading the rows of batches: each once, from a stream, with one block in memory."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from lightkit.data.tables.loader import BatchKey, BatchRows
from lightkit.errors import DataError

COUNTS = {0: 7, 1: 1, 2: 12, 3: 0, 4: 14}


@dataclass
class Reading:
    """Row groups whose rows are (name, number), and how often each was opened."""

    counts: dict[int, int] = field(default_factory=lambda: dict(COUNTS))
    opened: list[int] = field(default_factory=list)
    num_read: int = 0

    def __call__(self, name: int, start: int) -> Iterator[tuple[int, int]]:
        self.opened.append(name)
        for number in range(start, self.counts[name]):
            self.num_read += 1
            yield name, number


ROWS = sorted((name, number) for name, count in COUNTS.items() for number in range(count))


def keys(rows: BatchRows, *, epoch: int = 0, lanes: int = 1, buffer: int = 8) -> list[BatchKey]:
    return [BatchKey(number, epoch, lanes, buffer) for number in range(rows.plan.num_batches)]


@pytest.mark.parametrize("seed", [None, 5], ids=["stored order", "shuffled"])
@pytest.mark.parametrize("num_replicas", [1, 2, 3, 40])
@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_each_row_is_read_once(seed: int | None, num_replicas: int, lanes: int) -> None:
    found: list[tuple[int, int]] = []
    for rank in range(num_replicas):
        rows = BatchRows(
            list(COUNTS.items()),
            Reading(),
            batch_size=4,
            num_replicas=num_replicas,
            rank=rank,
            seed=seed,
        )
        found += [row for key in keys(rows, lanes=lanes) for row in rows.rows(key)]
    assert sorted({*found}) == ROWS
    # of more ranks than rows some read the same row
    assert len(found) == max(num_replicas, len(ROWS))


def test_the_stored_order_is_read_in_one_go() -> None:
    reading = Reading()
    rows = BatchRows(list(COUNTS.items()), reading, batch_size=4)
    assert [row for key in keys(rows) for row in rows.rows(key)] == ROWS
    assert reading.opened == [0, 1, 2, 4]


def test_a_shuffled_epoch_reads_each_row_group_once_but_for_the_one_where_it_begins() -> None:
    reading = Reading()
    rows = BatchRows(list(COUNTS.items()), reading, batch_size=4, seed=2)
    assert sorted(row for key in keys(rows) for row in rows.rows(key)) == ROWS
    assert len(reading.opened) <= 5


def test_any_batch_is_the_same_out_of_turn() -> None:
    rows = BatchRows(list(COUNTS.items()), Reading(), batch_size=4, seed=2)
    straight = {key: rows.rows(key) for epoch in (0, 1) for key in keys(rows, epoch=epoch, lanes=2)}
    for key in reversed(straight):
        assert rows.rows(key) == straight[key]
    other = pickle.loads(pickle.dumps(rows))  # as a worker process gets it
    key = BatchKey(5, 1, 2, 8)
    assert other.rows(key) == straight[key]


def test_no_more_is_read_ahead_than_the_buffer_holds() -> None:
    reading = Reading({0: 1000})
    rows = BatchRows([(0, 1000)], reading, batch_size=4, seed=0)
    start = next(rows._line(0, 0, range(1)))[1]  # where the ring begins
    reading.num_read = 0
    rows = BatchRows([(0, 1000)], reading, batch_size=4, seed=0)
    batch = rows.rows(BatchKey(0, 0, 1, 20))
    assert reading.num_read == 20
    assert {(number - start) % 1000 < 20 for _, number in batch} == {True}
    assert [len(block) for _, block in rows._blocks.values()] == [20]


def test_lanes_that_a_resumed_epoch_had_more_are_let_go() -> None:
    rows = BatchRows(list(COUNTS.items()), Reading(), batch_size=2, seed=0)
    for key in keys(rows, lanes=4):
        rows.rows(key)
    assert len(rows._blocks) == 4
    rows.rows(BatchKey(0, 1, 1, 8))
    assert len(rows._blocks) == len(rows._cursors) == 1


def test_rows_of_a_batch_come_from_the_whole_buffer() -> None:
    rows = BatchRows(
        [(name, 10) for name in range(10)],
        Reading(dict.fromkeys(range(10), 10)),
        batch_size=10,
        seed=1,
    )
    groups = [len({name for name, _ in rows.rows(key)}) for key in keys(rows, buffer=50)]
    assert min(groups) >= 3  # of 5 or 6 in a buffer; ten rows in stored order would be of 1 or 2
    assert sum(groups) / len(groups) > 4


def test_batches_of_a_sorted_table_with_small_row_groups_have_several_classes() -> None:
    names = range(80)  # twenty of each class
    rows = BatchRows(
        [(name, 10) for name in names], Reading(dict.fromkeys(names, 10)), batch_size=10, seed=3
    )
    classes = [
        len({name // 20 for name, _ in rows.rows(key)})
        for epoch in range(5)
        for key in keys(rows, epoch=epoch, lanes=2, buffer=160)
    ]
    assert min(classes) > 1
    assert sum(classes) / len(classes) > 3  # of ten rows out of four classes at random: 3.8


def test_a_row_group_that_has_lost_rows_is_reported() -> None:
    reading = Reading({0: 5})
    rows = BatchRows([(0, 7)], reading, batch_size=7)
    with pytest.raises(DataError, match="row group 0 of the table has fewer than the 7 rows"):
        rows.rows(BatchKey(0, 0, 1, 8))
