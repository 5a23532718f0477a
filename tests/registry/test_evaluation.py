"""The batches of a gate: all samples, in one order, at each pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from lightkit.registry.evaluation import FixedOrderLoader


def loader(count: int = 10, **more: Any) -> DataLoader[Any]:
    """Numbers with their remainder by three as the label."""
    numbers = torch.arange(count)
    return DataLoader(TensorDataset(numbers.float(), numbers % 3), batch_size=4, **more)


def numbers_of(passes: FixedOrderLoader) -> list[float]:
    """The inputs of a pass."""
    return [number for batch in passes for number in batch[0].tolist()]


@pytest.mark.parametrize("more",
                         [{}, {"shuffle": True}, {"drop_last": True},
                          {"shuffle": True, "drop_last": True}],
                         ids=["plain", "shuffled", "dropping", "both"])  # fmt: skip
def test_no_sample_is_lost_and_the_order_stays(more: dict[str, Any]) -> None:
    passes = FixedOrderLoader(loader(**more))
    first, second = numbers_of(passes), numbers_of(passes)
    assert first == second == [float(number) for number in range(10)]
    assert passes.num_samples == 10


def test_the_digest_is_of_the_samples_and_not_of_the_batches() -> None:
    def digest(batches: list[Any]) -> tuple[str, str]:
        passes = FixedOrderLoader(batches)
        assert len(list(passes)) == len(batches)
        return passes.digest, passes.labels_digest

    x, y = torch.arange(6.0), torch.arange(6)
    assert digest([[x, y]]) == digest([[x, y]])
    assert digest([[x, y]])[0] != digest([[x + 1, y]])[0]
    assert digest([[x, y]])[1] == digest([[x + 1, y]])[1]
    assert digest([[x, y]])[1] != digest([[x, y + 1]])[1]


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        ([torch.zeros(3, 2), torch.zeros(3)], 3),
        (torch.zeros(4, 2), 4),
        ({"image": torch.zeros(5, 2), "label": torch.zeros(5)}, 5),
        ([[torch.zeros(2, 2)], "text"], 2),
    ],
    ids=["pair", "alone", "mapping", "nested"],
)
def test_samples_are_counted_in_any_form(batch: Any, count: int) -> None:
    passes = FixedOrderLoader([batch])
    assert len(list(passes)) == 1
    assert passes.num_samples == count
