"""Models and data as the documentation of LightningCLI has them, of one linear layer each."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.cli import LRSchedulerCallable, OptimizerCallable, instantiate_class
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

__all__ = [
    "Dots",
    "FewDots",
    "InjectedModel",
    "LinearModel",
    "ManyPoints",
    "NestedModel",
    "OtherModel",
    "RivalsModel",
    "ShapedModel",
    "linear_model",
]


class LinearModel(pl.LightningModule):
    """A linear model of three inputs.

    Args:
        learning_rate: Of its own optimizer.
        width: Number of outputs that are averaged.
        note: Any text.
    """

    def __init__(self, learning_rate: float = 0.02, width: int = 2, note: str = "plain") -> None:
        super().__init__()
        self.save_hyperparameters()
        self.learning_rate = learning_rate
        self.layer = nn.Linear(3, width)

    def loss(self, batch: list[Tensor]) -> Tensor:
        """Mean squared error of the averaged outputs."""
        return nn.functional.mse_loss(self.layer(batch[0]).mean(1, keepdim=True), batch[1])

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        """Give the loss."""
        return self.loss(batch)

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        """Log the loss."""
        self.log("val_loss", self.loss(batch))

    def test_step(self, batch: list[Tensor], index: int) -> None:
        """Log the loss."""
        self.log("test_loss", self.loss(batch))

    def predict_step(self, batch: list[Tensor], index: int) -> Tensor:
        """Give the averaged outputs."""
        outputs: Tensor = self.layer(batch[0])
        return outputs.mean(1)

    def configure_optimizers(self) -> Any:
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=self.learning_rate)


class OtherModel(LinearModel):
    """Another model, with another argument."""

    def __init__(self, depth: int = 1, note: str = "other") -> None:
        super().__init__(width=depth + 1, note=note)
        self.save_hyperparameters()


class ShapedModel(LinearModel):
    """A model that must be told what its data is like."""

    def __init__(self, num_classes: int, batch_size: int = 4) -> None:
        super().__init__(width=num_classes)
        self.save_hyperparameters()


class InjectedModel(LinearModel):
    """A model that is given how to build its optimizer and schedule."""

    def __init__(
        self,
        optimizer: OptimizerCallable = torch.optim.Adam,
        scheduler: LRSchedulerCallable = torch.optim.lr_scheduler.ConstantLR,
    ) -> None:
        super().__init__()
        self.optimizer, self.scheduler = optimizer, scheduler

    def configure_optimizers(self) -> Any:
        """Build what was given."""
        optimizer = self.optimizer(self.parameters())
        return {
            "optimizer": optimizer,
            "lr_scheduler": self.scheduler(optimizer),
            "monitor": "val_loss",
        }


class NestedModel(InjectedModel):
    """A model with a part that is a class of its own and a default that is a function."""

    def __init__(
        self,
        head: nn.Module,
        optimizer: OptimizerCallable = lambda params: torch.optim.SGD(
            params, lr=0.25, momentum=0.5
        ),
    ) -> None:
        super().__init__(optimizer)
        self.head = head


class RivalsModel(LinearModel):
    """A model of two optimizers, which come as descriptions."""

    def __init__(
        self, first: dict[str, Any], second: dict[str, Any], schedule: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.first, self.second, self.schedule = first, second, schedule

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        """Take a step with each."""
        loss = self.loss(batch)
        for optimizer in self.optimizers():  # type: ignore[union-attr]
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in self.optimizers():  # type: ignore[union-attr]
            optimizer.step()
        return loss

    def configure_optimizers(self) -> Any:
        """Build both from their descriptions."""
        first = instantiate_class([self.layer.weight], self.first)
        second = instantiate_class([self.layer.bias], self.second)
        schedules = [] if self.schedule is None else [instantiate_class(first, self.schedule)]
        return [first, second], schedules


def linear_model(width: int = 3) -> LinearModel:
    """A function that builds a model.

    Args:
        width: Number of outputs.
    """
    return LinearModel(width=width, note="built")


class Dots(pl.LightningDataModule):
    """Dots on a plane.

    Args:
        batch_size: Dots in a batch.
        count: Number of points.
    """

    def __init__(self, batch_size: int = 4, count: int = 8) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.batch_size, self.count = batch_size, count
        self.num_classes = 5

    def loader(self) -> DataLoader[tuple[Tensor, ...]]:
        """The same points each time."""
        x = torch.randn(self.count, 3, generator=torch.Generator().manual_seed(3))
        return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=self.batch_size)

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """All points."""
        return self.loader()

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader


class FewDots(Dots):
    """Four points."""

    def __init__(self, batch_size: int = 2) -> None:
        super().__init__(batch_size, count=4)


class ManyPoints(Dots):
    """As many points as wanted."""

    def __init__(self, count: int = 32) -> None:
        super().__init__(count=count)
