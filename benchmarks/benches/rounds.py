"""Contestants that do the same in turn, so that what else the machine does falls on all alike."""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Rounds = Mapping[str, Sequence[float]]


class BenchError(Exception):
    """A contestant did not do what is measured."""


@dataclass(frozen=True)
class _Bound:
    limit: float
    kind: Literal["at most", "at least", "at most s"]

    def holds(self, result: Mapping[str, float]) -> bool | None:
        """Return whether all that was found is within the bound, or all beyond.

        None where they differ.
        """
        less, more = result["min"], result["max"]
        first, last = (
            (less >= self.limit, more >= self.limit)
            if self.kind == "at least"
            else (less <= self.limit, more <= self.limit)
        )
        return first if first == last else None


def run_rounds(
    contestants: Mapping[str, Callable[[int], float]],
    *,
    repeat: int,
    seed: int = 0,
    warm_up: int = 0,
    title: str = "",
) -> dict[str, list[float]]:
    """Return what each contestant measured in each round; say on standard error how far it is.

    Args:
        contestants: By name, a function of the round's seed that gives a number. Their order
            changes from round to round, so that none always runs after the same other.
        repeat: Rounds that count.
        seed: Of the order; the round's number is added to it for the contestants.
        warm_up: Rounds before them, which do not count.
        title: What is measured, for the lines on standard error.
    """
    values: dict[str, list[float]] = {name: [] for name in contestants}
    order = random.Random(seed)  # noqa: S311 - no secret
    for turn in range(-warm_up, repeat):
        names = order.sample(list(contestants), len(contestants))
        for name in names:
            value = contestants[name](seed + turn)
            if turn >= 0:
                values[name].append(value)
        count = (
            f"round {turn + 1} of {repeat}"
            if turn >= 0
            else f"a round that does not count, before {repeat}"
        )
        print(f"{title + ': ' if title else ''}{count}", file=sys.stderr)
    return values


def summarize(values: Sequence[float]) -> dict[str, float]:
    """Return median, least and greatest, to four digits."""
    result = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: float(f"{value:.4g}") for name, value in result.items()}


def compare(
    what: str,
    rounds: Rounds,
    *,
    of: str,
    to: str,
    unit: str,
    at_most: float | None = None,
    at_least: float | None = None,
    at_most_s: float | None = None,
    provided: bool = True,
) -> dict[str, Any]:
    """Compare two contestants round by round: a line of the results' table.

    Args:
        what: What both did, such as ``ResNet-18``.
        rounds: Numbers by contestant, round by round.
        of: Contestant in the numerator, mostly lightkit.
        to: Contestant in the denominator.
        unit: Of the numbers: ``s``, ``ms``, ``us``, ``images/s``, ``MB``, ``%``.
        at_most: Ratio to reach where less is better.
        at_least: Ratio to reach where more is better.
        at_most_s: Seconds of ``of`` to target, whatever the ratio; with none of the three, the
            ratio is only reported.
        provided: Whether what the target asks for in addition to the ratio is so.

    Returns:
        The spreads of both, that of the ratios of each round, how many rounds, and whether the
        bound is reached: by all rounds (True), by none (False), or by some (None), which decides
        nothing.
    """
    ratio = summarize([one / other for one, other in zip(rounds[of], rounds[to], strict=True)])
    bound = _bound(at_most, at_least, at_most_s)
    reached = (
        None
        if bound is None
        else bound.holds(summarize(rounds[of]) if at_most_s is not None else ratio)
    )
    return {
        "what": what,
        "of": of,
        "to": to,
        "unit": unit,
        "values": {name: summarize(rounds[name]) for name in (of, to)},
        "ratio": ratio,
        "rounds": len(rounds[of]),
        "target": None if bound is None else {bound.kind: bound.limit},
        "reached": False if bound is not None and not provided else reached,
    }


def mark_unmeasured(
    what: str,
    *,
    of: str,
    to: str,
    reason: str,
    at_most: float | None = None,
    at_least: float | None = None,
) -> dict[str, Any]:
    """Return the line of a comparison that could not be made.

    Args:
        what: As of `compare`.
        of: As of `compare`.
        to: As of `compare`.
        reason: What is missing.
        at_most: As of `compare`.
        at_least: As of `compare`.
    """
    bound = _bound(at_most, at_least, None)
    target = None if bound is None else {bound.kind: bound.limit}
    return {
        "what": what,
        "of": of,
        "to": to,
        "unmeasured": reason,
        "rounds": 0,
        "target": target,
        "reached": None,
    }


def _bound(at_most: float | None, at_least: float | None, at_most_s: float | None) -> _Bound | None:
    if at_most is not None:
        return _Bound(at_most, "at most")
    if at_least is not None:
        return _Bound(at_least, "at least")
    return None if at_most_s is None else _Bound(at_most_s, "at most s")
