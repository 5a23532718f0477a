"""Fahrenheit to Celsius."""

from __future__ import annotations

import pytest
import torch

from lightkit.data import ResumableSampler, TemperatureDataset, Temperatures
from lightkit.errors import ConfigError


def test_pairs_are_the_same_temperature() -> None:
    data = TemperatureDataset(num_samples=500)
    fahrenheit, celsius = (
        torch.stack(column) for column in zip(*(data[i] for i in range(len(data))), strict=True)
    )
    torch.testing.assert_close(celsius, (fahrenheit - 32) / 1.8)
    assert fahrenheit.shape == (500, 1)
    assert fahrenheit.dtype == celsius.dtype == torch.float32
    assert -100 <= fahrenheit.min() < -80
    assert 280 < fahrenheit.max() <= 300


def test_noise_has_the_size_that_was_asked_for() -> None:
    data = TemperatureDataset(num_samples=5000, noise=2.0)
    assert (data.celsius - (data.fahrenheit - 32) / 1.8).std().item() == pytest.approx(
        2.0, rel=0.05
    )


def test_the_splits_are_different_and_the_same_each_time() -> None:
    one, two = Temperatures(seed=1), Temperatures(seed=1)
    one.setup("fit")
    two.setup("fit")
    assert one.describe() == two.describe() != Temperatures(seed=2).describe()
    assert one.describe()["counts"] == {"train": 1000, "val": 250, "test": 250}
    starts = {split: data.fahrenheit[0].item() for split, data in one.datasets.items()}
    assert len(set(starts.values())) == 3


def test_batches_resume_and_have_two_columns() -> None:
    data = Temperatures(num_samples=10, batch_size=4)
    data.setup("fit")
    assert isinstance(data.train_dataloader().sampler, ResumableSampler)
    assert [tuple(fahrenheit.shape) for fahrenheit, _ in data.train_dataloader()] == [
        (4, 1),
        (4, 1),
        (2, 1),
    ]
    for loader in (data.val_dataloader(), data.test_dataloader(), data.predict_dataloader()):
        fahrenheit, celsius = next(iter(loader))
        assert fahrenheit.shape == celsius.shape
    assert data.predict_paths == [
        f"{value:.2f} °F" for value in data.datasets["test"].fahrenheit.flatten().tolist()
    ]


@pytest.mark.parametrize(
    ("options", "says"), [({"num_samples": 0}, "num_samples"), ({"noise": -1.0}, "noise")]
)
def test_impossible_settings_are_refused(options: dict[str, float], says: str) -> None:
    with pytest.raises(ConfigError, match=rf"data\.init_args\.{says}"):
        TemperatureDataset(**options)  # type: ignore[arg-type]
