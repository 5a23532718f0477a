"""Contestants that do the same in turn, so that what else the machine does falls on all alike."""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["BenchError", "Rounds", "comparison", "contest", "spread"]

Rounds = Mapping[str, Sequence[float]]


class BenchError(Exception):
    """A contestant did not do what is measured."""


@dataclass(frozen=True)
class _Bound:
    limit: float
    kind: Literal["at most", "at least"]

    def holds(self, ratio: float) -> bool:
        return ratio <= self.limit if self.kind == "at most" else ratio >= self.limit


def contest(
    contestants: Mapping[str, Callable[[int], float]], *, repeat: int, seed: int = 0, warm_up: int = 0, told: str = ""
) -> dict[str, list[float]]:
    """Give what each contestant measured in each round; say on standard error how far it is.

    Args:
        contestants: By name, a function of the round's seed that gives a number. Their order changes from round to
            round, so that none always runs after the same other.
        repeat: Rounds that count.
        seed: Of the order; the round's number is added to it for the contestants.
        warm_up: Rounds before them, which do not count.
        told: What is measured, for the lines on standard error.
    """
    measured: dict[str, list[float]] = {name: [] for name in contestants}
    order = random.Random(seed)  # noqa: S311 - no secret
    for turn in range(-warm_up, repeat):
        names = order.sample(list(contestants), len(contestants))
        for name in names:
            value = contestants[name](seed + turn)
            if turn >= 0:
                measured[name].append(value)
        count = f"round {turn + 1} of {repeat}" if turn >= 0 else f"a round that does not count, before {repeat}"
        print(f"{told + ': ' if told else ''}{count}", file=sys.stderr)
    return measured


def spread(values: Sequence[float]) -> dict[str, float]:
    """Give median, least and greatest, to four digits."""
    found = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: float(f"{value:.4g}") for name, value in found.items()}


def comparison(
    what: str,
    rounds: Rounds,
    *,
    of: str,
    to: str,
    unit: str,
    at_most: float | None = None,
    at_least: float | None = None,
) -> dict[str, Any]:
    """Compare two contestants round by round: a line of the results' table.

    Args:
        what: What both did, such as ``ResNet-18``.
        rounds: Numbers by contestant, round by round.
        of: Whose share is told, lightkit's mostly.
        to: What it is a share of.
        unit: Of the numbers: ``s``, ``ms``, ``us``, ``images/s``, ``MB``, ``%``.
        at_most: Ratio to reach where less is better.
        at_least: Ratio to reach where more is better; with neither, the ratio is only reported.

    Returns:
        The spreads of both, that of the ratios of each round, and whether the median ratio reaches the bound.
    """
    ratio = spread([one / other for one, other in zip(rounds[of], rounds[to], strict=True)])
    bound = None
    if at_most is not None:
        bound = _Bound(at_most, "at most")
    elif at_least is not None:
        bound = _Bound(at_least, "at least")
    return {
        "what": what,
        "of": of,
        "to": to,
        "unit": unit,
        "values": {name: spread(rounds[name]) for name in (of, to)},
        "ratio": ratio,
        "reach": None if bound is None else {bound.kind: bound.limit},
        "reached": None if bound is None else bound.holds(ratio["median"]),
    }
