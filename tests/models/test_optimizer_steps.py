"""The number of steps of a training and of a schedule is that of a training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import GradientAccumulationScheduler
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from lightkit.optimizer_steps import (
    count_epoch_steps,
    count_optimizer_steps,
    count_schedule_steps,
)


class Counting(LightningModule):
    """Counts the steps of its optimizer and of its schedule, before and while they are made.

    Args:
        frequency: Of the schedule.
    """

    def __init__(self, frequency: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.frequency = frequency
        self.expected: tuple[float, int] = (0, 0)
        self.num_scheduled = 0
        self.in_epochs: list[tuple[int, int]] = []

    def on_train_start(self) -> None:
        self.expected = (
            count_optimizer_steps(self.trainer),
            count_schedule_steps(self.trainer, self.frequency),
        )

    def training_step(self, batch: Any) -> Any:
        return self.layer(batch).square().mean()

    def on_train_epoch_start(self) -> None:
        self.before = self.global_step

    def on_train_epoch_end(self) -> None:
        counted = count_epoch_steps(self.trainer, self.current_epoch)
        self.in_epochs.append((counted, self.global_step - self.before))

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        self.num_scheduled += 1
        super().lr_scheduler_step(scheduler, metric)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = LambdaLR(optimizer, lambda _: 1.0)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {
                "scheduler": schedule,
                "interval": "step",
                "frequency": self.frequency,
            },
        }


@pytest.mark.parametrize(
    ("changes", "accumulated", "frequency", "limits"),
    [
        ({}, 1, 2, {"max_epochs": 3}),
        ({}, 3, 1, {"max_epochs": 3}),
        ({}, 2, 5, {"max_epochs": 3}),
        ({}, 1, 2, {"max_epochs": -1, "max_steps": 8}),
        ({}, 1, 6, {"max_epochs": 3}),
        ({0: 4, 1: 1}, 1, 2, {"max_epochs": 3}),
        ({1: 2, 2: 3}, 1, 3, {"max_epochs": 5}),
        ({1: 2, 2: 3}, 1, 1, {"max_epochs": 5, "max_steps": 7}),
        ({7: 2}, 1, 1, {"max_epochs": 2}),
    ],
)
def test_steps_are_counted_as_they_are_made(
    changes: dict[int, int],
    accumulated: int,
    frequency: int,
    limits: dict[str, int],
    make_trainer: Callable[..., Trainer],
) -> None:
    module = Counting(frequency)
    callbacks = [GradientAccumulationScheduler(changes)] if changes else []
    trainer = make_trainer(accumulate_grad_batches=accumulated, callbacks=callbacks, **limits)
    trainer.fit(module, DataLoader(torch.ones(5, 1)))  # type: ignore[arg-type]
    expected_steps, expected_scheduled = module.expected
    assert trainer.global_step == expected_steps
    assert module.num_scheduled == expected_scheduled
    assert expected_scheduled == 0 or frequency != 6
    if "max_steps" not in limits:
        assert all(counted == made for counted, made in module.in_epochs)
