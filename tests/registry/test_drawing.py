from __future__ import annotations

import pytest
import torch

from lightkit.registry.logged_model import draw_samples


@pytest.mark.parametrize(
    "example",
    [torch.randn(2, 3), torch.zeros(1, 4, dtype=torch.uint8), torch.tensor([[1, 5]]), torch.tensor([[True, False]]),
     torch.zeros(0, 3)],
    ids=["floats", "bytes", "whole numbers", "booleans", "none"],
)  # fmt: skip
def test_the_example_comes_first_and_more_of_its_kind_after_it(example: torch.Tensor) -> None:
    samples = draw_samples(example, 20)
    assert samples.shape == (20, *example.shape[1:])
    assert samples.dtype == example.dtype
    assert torch.equal(samples[: len(example)], example)
    assert torch.equal(samples, draw_samples(example, 20))
    assert len(set(samples.flatten().tolist())) > 1


def test_whole_numbers_are_those_of_the_example() -> None:  # others may be beyond a table of embeddings
    assert set(draw_samples(torch.tensor([[3, 9]]), 30).flatten().tolist()) == {3, 9}


def test_fewer_samples_than_the_example_has_are_its_first() -> None:
    assert torch.equal(draw_samples(torch.arange(5.0), 2), torch.tensor([0.0, 1.0]))
