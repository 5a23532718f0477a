"""What is said of the result of a sweep."""

from __future__ import annotations

from lightkit.sweep.record import Trial
from lightkit.sweep.results import describe_result
from lightkit.sweep.settings import Plan


def complete(number: int, value: float, of: int | None = None, seed: int | None = None) -> Trial:
    kind = "search" if of is None else "confirm"
    return Trial(number, {"rate": number}, kind, seed, of, "complete", value)


def test_a_gain_is_of_fresh_seeds_alone_where_they_have_chosen_the_best() -> None:
    """Trial 1 was worse than the config itself, whose fresh seed has failed."""
    own = Trial(3, {}, "confirm", 7, 0, "failed")
    trials = [complete(0, 0.9), complete(1, 0.8), complete(2, 0.85, of=1, seed=7), own]
    *_, gain = describe_result(trials, Plan(num_confirmed=1, num_seeds=1), "val/accuracy", "max")
    assert gain == "gain  unknown: no run of the config itself with fresh seeds is complete"
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
