"""How searches share the seconds, and a share of the training; and when there is more time than there was."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from lightkit.tuning import allowance
from lightkit.tuning.allowance import Allowance, Part


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(allowance, "time", clock := Clock())
    return clock


def _then(part: Part) -> dict[str, Any]:
    then: dict[str, Any] = json.loads(json.dumps(part.as_json()))
    return then


def test_each_search_has_an_equal_part_of_what_those_before_it_have_left(clock: Clock) -> None:
    shared = Allowance(30.0, num_searches=3)
    first = shared.next()
    assert first.until == first.budget_until == 10.0
    clock.now = 4.0
    assert shared.next().until == 4.0 + 13.0
    clock.now = 29.0
    assert shared.next().until == 30.0
    clock.now = 40.0
    assert shared.next().until == 40.0  # nothing is left


def test_all_searches_together_take_a_share_of_the_training(clock: Clock) -> None:
    shared = Allowance(600.0, num_searches=3, num_steps=lambda per_epoch: 10 * (per_epoch or 0))
    first = shared.next()
    assert first.until == 200.0
    first.expect(0.3, 200)  # 5 % of ten epochs of 200 batches are 30 s
    assert first.until == 10.0
    assert first.budget_until == 200.0
    clock.now = 18.0
    second = shared.next()
    assert second.until == 18.0 + 6.0
    second.expect(0.2, 200)  # they are faster with the size that was found
    assert second.until == 18.0 + 1.0
    second.expect(9.0, 200)
    assert second.until == 18.0 + 1.0
    clock.now = 21.0
    assert shared.next().until == 21.0


def test_a_training_that_ends_after_a_time_has_a_share_of_that(clock: Clock) -> None:
    shared = Allowance(600.0, num_searches=2, num_steps=lambda per_epoch: per_epoch, most_s=60.0)
    part = shared.next()
    assert (part.until, part.budget_until) == (1.5, 300.0)  # 5 % of a minute, for two searches
    part.expect(1.0, 1000)
    assert part.until == 1.5
    part.expect(1.0, 20)  # which are done before
    assert part.until == 0.5
    assert Allowance(None, most_s=60.0).next().until == float("inf")


@pytest.mark.parametrize(
    ("budget_s", "num_steps"), [(None, lambda _: 10), (600.0, lambda _: None)], ids=["no budget", "no length"]
)
def test_without_a_budget_or_a_length_the_training_limits_nothing(
    clock: Clock, budget_s: float | None, num_steps: Callable[[int | None], int | None]
) -> None:
    part = Allowance(budget_s, num_steps=num_steps).next()
    part.expect(0.1, 5)
    assert part.until == (float("inf") if budget_s is None else budget_s)


def test_clearly_more_time_is_more_and_a_busier_moment_is_not(clock: Clock) -> None:
    then = _then(Allowance(20.0, num_searches=2).next())
    assert then["seconds"] == 10.0
    assert not Allowance(10.0).next().has_more_than(then)
    assert not Allowance(14.0).next().has_more_than(then)
    assert Allowance(16.0).next().has_more_than(then)
    assert Allowance(None).next().has_more_than(then)
    assert not Allowance(None).next().has_more_than(_then(Allowance(None).next()))
    with pytest.raises(KeyError):
        Allowance(None).next().has_more_than({"budget_s": 5.0, "trainer": None})


def test_a_longer_training_leaves_more_time_for_what_was_measured_of_a_shorter_one(clock: Clock) -> None:
    short = Allowance(30.0, num_steps=lambda per_epoch: 2 * (per_epoch or 0)).next()
    short.expect(0.1, 500)
    then = _then(short)
    assert then["seconds"] == 5.0
    assert not Allowance(30.0, num_steps=lambda per_epoch: 2 * (per_epoch or 0)).next().has_more_than(then)
    assert Allowance(30.0, num_steps=lambda per_epoch: 4 * (per_epoch or 0)).next().has_more_than(then)
    assert not Allowance(7.0, num_steps=lambda per_epoch: 4 * (per_epoch or 0)).next().has_more_than(then)


def test_seconds_that_loading_took_are_no_seconds_of_the_search(clock: Clock) -> None:
    """A moment of slow loading does not decide for good, and loading that is always slow does not ask for more."""
    busy = Allowance(20.0).next()
    clock.now = 15.0
    busy.begin()
    then = _then(busy)
    assert (then["seconds"], then["loaded_s"]) == (5.0, 15.0)
    again = Allowance(20.0).next()
    assert again.has_more_than(then)
    clock.now += 14.0
    again.begin()
    twice = again.as_json_after(then, is_kept=False)
    assert (twice["seconds"], twice["loads_s"]) == (6.0, 14.0)
    assert not Allowance(20.0).next().has_more_than(twice)
    clock.now += 9.0
    assert Allowance(30.0).next().has_more_than(twice)
    assert again.as_json_after(then, is_kept=True)["seconds"] == 5.0


def test_who_has_less_time_knows(clock: Clock) -> None:
    then = _then(Allowance(10.0).next())
    assert Allowance(9.0).next().had_less_than(then)
    assert not Allowance(10.0).next().had_less_than(then)
    assert not Allowance(None).next().had_less_than(then)
    assert Allowance(10.0).next().had_less_than(_then(Allowance(None).next()))
