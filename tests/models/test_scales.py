"""Scales of a training split: of all its samples, whatever order, batches and loaders give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_lightning import Trainer
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler, TensorDataset

from lightkit.errors import DataError
from lightkit.models import Regressor
from lightkit.models.scales import RunningScale

GENERATOR = np.random.default_rng(5)
X = (GENERATOR.normal(size=(61, 2)) * [1e-3, 40] + [1e4, -3]).astype(np.float32)
Y = (X @ np.array([[900.0], [0.5]]) + GENERATOR.normal(size=(61, 1))).astype(np.float32)
W = GENERATOR.integers(0, 3, 61).astype(np.float32)


class Stream(IterableDataset[Any]):
    """The samples as a stream without a length."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        yield from zip(*map(torch.from_numpy, (X, Y, W)), strict=True)


def loaders() -> dict[str, DataLoader[Any]]:
    """Loaders of the same samples."""
    dataset = TensorDataset(*map(torch.from_numpy, (X, Y, W)))
    return {
        "in order": DataLoader(dataset, batch_size=8),
        "shuffled": DataLoader(dataset, batch_size=4, shuffle=True),
        "dropping": DataLoader(dataset, batch_size=25, shuffle=True, drop_last=True),
        "sampler of one's own": DataLoader(
            dataset, batch_size=8, sampler=SubsetRandomSampler(range(61))
        ),
        "stream": DataLoader(Stream(), batch_size=8),
    }


def fit(loader: Any, **more: Any) -> Regressor:
    """Train for a step."""
    model = Regressor(num_inputs=2)
    trainer = Trainer(
        max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False, **more,
    )  # fmt: skip
    trainer.fit(model, loader)
    return model


@pytest.mark.parametrize("name", [*loaders()])
def test_scales_are_those_of_all_rows_that_count(name: str) -> None:
    model, counts = fit(loaders()[name]), W > 0
    for buffer, expected in (
        (model.input_mean, X[counts].mean(0, dtype=np.float64)),
        (model.input_std, X[counts].astype(np.float64).std(0)),
        (model.output_mean, Y[counts].mean(0, dtype=np.float64)),
        (model.output_std, Y[counts].astype(np.float64).std(0)),
    ):
        np.testing.assert_allclose(buffer.numpy(), expected.astype(np.float32), rtol=1e-7)
    assert model.metric_units["loss"] == pytest.approx(
        [float(Y[counts].astype(np.float64).std()) ** 2], rel=1e-6
    )


def test_measuring_changes_no_random_number_of_the_training() -> None:
    class Draws(Regressor):
        """Notes a random number in its first step."""

        def training_step(self, batch: Any) -> Tensor:
            self.drawn = torch.rand(())
            return super().training_step(batch)

    def draw(*, is_scaled: bool) -> float:
        torch.manual_seed(3)
        model = Draws(num_inputs=2)
        model.is_scaled.fill_(is_scaled)
        trainer = Trainer(max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                          enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
        trainer.fit(model, loaders()["shuffled"])
        return float(model.drawn)

    assert draw(is_scaled=True) == draw(is_scaled=False)


@pytest.mark.parametrize(
    "sizes", [[61], [1] * 61, [7, 30, 24], [60, 1]], ids=["whole", "single", "uneven", "last alone"]
)
def test_batches_of_any_size_give_the_same_scale(sizes: list[int]) -> None:
    scale = RunningScale(2)
    parts, weights_of_parts = (torch.split(torch.from_numpy(each), sizes) for each in (X, W))
    for part, weights in zip(parts, weights_of_parts, strict=True):
        scale.add(part, weights)
    mean, std = scale.compute()
    np.testing.assert_allclose(mean.numpy(), X[W > 0].mean(0, dtype=np.float64), rtol=1e-14)
    np.testing.assert_allclose(std.numpy(), X[W > 0].astype(np.float64).std(0), rtol=1e-10)


def test_values_that_are_not_finite_count_for_nothing_and_a_constant_has_a_scale_of_one() -> None:
    scale = RunningScale(2)
    scale.add(torch.tensor([[float("nan"), 7.1], [2.0, 7.1], [float("inf"), 7.1]]), None)
    scale.add(torch.tensor([[4.0, 7.1]]), None)
    mean, std = scale.compute()
    assert mean.tolist() == [3.0, pytest.approx(7.1)]
    assert std.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("factor", [1e-9, 1.0, 1e12], ids=str)
def test_a_column_of_any_size_has_its_own_deviation(factor: float) -> None:
    values = np.random.default_rng(1).normal(2, 1, (40, 1)) * factor
    constant = np.full((40, 1), 0.1 * factor)
    scale = RunningScale(2)
    for part in np.split(np.concatenate([values, constant], axis=1), 5):
        scale.add(torch.from_numpy(part), None)
    mean, std = scale.compute()
    assert mean.tolist() == pytest.approx([values.mean(), 0.1 * factor], rel=1e-12)
    assert std.tolist() == pytest.approx([values.std(), 1.0], rel=1e-12)


def test_a_split_without_a_row_that_counts_is_an_error() -> None:
    scale = RunningScale(1)
    scale.add(torch.ones(3, 1), torch.zeros(3))
    with pytest.raises(DataError, match="no row that counts"):
        scale.compute()


def test_shapes_are_checked_before_anything_is_measured() -> None:
    wrong = DataLoader(TensorDataset(torch.zeros(4, 3), torch.zeros(4, 1)), batch_size=2)
    with pytest.raises(DataError, match=r"inputs of shape \(2, 3\)"):
        fit(wrong)
