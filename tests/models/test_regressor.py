from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pytorch_lightning import Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset

from lightkit.errors import ConfigError, DataError
from lightkit.models import Regressor

Pairs = DataLoader[tuple[torch.Tensor, ...]]


def temperatures(
    num_pairs: int, *, seed: int, batch_size: int = 32, shuffle: bool = False
) -> Pairs:
    generator = torch.Generator().manual_seed(seed)
    # -40 to 248 F is -40 to 120 C
    fahrenheit = torch.rand(num_pairs, 1, generator=generator) * 288 - 40
    return DataLoader(
        TensorDataset(fahrenheit, (fahrenheit - 32) / 1.8), batch_size=batch_size, shuffle=shuffle
    )


def test_it_learns_to_convert_temperatures(make_trainer: Callable[..., Trainer]) -> None:
    seed_everything(7)
    model = Regressor()
    trainer = make_trainer(max_epochs=25)
    trainer.fit(model, temperatures(1000, seed=0, shuffle=True), temperatures(200, seed=1))
    assert trainer.callback_metrics["val/mae"] < 0.5
    freezing, boiling = model(torch.tensor([[32.0], [212.0]])).flatten().tolist()
    assert freezing == pytest.approx(0, abs=0.5)
    assert boiling == pytest.approx(100, abs=0.5)


def test_epoch_values_are_those_of_all_examples(make_trainer: Callable[..., Trainer]) -> None:
    model, loader = Regressor(), temperatures(70, seed=2)
    trainer = make_trainer()
    (values,) = trainer.test(model, loader, verbose=False)
    fahrenheit, celsius = loader.dataset[:]
    with torch.no_grad():
        gap = model(fahrenheit) - celsius
    assert values["test/mae"] == pytest.approx(float(gap.abs().mean()), rel=1e-6)
    assert values["test/mse"] == pytest.approx(float(gap.square().mean()), rel=1e-6)


@pytest.mark.parametrize("precision", ["bf16-true", "16-true"])
def test_targets_that_the_precision_rounds_are_refused(
    precision: str, make_trainer: Callable[..., Trainer]
) -> None:
    trainer = make_trainer(precision=precision)
    expected = f"trainer.precision: {precision} rounds .*Set {precision.removesuffix('true')}mixed"
    with pytest.raises(ConfigError, match=expected):
        trainer.test(Regressor(), temperatures(70, seed=2), verbose=False)


def test_scales_of_the_training_split_stay_in_the_checkpoint(
    tmp_path: Path, make_trainer: Callable[..., Trainer]
) -> None:
    model, loader = Regressor(), temperatures(64, seed=2)
    trainer = make_trainer(max_epochs=2)
    trainer.fit(model, loader)
    first = loader.dataset[:][0]
    torch.testing.assert_close(model.input_mean, first.mean(dim=0))
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    loaded = Regressor.load_from_checkpoint(tmp_path / "last.ckpt")
    assert torch.equal(loaded(first), model(first))
    fine = make_trainer(max_epochs=3)
    fine.fit(loaded, temperatures(64, seed=3), ckpt_path=tmp_path / "last.ckpt")
    assert torch.equal(loaded.input_mean, model.input_mean)


def test_a_constant_input_is_no_division_by_zero(make_trainer: Callable[..., Trainer]) -> None:
    # seven of it, divided by seven, are not quite it
    model, same = (Regressor(), torch.full((7, 1), 248.3))
    make_trainer().fit(model, DataLoader(TensorDataset(same, same), batch_size=7))
    assert (float(model.input_std), float(model.output_std)) == (1, 1)
    assert model(torch.ones(1, 1)).isfinite().all()


@pytest.mark.parametrize(
    ("inputs", "targets", "says"),
    [
        (torch.ones(4, 2), torch.ones(4, 1), r"inputs of shape \(4, 2\); expected \(batch, 1\)"),
        (torch.ones(4), torch.ones(4), r"inputs of shape \(4,\); expected \(batch, 1\)"),
        (torch.ones(4, 1), torch.ones(4, 3), r"targets of shape \(4, 3\); expected \(4, 1\)"),
    ],
    ids=["inputs", "no columns", "targets"],
)
def test_a_batch_of_another_shape_is_reported_in_words(
    make_trainer: Callable[..., Trainer], inputs: torch.Tensor, targets: torch.Tensor, says: str
) -> None:
    with pytest.raises(DataError, match=says):
        make_trainer().test(
            Regressor(), DataLoader(TensorDataset(inputs, targets), batch_size=4), verbose=False
        )


def test_predictions_need_no_targets(make_trainer: Callable[..., Trainer]) -> None:
    predictions = make_trainer().predict(Regressor(), DataLoader(torch.ones(4, 1), batch_size=3))  # type: ignore[arg-type]
    assert predictions is not None
    assert [tuple(part.shape) for part in predictions if isinstance(part, torch.Tensor)] == [
        (3, 1),
        (1, 1),
    ]


def test_sizes_below_one_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.init_args\.hidden: expected at least 1, got 0"):
        Regressor(hidden=0)


def test_importing_the_models_and_reading_arguments_loads_no_tracker_and_no_extra() -> None:
    heavy = ("mlflow", "comet_ml", "timm", "tensorboard", "pandas")
    code = (
        "import sys, lightkit.data, lightkit.loggers, lightkit.models\n"
        "from jsonargparse import ArgumentParser\n"
        "ArgumentParser().add_class_arguments(lightkit.loggers.MLflow, 'logger')\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert found.strip() == "[]"
