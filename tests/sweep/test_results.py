"""What is said of the result of a sweep."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from lightkit.sweep.page import render_sweep
from lightkit.sweep.record import Trial
from lightkit.sweep.results import choose_best, describe_result
from lightkit.sweep.settings import Plan


def complete(number: int, value: float, of: int | None = None, seed: int | None = None) -> Trial:
    kind = "search" if of is None else "confirm"
    return Trial(number, {"rate": number}, kind, seed, of, "complete", value)


def test_a_gain_is_of_fresh_seeds_alone_where_they_have_chosen_the_best() -> None:
    """Trial 1 was worse than the config itself, whose fresh seed has failed."""
    own = Trial(3, {}, "confirm", 7, 0, "failed")
    trials = [complete(0, 0.9), complete(1, 0.8), complete(2, 0.85, of=1, seed=7), own]
    *_, gain = describe_result(trials, Plan(num_confirmed=1, num_seeds=1), "val/accuracy", "max")
    assert gain == (
        "gain  unknown: no run of the config itself with the same fresh seeds is complete and"
        " within all bounds"
    )
    *_, gain = describe_result(trials[:2], Plan(), "val/accuracy", "max")
    assert gain == "gain  none: no trial beat the config itself"


def test_a_point_that_fails_with_one_of_its_fresh_seeds_is_not_the_best() -> None:
    trials = [complete(0, 0.7), complete(1, 0.9), complete(2, 0.8)]
    trials += [complete(3, 0.95, of=1, seed=7), Trial(4, {}, "confirm", 8, 1, "failed")]
    trials += [complete(5 + at, 0.80 + 0.02 * at, of=2, seed=7 + at) for at in range(2)]
    trials += [complete(7 + at, 0.70, of=0, seed=7 + at) for at in range(2)]
    best, *_, gain = describe_result(trials, Plan(num_confirmed=2, num_seeds=2), "val/f1", "max")
    assert best.startswith("best  trial 2")
    # gains of 0.10 and 0.12: 0.11 +- 12.706 (Student's t, one degree of freedom) * 0.01
    assert gain == "gain  none that is shown: its 95 % interval over the config itself includes 0"


def test_a_fresh_seed_that_breaks_a_bound_counts_as_one_that_failed() -> None:
    """Trial 1 has the better values, but a fresh seed of it takes 12 ms where 10 are allowed."""
    plan = Plan(num_confirmed=2, num_seeds=2, constraints={"val/ms": {"max": 10.0}})

    def bounded(*trial: Any, ms: float) -> Trial:
        return replace(complete(*trial), constraints={"val/ms": ms})

    trials = [bounded(0, 0.7, ms=5), bounded(1, 0.9, ms=9), bounded(2, 0.8, ms=5)]
    trials += [bounded(3, 0.90, 1, 7, ms=9), bounded(4, 0.94, 1, 8, ms=12)]
    trials += [bounded(5, 0.80, 2, 7, ms=5), bounded(6, 0.82, 2, 8, ms=5)]
    trials += [bounded(7, 0.70, 0, 7, ms=5), bounded(8, 0.72, 0, 8, ms=5)]
    best, *again, gain = describe_result(trials, plan, "val/f1", "max")
    assert best.startswith("best  trial 2")
    assert again[0].startswith("again trial 2: mean 0.81 [")
    # of the one seed within the bounds, 0.90 - 0.70
    assert again[2] == (
        "again trial 1: mean 0.9 (one run) of 1 fresh seeds; without 1 that broke a bound;"
        " gain 0.2 (one run)"
    )
    assert gain == "gain  0.1 [0.1, 0.1] over the config itself, with fresh seeds"
    page = render_sweep("net", trials, plan, "val/f1", "max")
    assert re.search(r"trial 1</t[dh]>\s*<td[^>]*>1</td>\s*<td[^>]*>1</td>\s*<td[^>]*>0.9", page)


def test_no_trial_is_the_best_where_no_fresh_seed_is_within_all_bounds() -> None:
    plan = Plan(num_confirmed=1, num_seeds=1, constraints={"val/ms": {"max": 10.0}})
    trials = [complete(0, 0.7), complete(1, 0.9)]
    trials += [complete(2, 0.9, of=1, seed=7), complete(3, 0.7, of=0, seed=7)]
    trials = [
        replace(each, constraints={"val/ms": 12.0 if each.kind == "confirm" else 9.0})
        for each in trials
    ]
    assert choose_best(trials, plan, "max") is None
    assert describe_result(trials, plan, "val/f1", "max") == [
        "no trial is within all bounds of sweep.constraints with fresh seeds: val/ms is to have max"
        " 10, and is 12 to 12"
    ]
