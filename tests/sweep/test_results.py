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
