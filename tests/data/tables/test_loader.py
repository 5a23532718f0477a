"""Loaders over a table.

Each row once over ranks and workers, in an order of its own each epoch, from any batch on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from lightkit.data.loader import ResumableLoader
from lightkit.data.tables.index import Row
from lightkit.data.tables.loader import BatchKey, BatchMaker, BatchRows, TableBatches, table_loader

# torch advises against more workers than cores; here they only have to be right
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

UNEVEN = {0: 17, 1: 1, 2: 30, 3: 3, 4: 50}
STARTS = {0: 0, 1: 17, 2: 18, 3: 48, 4: 51}


def read(name: int, start: int) -> Iterator[Row]:
    for number in range(start, UNEVEN[name]):
        place = STARTS[name] + number
        yield Row(
            None, np.array([place], dtype=np.float32), float(place), None, f"{name}, row {number}"
        )


def loader_of(
    *,
    rank: int = 0,
    world_size: int = 1,
    workers: int = 0,
    seed: int | None = 5,
    groups: dict[int, int] = UNEVEN,
    batch_size: int = 8,
    buffer: int = 24,
) -> ResumableLoader:
    rows = BatchRows(
        list(groups.items()),
        read,
        batch_size=batch_size,
        num_replicas=world_size,
        rank=rank,
        seed=seed,
    )
    batches = TableBatches(rows, BatchMaker(None, row_bytes=4, are_values=True), buffer_rows=buffer)
    return table_loader(batches, seed=0, num_workers=workers)


def rows_of(batch: tuple[torch.Tensor, ...]) -> list[int]:
    return [] if len(batch) > 2 and not batch[2].any() else batch[0].flatten().int().tolist()


FEW = {(1, 0), (1, 3), (2, 1), (3, 2), (5, 0), (5, 3)}
"""Ranks and workers that are tried without the long run."""


def epochs_of(loader: ResumableLoader, num: int = 2) -> list[list[list[int]]]:
    found = []
    for epoch in range(num):
        loader.sampler.set_epoch(epoch)
        found.append([rows_of(batch) for batch in loader])
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world_size", "workers"),
    [
        pytest.param(size, workers, marks=() if (size, workers) in FEW else pytest.mark.long)
        for size in range(1, 6)
        for workers in range(4)
    ],
)
def test_each_row_is_there_exactly_once_over_ranks_and_workers(
    world_size: int, workers: int
) -> None:
    ranks = [
        epochs_of(loader_of(rank=rank, world_size=world_size, workers=workers))
        for rank in range(world_size)
    ]
    for epoch in range(2):
        assert sorted(row for rank in ranks for batch in rank[epoch] for row in batch) == list(
            range(101)
        )
        assert len({len(rank[epoch]) for rank in ranks}) == 1


@pytest.mark.parametrize("seed", [5, None], ids=["training", "evaluation"])
@pytest.mark.parametrize(
    ("world_size", "groups"), [(7, UNEVEN), (5, {1: 1, 3: 3})], ids=["groups", "rows"]
)
def test_more_ranks_than_row_groups_or_rows_get_equally_many_batches(
    seed: int | None, world_size: int, groups: dict[int, int]
) -> None:
    ranks = [
        epochs_of(loader_of(rank=r, world_size=world_size, seed=seed, groups=groups))
        for r in range(world_size)
    ]
    wanted = sorted(
        STARTS[name] + number for name, count in groups.items() for number in range(count)
    )
    for epoch in range(2):
        assert sorted({row for rank in ranks for batch in rank[epoch] for row in batch}) == wanted
        assert len({len(rank[epoch]) for rank in ranks}) == 1
        assert all(batch for rank in ranks for batch in rank[epoch])


def test_evaluation_keeps_the_stored_order() -> None:
    found = [
        row
        for rank in range(3)
        for batch in epochs_of(loader_of(rank=rank, world_size=3, seed=None), 1)[0]
        for row in batch
    ]
    assert found == list(range(101))


@pytest.mark.slow
def test_the_order_is_another_each_epoch_and_does_not_hang_on_persistent_workers() -> None:
    persistent = epochs_of(loader_of(workers=2), num=3)
    assert persistent == [epochs_of_one(epoch) for epoch in range(3)]
    assert persistent == epochs_of(loader_of(workers=2), num=3)
    assert len({tuple(row for batch in epoch for row in batch) for epoch in persistent}) == 3


def epochs_of_one(epoch: int) -> list[list[int]]:
    loader = loader_of(workers=2)  # workers of its own for each epoch
    loader.sampler.set_epoch(epoch)
    return [rows_of(batch) for batch in loader]


def test_rows_are_shuffled_between_and_within_row_groups() -> None:
    orders = [
        np.array([row for batch in epoch for row in batch])
        for epoch in epochs_of(loader_of(buffer=50), num=60)
    ]
    places = np.array([np.argsort(order) for order in orders])  # of each row in each epoch
    # 29 / sqrt(60) = 3.8 is one standard deviation of a mean
    assert np.abs(places.mean(axis=0) - 50).max() < 19
    together = np.abs(np.diff(places[:, :17], axis=1))  # of neighbours of the first row group
    assert together.mean() > 8  # in stored order 1
    apart = np.abs(places[:, 5] - places[:, 70])
    assert apart.std() > 10  # of rows of two groups


@pytest.mark.parametrize("batches", [1, 4, 12], ids=["one batch", "some", "all but one"])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_an_epoch_goes_on_at_the_right_row(batches: int, workers: int) -> None:
    whole = epochs_of(loader_of(workers=workers))
    loader = loader_of(workers=workers)
    loader.sampler.resume(epoch=0, batches=batches)
    assert epochs_of(loader) == [whole[0][batches:], whole[1]]


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 0), (0, 2)])
def test_a_resume_with_another_number_of_workers_goes_on_at_the_right_row(
    before: int, after: int
) -> None:
    was = loader_of(workers=before)
    whole = epochs_of(was, num=1)[0]
    loader = loader_of(workers=after, buffer=40)
    loader.sampler.resume(epoch=0, batches=5)
    loader.load_state_dict(was.state_dict())
    rest, following = epochs_of(loader)
    assert rest == whole[5:]
    assert following == epochs_of(loader_of(workers=after, buffer=40))[1]


def test_a_checkpoint_of_a_resumed_epoch_says_how_that_was_cut() -> None:
    loader = loader_of()
    loader.sampler.resume(epoch=0, batches=5)
    loader.load_state_dict({**loader.state_dict(), "num_lanes": 3, "shuffle_buffer": 9})
    assert loader.state_dict()["num_lanes"] == 3
    loader.sampler.set_epoch(1)
    assert (loader.state_dict()["num_lanes"], loader.state_dict()["shuffle_buffer"]) == (1, 24)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"num_samples": 90}, "num_samples was 90, is 101"),
        ({"num_processes": 2}, "num_processes was 2, is 1"),
        ({}, ""),
    ],
    ids=["rows", "processes", "nothing"],
)
def test_other_data_than_the_checkpoint_had_is_reported(
    changed: dict[str, int], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    loader = loader_of()
    with caplog.at_level(logging.WARNING, logger="lightkit.data"):
        loader.load_state_dict({**loader.state_dict(), **changed})
    assert says in caplog.text
    assert bool(caplog.text) == bool(says)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_rows_of_weight_0_are_given_also_alone_in_their_batches(workers: int) -> None:
    def weighted(name: int, start: int) -> Iterator[Row]:
        return (row._replace(weight=float(row.label or 0) % 2) for row in read(name, start))

    rows = BatchRows(list(UNEVEN.items()), weighted, batch_size=1, seed=1)
    batches = TableBatches(rows, BatchMaker(None, row_bytes=4, are_values=True), buffer_rows=24)
    loader = table_loader(batches, seed=0, num_workers=workers)
    assert sum(float(weights) for *_, weights in loader) == 50


def test_a_rank_without_a_row_has_a_batch() -> None:
    loader = loader_of(rank=0, world_size=5, groups={1: 1, 3: 3})
    assert len(list(loader)) == 1


def test_a_bare_number_is_a_batch_of_the_first_epoch() -> None:
    loader = loader_of()
    dataset = loader.dataset
    expected = dataset[BatchKey(3, 0, 1, 24)]
    assert rows_of(dataset[3]) == rows_of(expected)
    with pytest.raises(IndexError):
        dataset[13]


def test_the_position_starts_at_0_without_a_trainer() -> None:
    assert loader_of().sampler.first_batch == 0


@pytest.mark.parametrize("seed", [5, None], ids=["training", "evaluation"])
@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize(("lanes", "buffer"), [(1, 24), (3, 9), (2, 200)])
def test_the_rows_of_a_batch_are_known_by_their_stored_numbers(
    seed: int | None, world_size: int, lanes: int, buffer: int
) -> None:
    for rank in range(world_size):
        loader = loader_of(rank=rank, world_size=world_size, seed=seed)
        loader.sampler.own_cut = (lanes, buffer)
        for epoch, batches in enumerate(epochs_of(loader)):
            loader.sampler.set_epoch(epoch)
            assert [
                loader.sampler.indices_of(epoch=epoch, batch=at) for at in range(len(batches))
            ] == batches


def test_the_rows_of_a_resumed_epoch_are_known_as_it_was_cut() -> None:
    loader = loader_of()
    loader.sampler.resume(epoch=0, batches=5)
    loader.load_state_dict({**loader.state_dict(), "num_lanes": 3, "shuffle_buffer": 9})
    rest, following = epochs_of(loader)
    loader.sampler.set_epoch(1)
    assert [
        loader.sampler.indices_of(epoch=1, batch=at) for at in range(len(following))
    ] == following
    again = loader_of()
    again.sampler.resume(epoch=0, batches=5)
    again.load_state_dict({**again.state_dict(), "num_lanes": 3, "shuffle_buffer": 9})
    assert [again.sampler.indices_of(epoch=0, batch=5 + at) for at in range(len(rest))] == rest
