"""What the range test computes of a training: its batches alone, and their losses as the model gave them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from pytorch_lightning import LightningDataModule, LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from lightkit.tuning.allowance import Allowance, Part
from lightkit.tuning.learning_rate import find_learning_rate

_CPU = {"accelerator": "cpu", "max_epochs": 100}


class Points(LightningDataModule):
    """So many batches of four points, and none for a validation."""

    def __init__(self, num_batches: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        points, planes = torch.randn(4 * num_batches, 8, generator=generator), torch.randn(8, 3, generator=generator)
        self.data = TensorDataset(points, (points @ planes).argmax(1))

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.data, batch_size=4, shuffle=True)

    def val_dataloader(self) -> Any:
        raise AssertionError("there is no data for a validation")


class Stream(IterableDataset[Any]):
    """The same points, of which nobody knows how many there are."""

    def __init__(self, points: TensorDataset) -> None:
        self.points = points

    def __iter__(self) -> Iterator[Any]:
        return iter(self.points)


class Streamed(Points):
    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(Stream(self.data), batch_size=4)


class Net(LightningModule):
    """One layer, which counts the batches that it has computed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)
        self.num_batches = 0

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        self.num_batches += 1
        return nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        raise AssertionError("a range test validates nothing")


class Diverging(Net):
    """Its loss grows tenfold from step to step, late enough for a curve."""

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) * 10.0 ** max(0, self.num_batches - 40)


class Even(Net):
    """Each of its losses is 1."""

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss - loss.detach() + 1.0


@pytest.fixture(params=[None, 1000.0], ids=["tune", "fit"])
def part(request: pytest.FixtureRequest) -> Part:
    """As much time as it takes, or more than enough of it."""
    return Allowance(request.param).next()


@pytest.mark.parametrize("net", [Net, Diverging], ids=["whole", "diverging"])
def test_nothing_is_validated(part: Part, net: type[Net]) -> None:
    found = find_learning_rate(net, Points(3), trainer_values=_CPU, seed=1, part=part)
    assert len(found.losses) == 100 or (net is Diverging and 30 < len(found.losses) < 50)


def test_a_step_that_comes_too_late_ends_it_without_a_validation() -> None:
    found = find_learning_rate(Net, Points(3), trainer_values=_CPU, seed=1, part=Allowance(0.0).next())
    assert "lightkit tune has more" in str(found.refused)


def test_losses_of_accumulated_batches_are_those_that_the_model_gave(part: Part) -> None:
    values = {**_CPU, "accumulate_grad_batches": 4}  # and three batches are left at the end of each epoch
    found = find_learning_rate(Even, Points(15), trainer_values=values, seed=1, part=part)
    assert found.losses == pytest.approx([1.0] * 75)
    assert len(found.rates) == 75


def test_a_step_without_a_loss_is_not_a_number() -> None:
    class Skipping(Even):
        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            return None if self.num_batches == 31 else {"loss": loss}

    found = find_learning_rate(Skipping, Points(3), trainer_values=_CPU, seed=1)
    assert found.losses[:30] == pytest.approx([1.0] * 30)
    assert math.isnan(found.losses[30])


@pytest.mark.parametrize(
    ("data", "values", "says"),
    [
        (Points(3), {}, "an epoch has fewer batches (3) than trainer.accumulate_grad_batches (4)"),
        (Points(3), {"max_epochs": -1}, "an epoch has fewer batches (3) than trainer.accumulate_grad_batches (4)"),
        (Streamed(3), {}, "an epoch has fewer batches than trainer.accumulate_grad_batches (4)"),
    ],
    ids=["counted", "endless", "uncounted"],
)
def test_an_epoch_that_fills_no_step_gives_no_rate(
    part: Part, data: LightningDataModule, values: dict[str, Any], says: str
) -> None:
    values = {**_CPU, "accumulate_grad_batches": 4, **values}
    found = find_learning_rate(Net, data, trainer_values=values, seed=1, part=part)
    assert (found.learning_rate, found.refused, found.left_out) == (None, says, ())


def test_data_without_a_length_has_as_many_steps_as_other_data(part: Part) -> None:
    assert len(find_learning_rate(Net, Streamed(3), trainer_values=_CPU, seed=1, part=part).rates) == 100


@pytest.mark.parametrize(("num_batches", "taken"), [(2, 2), (0.5, 10)], ids=["number", "part"])
def test_a_training_on_few_batches_has_its_test_on_them(num_batches: float, taken: int) -> None:
    seen: set[float] = set()

    class Noting(Net):
        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
            seen.add(float(batch[0].sum()))
            return super().training_step(batch, batch_idx)

    part, expected = Allowance(1000.0).next(), []
    part.expect = lambda batch_s, per_epoch: expected.append(per_epoch)  # type: ignore[method-assign]
    values = {**_CPU, "overfit_batches": num_batches}
    find_learning_rate(Noting, Points(20), trainer_values=values, seed=1, part=part)
    assert (expected, len(seen)) == ([20], taken)  # it is told of those of the data
