"""Trials of variants: what is chosen, what is refused and why, and how a rate is found."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from pytorch_lightning import LightningDataModule, LightningModule, Trainer
from torch import Tensor

import lightkit.tuning.benchmark as benchmark_module
from lightkit.callbacks.computation import Computation
from lightkit.tuning.benchmark import (
    Benchmark,
    Trial,
    Variant,
    check_losses,
    find_learning_rate,
    make_trainer,
)
from tests.tuning.examples import Pictures, Small

BASE = Variant(threads=1)
CPU: dict[str, Any] = {"accelerator": "cpu"}


class Clock:
    """A clock that steps move on: nothing depends on how busy the machine is."""

    now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


CLOCK = Clock()


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark_module, "time", CLOCK)
    monkeypatch.setattr(benchmark_module, "_ENOUGH_S", 0.0)


class Planted(Small):
    """A model that is quicker with channels_last, where it may have a fault."""

    fault = ""

    def training_step(self, batch: list[Tensor]) -> Tensor:
        loss = super().training_step(batch)
        is_last = not self.network.get_parameter("0.weight").is_contiguous()
        CLOCK.now_s += 0.01 if is_last else 0.03
        if is_last and self.fault == "raises":
            raise RuntimeError("no such kernel")
        if is_last and self.fault == "nan":
            loss = loss * math.nan
        return loss


def benchmark_of(fault: str = "", **values: Any) -> Benchmark:
    """A benchmark that has tried the baseline."""

    def build(one: Variant) -> tuple[Trainer, LightningModule, LightningDataModule]:
        model = Planted()
        model.fault = fault
        trainer = make_trainer(
            CPU, [Computation(one.memory_format, one.compile, one.tf32, one.fused)]
        )
        return trainer, model, Pictures()

    return Benchmark(build, BASE, reference=BASE, seed=0, **values)


def search(benchmark: Benchmark, *keys: str) -> None:
    changes = {"memory_format": "channels_last", "fused": True}
    for key in keys:
        benchmark.consider(**{key: changes[key]})


def test_what_is_faster_is_chosen_with_the_trial_that_it_beat() -> None:
    benchmark = benchmark_of()
    search(benchmark, "memory_format", "fused")
    assert benchmark.best.variant.memory_format == "channels_last"
    assert benchmark.gained == {"memory_format": ("channels_last", "10.0 ms a step, before 30.0")}
    assert benchmark.gain_of(benchmark.best) == pytest.approx(3)
    assert benchmark.best.losses == pytest.approx(benchmark.trials[BASE].losses, rel=1e-4)
    assert benchmark.best.batch_size == 4


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("raises", "RuntimeError: no such kernel"),
        ("nan", "its loss of step 1 is nan, float32's is"),
    ],
    ids=["raises", "nan"],
)
def test_what_is_faster_and_wrong_is_refused(fault: str, says: str) -> None:
    benchmark = benchmark_of(fault)
    search(benchmark, "memory_format")
    assert benchmark.best.variant == BASE
    refused = benchmark.trials[replace(BASE, memory_format="channels_last")].refused
    assert refused is not None
    assert refused.startswith(says)


def test_nothing_is_tried_once_the_time_is_over() -> None:
    benchmark = benchmark_of(budget_s=0.01)
    search(benchmark, "memory_format", "fused")
    assert [trial.refused for trial in benchmark.trials.values()] == [
        None,
        "the time was over",
        "the time was over",
    ]
    assert benchmark.best.variant == BASE


def test_an_error_of_the_model_ends_the_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tests.tuning.test_benchmark.BASE", replace(BASE, memory_format="channels_last")
    )
    with pytest.raises(RuntimeError, match="no such kernel"):
        benchmark_of("raises")


def test_losses_are_compared_step_by_step() -> None:
    assert check_losses([1.0, 0.9], [1.001, 1.0]) is None
    assert check_losses([1.0], []) is None
    assert (
        check_losses([1.02], [1.0])
        == "its loss of step 1 is 1.02, float32's is 1: 1% off is accepted"
    )
    assert (
        check_losses([1.0, 0.8], [1.0, 1.0])
        == "its loss of step 2 is 0.8, float32's is 1: 15% off is accepted"
    )


def test_a_gain_is_more_than_noise() -> None:
    slow, fast = Trial(BASE, times=[2.0, 2.0, 2.0]), Trial(BASE, times=[1.0, 1.0, 3.0])
    assert fast.is_faster_than(slow)
    assert not slow.is_faster_than(fast)
    assert not Trial(BASE, times=[1.9, 1.98, 3.0]).is_faster_than(slow)  # noise
    assert not Trial(BASE, times=[1.0], refused="it is wrong").is_faster_than(slow)


class Line(LightningModule):
    """A model of one weight, which learns, or has nothing to learn."""

    def __init__(self, *, can_learn: bool) -> None:
        super().__init__()
        self.weight, self.can_learn = torch.nn.Parameter(torch.zeros(())), can_learn

    def training_step(self, batch: list[Tensor]) -> Tensor:
        return (self.weight - 3).square() if self.can_learn else self.weight * 0 + 1

    def validation_step(self, batch: list[Tensor]) -> None:
        """The data has a split for it."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_a_learning_rate_is_a_tenth_of_that_of_the_least_loss() -> None:
    rate, words = find_learning_rate((make_trainer(CPU, []), Line(can_learn=True), Pictures()))
    assert rate is not None
    assert 1e-3 < rate <= 0.1
    assert words.startswith("loss 9 fell to ")


def test_there_is_no_learning_rate_where_the_loss_does_not_fall() -> None:
    assert find_learning_rate((make_trainer(CPU, []), Line(can_learn=False), Pictures()))[0] is None
