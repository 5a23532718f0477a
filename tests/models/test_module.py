from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import GradientAccumulationScheduler
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from lightkit.models import Regressor
from lightkit.models.module import parameter_groups, widen
from lightkit.optimizer_steps import count_optimizer_steps

STEPS = 10


class Rates(Callback):
    """Notes the learning rate that each step is made with."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        self.seen.append(optimizer.param_groups[0]["lr"])


def pairs(num_batches: int) -> DataLoader[tuple[torch.Tensor, torch.Tensor]]:
    return DataLoader(
        [  # type: ignore[arg-type]
            (torch.tensor([float(i)]), torch.tensor([float(i)])) for i in range(num_batches)
        ]
    )


def test_the_learning_rate_falls_along_a_cosine_over_all_epochs(
    make_trainer: Callable[..., Trainer],
) -> None:
    rates = Rates()
    make_trainer(max_epochs=2, callbacks=[rates]).fit(
        Regressor(learning_rate=0.1), pairs(STEPS // 2)
    )
    expected = [
        0.05 * (1 + torch.cos(torch.tensor(torch.pi * step / STEPS)).item())
        for step in range(STEPS)
    ]
    assert rates.seen == pytest.approx(expected, abs=1e-7)


def test_the_cosine_ends_with_the_training_where_the_accumulation_changes(
    make_trainer: Callable[..., Trainer],
) -> None:
    rates = Rates()
    # of 5 batches: 5 steps, then 3, and then 1 in each of two epochs
    schedule = GradientAccumulationScheduler({1: 2, 2: 5})
    trainer = make_trainer(max_epochs=4, callbacks=[rates, schedule])
    trainer.fit(Regressor(learning_rate=0.1), pairs(5))
    expected = [
        0.05 * (1 + torch.cos(torch.tensor(torch.pi * step / STEPS)).item())
        for step in range(STEPS)
    ]
    assert rates.seen == pytest.approx(expected, abs=1e-7)
    assert count_optimizer_steps(trainer) == STEPS
    trainer.fit_loop.epoch_loop.max_steps = 7
    assert count_optimizer_steps(trainer) == 7


class Stream(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """Pairs, of which nobody knows how many there are."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for at in range(3):
            yield torch.tensor([float(at)]), torch.tensor([float(at)])


def test_a_stream_of_unknown_length_keeps_the_learning_rate(
    make_trainer: Callable[..., Trainer],
) -> None:
    rates = Rates()
    make_trainer(max_epochs=2, callbacks=[rates]).fit(
        Regressor(learning_rate=0.1), DataLoader(Stream())
    )
    assert rates.seen == [0.1] * 6


def test_a_run_without_an_end_keeps_its_learning_rate(make_trainer: Callable[..., Trainer]) -> None:
    class Stop(Rates):
        def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
            trainer.should_stop = trainer.current_epoch == 1

    rates = Stop()
    make_trainer(max_epochs=-1, callbacks=[rates]).fit(Regressor(learning_rate=0.1), pairs(3))
    assert rates.seen == [0.1] * 6


def test_making_the_optimizer_does_not_start_the_loaders(
    make_trainer: Callable[..., Trainer],
) -> None:
    class Watch(Regressor):
        def configure_optimizers(self):  # type: ignore[no-untyped-def]
            made = super().configure_optimizers()
            assert self.trainer.fit_loop._combined_loader is None
            return made

    make_trainer().fit(Watch(), pairs(3))


def test_vectors_and_frozen_parameters_do_not_decay() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    module[0].requires_grad_(False)
    decaying, others = parameter_groups(module, weight_decay=0.1)
    assert decaying["weight_decay"] == 0.1
    assert others["weight_decay"] == 0.0
    assert [tuple(p.shape) for p in decaying["params"]] == [(2, 4)]
    assert [tuple(p.shape) for p in others["params"]] == [(4,), (4,), (2,)]


@pytest.mark.parametrize(
    ("kind", "widened"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_outputs_of_16_bits_are_widened(kind: torch.dtype, widened: torch.dtype) -> None:
    logits = torch.tensor([[1.0, 0.99609375]]).to(kind)  # which bf16 holds
    probabilities = widen(logits).softmax(dim=1)
    assert probabilities.dtype == widened
    # 1 / (1 + exp(-1 / 256)); in bf16 both are 0.5
    assert probabilities[0].tolist() == pytest.approx([0.50097656, 0.49902344], abs=1e-7)
