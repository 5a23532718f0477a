"""The moving average of the weights: its values by hand, its start, and a training that goes on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import Callback, LightningModule
from pytorch_lightning.callbacks import ModelCheckpoint, ModelPruning
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightkit.callbacks import EMA
from lightkit.errors import ConfigError
from tests.trainers import quiet_trainer


class Line(LightningModule):
    """A line through points, with a BatchNorm and a count of its batches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.norm = nn.BatchNorm1d(2)
        self.layer = nn.Linear(2, 1)
        self.scored: list[Tensor] = []

    def forward(self, batch: Tensor) -> Tensor:
        outputs: Tensor = self.layer(self.norm(batch))
        return outputs

    def training_step(self, batch: Any) -> Tensor:
        errors: Tensor = self(batch[0]) - batch[0].sum(1, keepdim=True)
        return errors.square().mean()

    def validation_step(self, batch: Any) -> None:
        self.scored.append(self.layer.weight.detach().clone())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


class Watch(Callback):
    """Keeps the weights after each step."""

    def __init__(self) -> None:
        self.weights: list[Tensor] = []
        self.means: list[Tensor] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self.weights.append(pl_module.layer.weight.detach().clone())
        self.means.append(pl_module.norm.running_mean.clone())


def points() -> DataLoader[Any]:
    values = torch.randn(24, 2, generator=torch.Generator().manual_seed(0)) + 1
    return DataLoader(TensorDataset(values), batch_size=4)


def fit(folder: Path, ema: EMA, *callbacks: Callback, max_epochs: int = 2, **options: Any) -> Line:
    module = Line()
    trainer = quiet_trainer(
        folder,
        callbacks=[ema, *callbacks],
        max_epochs=max_epochs,
        enable_checkpointing=True,
        **options,
    )
    trainer.fit(module, points(), points())
    return module


def average(values: list[Tensor], *, decay: float) -> Tensor:
    """The moving average by hand."""
    found = values[0].double()
    for num, value in enumerate(values[1:], 1):
        kept = min(decay, (1 + num) / (10 + num))
        found = kept * found + (1 - kept) * value.double()
    return found.float()


@pytest.mark.parametrize("decay", [0.999, 0.5])
def test_the_average_is_that_of_the_formula_in_validation_checkpoint_and_model(
    decay: float, tmp_path: Path
) -> None:
    watch = Watch()
    keeper = ModelCheckpoint(tmp_path, filename="last")
    module = fit(tmp_path, EMA(decay=decay), watch, keeper)
    expected = average(watch.weights, decay=decay)
    torch.testing.assert_close(module.layer.weight.detach(), expected)
    torch.testing.assert_close(module.norm.running_mean, average(watch.means, decay=decay))
    assert module.norm.num_batches_tracked == 12
    torch.testing.assert_close(module.scored[-1], expected)
    saved = torch.load(keeper.best_model_path, weights_only=True)
    torch.testing.assert_close(saved["state_dict"]["layer.weight"], expected)
    torch.testing.assert_close(saved["current_model_state"]["layer.weight"], watch.weights[-1])


class Pair(Line):
    """The same line, of which two optimizers train a part each: two steps a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any) -> None:  # type: ignore[override]
        optimizers: Any = self.optimizers()
        loss = super().training_step(batch)
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in optimizers:
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(part.parameters(), lr=0.05) for part in (self.norm, self.layer)]


@pytest.mark.parametrize(
    ("every", "batches"), [(2, range(12)), (3, [0, 1, 3, 4, 6, 7, 9, 10]), (4, range(0, 12, 2))]
)
def test_the_average_is_updated_where_each_batch_has_the_steps_of_two_optimizers(
    every: int, batches: Sequence[int], tmp_path: Path
) -> None:
    """Of the steps from 0 to 23, two a batch, those that the number divides are due."""
    watch = Watch()
    module = Pair()
    trainer = quiet_trainer(
        tmp_path, callbacks=[EMA(update_every_n_steps=every), watch], max_epochs=2
    )
    trainer.fit(module, points(), points())
    expected = average([watch.weights[at] for at in batches], decay=0.999)
    torch.testing.assert_close(module.layer.weight.detach(), expected)


def test_a_start_is_counted_in_the_steps_of_two_optimizers(tmp_path: Path) -> None:
    """The training has 12 batches and 24 steps."""
    watch = Watch()
    module = Pair()
    callbacks = [EMA(update_starting_at_step=20), watch]
    trainer = quiet_trainer(tmp_path, callbacks=callbacks, max_epochs=2)
    trainer.fit(module, points(), points())
    expected = average(watch.weights[10:], decay=0.999)
    torch.testing.assert_close(module.layer.weight.detach(), expected)


def test_the_average_follows_the_weights_until_its_start(tmp_path: Path) -> None:
    watch = Watch()
    module = fit(tmp_path, EMA(update_starting_at_epoch=1), watch, num_sanity_val_steps=0)
    # the validation before the start
    torch.testing.assert_close(module.scored[0], watch.weights[5])
    torch.testing.assert_close(
        module.layer.weight.detach(), average(watch.weights[6:], decay=0.999)
    )


def test_every_second_step_counts_where_that_is_asked_for(tmp_path: Path) -> None:
    watch = Watch()
    module = fit(tmp_path, EMA(update_every_n_steps=2, update_starting_at_step=3), watch)
    torch.testing.assert_close(
        module.layer.weight.detach(), average(watch.weights[4::2], decay=0.999)
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"update_starting_at_step": 12}, "12 steps are never over, as the training has 12"),
        ({"update_starting_at_epoch": 2}, "2 epochs are never over, as trainer.max_epochs is 2"),
    ],
)
def test_a_start_that_is_never_reached_is_refused(
    options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        fit(tmp_path, EMA(**options))


@pytest.mark.parametrize(
    ("name", "value"), [("decay", 1.0), ("decay", -0.1), ("update_every_n_steps", 0)]
)
def test_numbers_out_of_bounds_are_refused(name: str, value: float, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=name):
        EMA(**{name: value})  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:The dirpath has changed:UserWarning")
@pytest.mark.parametrize(
    "options", [{}, {"update_starting_at_step": 9}], ids=["begun", "not begun"]
)
def test_a_training_that_goes_on_has_the_same_average_to_the_bit(
    options: dict[str, Any], tmp_path: Path
) -> None:
    whole = fit(tmp_path / "whole", EMA(**options))
    first = quiet_trainer(
        tmp_path / "part",
        callbacks=[
            EMA(**options),
            ModelCheckpoint(tmp_path / "part", filename="at-{epoch}", save_top_k=-1),
        ],
        max_epochs=2,
        enable_checkpointing=True,
    )
    first.fit(Line(), points(), points())
    path = next((tmp_path / "part").glob("at-epoch=0*.ckpt"))
    resumed = Line()
    trainer = quiet_trainer(
        tmp_path / "resumed", callbacks=[EMA(**options)], max_epochs=2, enable_checkpointing=True
    )
    trainer.fit(resumed, points(), points(), ckpt_path=path)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_an_average_of_pruned_weights_is_refused(tmp_path: Path) -> None:
    data = DataLoader(TensorDataset(torch.ones(4, 2)), batch_size=2)
    callbacks = [EMA(), ModelPruning("l1_unstructured", amount=0.3)]
    trainer = quiet_trainer(tmp_path, max_epochs=1, callbacks=callbacks)
    with pytest.raises(
        ConfigError, match=r"callbacks\.ema: it cannot be together with callbacks\.pruning"
    ):
        trainer.fit(Line(), data, data)
