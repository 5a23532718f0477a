"""Every row of a table is in one batch of one rank, in an order that another epoch changes."""

from __future__ import annotations

import numpy as np
import pytest

from lightkit.data.tables.loader import EpochOrder, RankPlan, block_of

COUNTS = [7, 1, 12, 5, 9]
SIZES = pytest.mark.parametrize(
    ("num_rows", "batch_size"), [(34, 4), (34, 1), (3, 4), (40, 5), (1, 1)], ids=str
)


def places(order: EpochOrder) -> list[tuple[int, int]]:
    parts = order.parts(0, order.num_rows)
    return [(group, row) for group, skip, take in parts for row in range(skip, skip + take)]


def test_the_stored_order_is_kept_without_a_seed() -> None:
    assert places(EpochOrder(COUNTS)) == [
        (group, row) for group, count in enumerate(COUNTS) for row in range(count)
    ]


def test_an_epoch_has_each_row_once_in_an_order_of_its_own() -> None:
    orders = [places(EpochOrder(COUNTS, seed=3, epoch=epoch)) for epoch in range(5)]
    assert all(sorted(order) == places(EpochOrder(COUNTS)) for order in orders)
    assert len({tuple(order) for order in orders}) == 5


def test_the_same_seed_gives_the_same_order_and_another_seed_another() -> None:
    assert places(EpochOrder(COUNTS, seed=3, epoch=1)) == places(
        EpochOrder(COUNTS, seed=3, epoch=1)
    )
    assert places(EpochOrder(COUNTS, seed=3, epoch=1)) != places(
        EpochOrder(COUNTS, seed=4, epoch=1)
    )


def test_a_row_group_is_anywhere_in_the_line_equally_often() -> None:
    firsts = [places(EpochOrder([5] * 8, seed=0, epoch=epoch))[0] for epoch in range(2000)]
    groups = np.bincount([group for group, _ in firsts], minlength=8)
    rows = np.bincount([row for _, row in firsts], minlength=5)
    assert abs(groups - 250).max() < 5 * np.sqrt(250)  # five standard deviations of a count
    assert abs(rows - 400).max() < 5 * np.sqrt(400)


def test_any_stretch_of_the_line_is_that_of_the_whole() -> None:
    order = EpochOrder(COUNTS, seed=1, epoch=2)
    whole = places(order)
    for start in range(34):
        for stop in range(start, 35):
            found = [
                (group, row)
                for group, skip, take in order.parts(start, stop)
                for row in range(skip, skip + take)
            ]
            assert found == whole[start:stop]


def test_row_groups_without_a_row_of_the_split_are_passed_over() -> None:
    assert places(EpochOrder([0, 2, 0, 0, 1, 0])) == [(1, 0), (1, 1), (4, 0)]


@SIZES
@pytest.mark.parametrize("num_replicas", [1, 2, 3, 5])
@pytest.mark.parametrize("num_lanes", [1, 2, 3])
def test_ranks_lanes_and_batches_share_the_rows_without_overlap_and_without_loss(
    num_rows: int, batch_size: int, num_replicas: int, num_lanes: int
) -> None:
    seen: list[int] = []
    plans = [
        RankPlan(num_rows, batch_size, num_replicas, rank, num_lanes)
        for rank in range(num_replicas)
    ]
    assert len({plan.num_batches for plan in plans}) == 1
    for plan in plans:
        for number in range(plan.num_batches):
            within = plan.within_lane(number)
            lane = plan.lane(number % num_lanes)
            assert within.stop <= len(lane)
            seen += lane[within.start : within.stop]
    assert sorted({*seen}) == list(range(num_rows))
    # some rows are there twice where there are too few for all ranks
    rest = -num_rows % num_replicas
    assert len(seen) == num_rows + (rest if batch_size == 1 or num_rows < num_replicas else 0)


@SIZES
@pytest.mark.parametrize("num_replicas", [2, 3, 5])
def test_batches_of_all_ranks_differ_by_one_row_at_most(
    num_rows: int, batch_size: int, num_replicas: int
) -> None:
    plans = [RankPlan(num_rows, batch_size, num_replicas, rank) for rank in range(num_replicas)]
    sizes = [plan.size(number) for plan in plans for number in range(plan.num_batches)]
    assert max(sizes) <= batch_size
    assert max(sizes) - min(sizes) <= 1


def test_batches_of_a_rank_alone_are_full_but_the_last() -> None:
    plan = RankPlan(10, 4)
    assert [plan.size(number) for number in range(plan.num_batches)] == [4, 4, 2]


def test_blocks_cover_a_lane_in_equal_parts() -> None:
    for num_rows in range(1, 40):
        for block_rows in range(1, 40):
            blocks = [block_of(num_rows, block_rows, row) for row in range(num_rows)]
            assert all(row in rows for row, (_, rows) in enumerate(blocks))
            sizes = {number: len(rows) for number, rows in blocks}
            assert sorted(sizes) == list(range(-(-num_rows // block_rows)))
            assert max(sizes.values()) <= block_rows
            assert max(sizes.values()) - min(sizes.values()) <= 1
