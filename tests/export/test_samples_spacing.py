"""The choice of samples, all along a split."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from lightkit.export.samples import choose_batches, space_evenly

ROWS: Any = list(range(10))


@pytest.mark.parametrize(
    ("count", "num", "chosen"),
    [(10, 3, [1, 5, 8]), (10, 1, [5]), (3, 3, [0, 1, 2]), (2, 5, [0, 1])],
    ids=["some", "one", "all", "fewer"],
)
def test_samples_are_evenly_spaced(count: int, num: int, chosen: list[int]) -> None:
    assert space_evenly(count, num) == chosen


def test_the_collation_is_the_loaders() -> None:
    found = choose_batches(
        DataLoader(ROWS, batch_size=5, collate_fn=lambda rows: torch.tensor(rows) * 2), 2
    )
    assert found is not None
    assert [batch.tolist() for batch in found[0]] == [[4, 14]]


class Reordered(DataLoader[Any]):
    """Has an order of its own."""

    def __iter__(self) -> Any:
        return iter([torch.tensor([3])])


@pytest.mark.parametrize(
    "loader",
    [
        [torch.zeros(2)],
        DataLoader(ROWS, batch_size=None),
        DataLoader(ROWS, batch_sampler=[[0, 5], [1, 6]]),
        DataLoader(
            ROWS,
            batch_sampler=type("Pairs", (BatchSampler,), {})(
                SequentialSampler(ROWS), 2, drop_last=False
            ),
        ),
        DataLoader(ROWS, sampler=[3, 1]),
        Reordered(ROWS),
    ],
    ids=["list", "whole_batches", "batches", "batch_sampler", "sampler", "iteration"],
)
def test_a_loader_that_decides_itself_is_left_alone(loader: Any) -> None:
    assert choose_batches(loader, 2) is None
