"""The learning rate follows the number of ranks, once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import GradientAccumulationScheduler, LearningRateFinder
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    CyclicLR,
    ExponentialLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from torch.utils.data import DataLoader, TensorDataset

from lightkit.callbacks.recorder import learning_rates
from lightkit.distributed import ScaledLearningRate
from lightkit.errors import ConfigError

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "devices": 1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
Schedule = Callable[[Optimizer], Any]


class Line(LightningModule):
    """Notes the rate that each step is taken with, and the one that its schedule says."""

    def __init__(
        self, schedule: Schedule | None = None, *, lr: Any = 0.1, fails_at: int | None = None
    ) -> None:
        super().__init__()
        self.layer, self.schedule, self.lr, self.fails_at = (
            torch.nn.Linear(2, 1),
            schedule,
            lr,
            fails_at,
        )
        self.taken: list[float] = []
        self.said: list[float] = []

    def training_step(self, batch: Any, index: int) -> Any:
        if self.global_step == self.fails_at:
            raise ValueError("batches are out of stock")
        self.said.append(float(self.trainer.optimizers[0].param_groups[0]["lr"]))
        self.log("x", 1.0)
        return self.layer(batch[0]).pow(2).mean()

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        super().lr_scheduler_step(scheduler, metric)

    def configure_optimizers(self) -> Any:
        optimizer = SGD(self.parameters(), lr=self.lr, momentum=0.9)
        if self.schedule is None:
            return optimizer
        scheduler = {
            "scheduler": self.schedule(optimizer),
            "interval": "step",
            "monitor": "x",
            "strict": False,
        }
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


class Noting(Callback):
    """Reads the rate at the moment of the update, after the closure."""

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        optimizer = trainer.optimizers[0]
        adjust = optimizer._init_group  # type: ignore[attr-defined]

        def noting(*args: Any) -> Any:
            pl_module.taken.append(float(optimizer.param_groups[0]["lr"]))
            return adjust(*args)

        optimizer._init_group = noting  # type: ignore[attr-defined]


def fitted(
    module: Line,
    ranks: int = 2,
    *,
    warmup_epochs: float = 0,
    max_steps: int = 8,
    ckpt_path: Path | None = None,
    scaled: bool = True,
    more: Sequence[Callback] = (),
) -> Trainer:
    callbacks = [*([ScaledLearningRate(warmup_epochs)] if scaled else []), Noting(), *more]
    trainer = Trainer(**QUIET, callbacks=callbacks, max_steps=max_steps, max_epochs=-1)
    data = DataLoader(TensorDataset(torch.ones(16, 2)), batch_size=4)  # four steps an epoch
    with mock.patch.object(Trainer, "world_size", ranks):
        trainer.fit(module, data, ckpt_path=ckpt_path)
    return trainer


def rates(
    schedule: Schedule | None = None, lr: float = 0.1, ranks: int = 2, **settings: Any
) -> list[float]:
    module = Line(schedule, lr=lr)
    fitted(module, ranks, **settings)
    return module.taken


def test_the_rate_is_multiplied_by_the_number_of_ranks() -> None:
    assert rates(ranks=3) == pytest.approx([0.3] * 8)
    assert rates(ranks=1) == [0.1] * 8


SCHEDULES: dict[str, tuple[Schedule, Schedule]] = {
    "step": (lambda o: StepLR(o, 2, 0.5),) * 2,
    "exponential": (lambda o: ExponentialLR(o, 0.9),) * 2,
    "cosine": (lambda o: CosineAnnealingLR(o, 8),) * 2,
    "one_cycle": (lambda o: OneCycleLR(o, 0.5, 9), lambda o: OneCycleLR(o, 1.0, 9)),
    "cyclic": (lambda o: CyclicLR(o, 0.1, 0.5, 3), lambda o: CyclicLR(o, 0.2, 1.0, 3)),
    "chained": (lambda o: ChainedScheduler([LinearLR(o, 0.5), StepLR(o, 3)]),) * 2,
    "sequential": (
        (
            lambda o: SequentialLR(
                o, [LinearLR(o, 0.5, total_iters=3), CosineAnnealingLR(o, 5)], [3]
            ),
        )
        * 2
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_is_the_one_of_twice_the_rate(name: str) -> None:
    schedule, twice = SCHEDULES[name]
    assert rates(schedule) == pytest.approx(rates(twice, lr=0.2, scaled=False), rel=1e-6)


def test_a_plateau_lowers_the_scaled_rate() -> None:
    plateau = rates(lambda o: ReduceLROnPlateau(o, patience=1))
    assert plateau == pytest.approx([0.2] * 3 + [0.02] * 2 + [0.002] * 2 + [0.0002])


def test_the_warm_up_rises_evenly_from_the_base_rate() -> None:
    assert rates(warmup_epochs=1.5) == pytest.approx(
        [0.1 + 0.1 * min(step / 6, 1) for step in range(8)]
    )


def test_the_warm_up_rises_evenly_where_the_accumulation_changes() -> None:
    # two steps in the first epoch, and four in the second
    changing = GradientAccumulationScheduler({0: 2, 1: 1})
    assert rates(warmup_epochs=2, more=[changing]) == pytest.approx(
        [0.1 + 0.1 * min(step / 6, 1) for step in range(8)]
    )


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_do_not_see_the_warm_up(name: str) -> None:
    warm, cold = Line(SCHEDULES[name][0]), Line(SCHEDULES[name][0])
    fitted(warm, warmup_epochs=1)
    fitted(cold)
    assert warm.taken == pytest.approx(
        [rate * (0.5 + 0.5 * min(s / 4, 1)) for s, rate in enumerate(cold.said)]
    )


@pytest.mark.parametrize("name", ["none", *SCHEDULES])
@pytest.mark.parametrize("warmup_epochs", [0, 1.5])
def test_a_resumed_run_goes_on_exactly(name: str, warmup_epochs: float, tmp_path: Path) -> None:
    schedule = SCHEDULES[name][0] if name in SCHEDULES else None
    straight, first, second = Line(schedule), Line(schedule), Line(schedule)
    fitted(straight, warmup_epochs=warmup_epochs)
    fitted(first, warmup_epochs=warmup_epochs, max_steps=4).save_checkpoint(tmp_path / "a.ckpt")
    fitted(second, warmup_epochs=warmup_epochs, ckpt_path=tmp_path / "a.ckpt")
    assert first.taken + second.taken == straight.taken


@pytest.mark.parametrize("name", ["none", "step", "cosine"])
def test_a_run_resumed_on_more_ranks_is_scaled_to_them(name: str, tmp_path: Path) -> None:
    schedule = SCHEDULES[name][0] if name in SCHEDULES else None
    four, first, second = Line(schedule), Line(schedule), Line(schedule)
    fitted(four, 4)
    fitted(first, 2, max_steps=4).save_checkpoint(tmp_path / "a.ckpt")
    fitted(second, 4, ckpt_path=tmp_path / "a.ckpt")
    assert second.taken == pytest.approx(four.taken[4:])


class LateLine(Line):
    def __init__(self) -> None:
        super().__init__()
        self.late = torch.nn.Parameter(torch.ones(1))

    def configure_optimizers(self) -> Any:
        return SGD(self.layer.parameters(), lr=self.lr, momentum=0.9)


class Unfreeze(Callback):
    """Adds a group at the third step, with a rate of its own."""

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == 2 and len(trainer.optimizers[0].param_groups) == 1:
            trainer.optimizers[0].add_param_group({"params": [pl_module.late], "lr": 0.05})

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.ckpt_path:  # as BaseFinetuning does for what is frozen no more
            trainer.optimizers[0].add_param_group({"params": [pl_module.late], "lr": 0.0})


def test_a_group_that_is_added_later_keeps_its_rate(tmp_path: Path) -> None:
    first, second = LateLine(), LateLine()
    begun = fitted(first, 2, max_steps=4, more=[Unfreeze()])
    assert [group["lr"] for group in begun.optimizers[0].param_groups] == pytest.approx([0.2, 0.05])
    begun.save_checkpoint(tmp_path / "a.ckpt")
    resumed = fitted(second, 2, ckpt_path=tmp_path / "a.ckpt", more=[Unfreeze()])
    assert [group["lr"] for group in resumed.optimizers[0].param_groups] == pytest.approx(
        [0.2, 0.05]
    )


def test_a_finder_of_rates_does_not_go_together() -> None:
    with pytest.raises(ConfigError, match="would scale the rate that LearningRateFinder finds"):
        fitted(Line(), more=[LearningRateFinder()])


def test_the_rate_that_is_reported_is_the_one_of_the_next_step() -> None:
    rates: list[float] = []

    class RecordRate(Callback):
        def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
            rates.append(learning_rates(trainer)["lr"])

    module = Line(SCHEDULES["step"][0])
    fitted(module, warmup_epochs=1, more=[RecordRate()])
    assert rates == pytest.approx(module.taken)


def test_a_failure_within_a_step_leaves_the_rate_of_the_schedule() -> None:
    module = Line(fails_at=2)
    with pytest.raises(ValueError, match="out of stock"):
        fitted(module, warmup_epochs=1)
    assert [group["lr"] for group in module.trainer.optimizers[0].param_groups] == [0.2]


def test_a_tensor_keeps_being_the_one_that_the_optimizer_reads() -> None:
    rate = torch.tensor(0.1)
    trainer = fitted(Line(lr=rate), warmup_epochs=1)
    assert trainer.optimizers[0].param_groups[0]["lr"] is rate
    assert float(rate) == pytest.approx(0.2)


class Foreign:
    """A schedule that keeps its rates where nobody finds them."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def step(self, *_: Any) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None: ...


def test_a_schedule_without_known_rates_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cannot find the rates of .*Foreign"):
        rates(Foreign)


def test_a_warm_up_needs_to_know_the_length_of_an_epoch() -> None:
    class Endless(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter([torch.ones(2)])

    trainer = Trainer(**QUIET, callbacks=[ScaledLearningRate(1)], max_steps=1)
    with (
        mock.patch.object(Trainer, "world_size", 2),
        pytest.raises(ConfigError, match="the training data has no length"),
    ):
        trainer.fit(Line(), DataLoader(Endless()))


def test_a_negative_warm_up_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected 0 or more, got -1"):
        ScaledLearningRate(-1)
