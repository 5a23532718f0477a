"""As many steps of the range test as there is time for, by a clock that the model's own steps move on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from lightkit.tuning import allowance, range_test
from lightkit.tuning.allowance import Allowance
from lightkit.tuning.learning_rate import FoundRate, find_learning_rate
from tests.tuning.planes import CPU, Net, Points

TIMED = 6
"""Steps that are timed first, where they are short."""


class Clock:
    """A clock that the steps of a model move on."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


def timed(
    monkeypatch: pytest.MonkeyPatch,
    step_s: Callable[[int], float],
    budget_s: float,
    *,
    num_batches: int | None = None,
    **values: Any,
) -> FoundRate:
    clock = Clock()
    for module in (range_test, allowance):
        monkeypatch.setattr(module, "time", clock)

    class Timed(Net):
        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
            clock.now += step_s(len(self.losses))
            return super().training_step(batch, batch_idx)

    part = Allowance(budget_s, num_steps=lambda _: num_batches).next()
    return find_learning_rate(Timed, Points(), trainer_values={**CPU, **values}, seed=1, part=part)


def test_as_many_steps_are_taken_as_there_is_time_for(monkeypatch: pytest.MonkeyPatch) -> None:
    found = timed(monkeypatch, lambda _: 1.0, budget_s=TIMED + 67.0)  # a tenth is to spare
    assert len(found.rates) == 60
    assert found.learning_rate is not None
    assert found.words.endswith("in 60 steps from 1e-07 to 1 (there was no time for 100)")
    whole = timed(monkeypatch, lambda _: 1.0, budget_s=200.0)
    assert whole == find_learning_rate(Net, Points(), trainer_values=CPU, seed=1)  # timing it changes nothing
    assert FoundRate.of_json(json.loads(json.dumps(found.as_json()))) == found


def test_no_more_than_a_share_of_the_training_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    found = timed(monkeypatch, lambda _: 1.0, budget_s=200.0, num_batches=1_240)  # 62 s, six of which time a step
    assert len(found.rates) == 50
    assert len(timed(monkeypatch, lambda _: 1.0, budget_s=200.0, num_batches=10).rates) == 40
    slower = timed(monkeypatch, lambda step: 1.0 if step < 45 else 2.0, budget_s=200.0, num_batches=1_240)
    assert len(slower.losses) == 48  # 39 steps of 1 s, and 9 of 2 s


def test_the_fewest_steps_are_taken_whatever_the_training_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = timed(monkeypatch, lambda step: 1.0 if step < 5 else 2.0, budget_s=200.0, num_batches=100)
    assert len(found.losses) == 40


def test_batches_that_are_accumulated_are_told_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    part = Allowance(1000.0).next()
    seen: list[tuple[float, int | None]] = []
    monkeypatch.setattr(part, "expect", lambda batch_s, per_epoch: seen.append((batch_s, per_epoch)))
    values = {**CPU, "accumulate_grad_batches": 4, "limit_train_batches": 12}
    clock = Clock()
    monkeypatch.setattr(range_test, "time", clock)

    class Timed(Net):
        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
            clock.now += 1.0
            return super().training_step(batch, batch_idx)

    find_learning_rate(Timed, Points(), trainer_values=values, seed=1, part=part)
    assert seen == [(1.0, 20)]  # those of the data


def test_a_slow_first_batch_is_no_pace_where_the_rest_of_an_epoch_is_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    rest: dict[str, Any] = {"accumulate_grad_batches": 4, "limit_train_batches": 6}
    found = timed(
        monkeypatch, lambda batch: 50.0 if batch == 0 else 1.0, budget_s=59.0 + 223.0, **rest
    )  # 59 s come first
    assert found.left_out == ("there was no time for 100",)
    assert len(found.rates) == 25  # of 50 steps: 200 s for four batches each; Lightning sees those of four


def test_a_first_step_that_takes_all_the_time_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found = timed(monkeypatch, lambda _: 40.0, budget_s=30.0)
    assert found.refused == "1 step was all that there was time for, and lightkit tune has more"
    assert found.left_out == ("there was no time for 100",)


def test_too_few_steps_for_a_rate_are_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    found = timed(monkeypatch, lambda _: 1.0, budget_s=30.0)
    assert found.learning_rate is None
    says = "40 steps take about 40 s, 24 s were left, and lightkit tune has more"
    assert found.words == f"no learning rate was found: {says}"
    assert found.left_out


@pytest.mark.parametrize(("slow_from", "num_steps"), [(10, 13), (50, 52)], ids=["at once", "late"])
def test_steps_that_become_slow_end_it_in_time(monkeypatch: pytest.MonkeyPatch, slow_from: int, num_steps: int) -> None:
    found = timed(monkeypatch, lambda step: 1.0 if step - TIMED < slow_from else 60.0, budget_s=160.0)
    assert found.left_out == ("there was no time for 100",)
    if slow_from == 10:
        assert found.refused == f"{num_steps} steps were all that there was time for, and lightkit tune has more"
    else:
        assert found.words.startswith(f"no learning rate was found: time ended after {num_steps} steps")
        assert len(found.losses) == num_steps


def test_a_loss_that_was_still_falling_when_time_ended_tells_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    found = timed(monkeypatch, lambda step: 1.0 if step - TIMED < 65 else 60.0, budget_s=160.0)
    assert (found.learning_rate, len(found.losses)) == (None, 67)
    assert "time ended after 67 steps, at a rate of 0.0049, and the loss had not clearly risen" in found.words


def test_a_loss_that_had_risen_when_time_ended_tells_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = find_learning_rate(Net, Points(), trainer_values=CPU, seed=1)
    found = timed(monkeypatch, lambda step: 1.0 if step - TIMED < 97 else 60.0, budget_s=160.0)
    assert found.left_out == ("there was no time for 100",)
    assert len(found.losses) == 98
    assert found.losses == whole.losses[:98]
    assert found.learning_rate == pytest.approx(whole.learning_rate, rel=0.2)  # a shorter curve is smoothed less


def test_a_batch_that_waited_is_no_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    found = timed(monkeypatch, lambda step: 1.0 if step in (1, 3) else 0.01, budget_s=21.0)
    assert (len(found.losses), found.left_out) == (100, ())


def test_batches_that_take_long_are_not_timed_often(monkeypatch: pytest.MonkeyPatch) -> None:
    found = timed(monkeypatch, lambda _: 3.0, budget_s=60.0)
    assert found.left_out == ("40 steps take about 1.2e+02 s, 51 s were left",)
