"""Bounds of numbers, written into the types of a signature.

A check without torch and a constructor read the same ones.

jsonargparse 4.53 takes the number and leaves what `Annotated` adds to it to us.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeGuard, get_args, get_origin, get_type_hints

_KEYWORDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
"""Names of bounds in pydantic's `annotated_types`, which count in a class of the user's own too,
and in JSON Schema."""


BOUNDS = frozenset(_KEYWORDS.values())


@dataclass(frozen=True)
class Bounds:
    """Where the values of a number begin and end: ``Annotated[int, Bounds(ge=1)]``.

    Args:
        ge: Smallest value.
        gt: Value above which all are.
        le: Largest value.
        lt: Value below which all are.
    """

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None


PositiveInt = Annotated[int, Bounds(ge=1)]
NonNegativeInt = Annotated[int, Bounds(ge=0)]
PositiveFloat = Annotated[float, Bounds(gt=0)]
NonNegativeFloat = Annotated[float, Bounds(ge=0)]
Fraction = Annotated[float, Bounds(ge=0, le=1)]
Part = Annotated[float, Bounds(ge=0, lt=1)]
"""A share that leaves something."""


@cache
def find_bounds(cls: type) -> dict[str, dict[str, float]]:
    """Return the bounds of a constructor's arguments, also of those passed on to its bases.

    Returns:
        Keywords of JSON Schema, such as ``{"minimum": 1}``, by the name of the argument.
    """
    found: dict[str, dict[str, float]] = {}
    for owner in reversed(cls.__mro__):
        constructor = vars(owner).get("__init__")
        if constructor is None or not hasattr(constructor, "__annotations__"):
            continue
        hints: dict[str, Any] = {}
        # a name that only a type checker knows: other constructors are read all the same
        with suppress(Exception):
            hints = get_type_hints(constructor, include_extras=True)
        # An argument that a subclass declares again has the bounds of its new type.
        for name in hints.keys() - {"return"}:
            found.pop(name, None)
            if bounds := read_bounds(hints[name]):
                found[name] = bounds
    return found


def read_bounds(hint: Any) -> dict[str, float]:
    """Return the bounds of a type, or of the one number among its alternatives."""
    if get_origin(hint) is not Annotated:
        branches = [
            read_bounds(branch) for branch in get_args(hint) if get_origin(branch) is Annotated
        ]
        return branches[0] if len(branches) == 1 else {}
    keywords: dict[str, float] = {}
    for each in hint.__metadata__:
        for name, keyword in _KEYWORDS.items():
            value = getattr(each, name, None)
            if isinstance(value, (int, float)):
                keywords[keyword] = value
    return keywords


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a number that a float can hold.

    Infinity, NaN, true and false are none.
    """
    return is_any_number(value) and abs(value) <= sys.float_info.max


def is_any_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a number, an infinite one and NaN included.

    True and false are none.
    """
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_int(value: Any, least: int | None = None) -> TypeGuard[int]:
    """Return whether a value is an integer, of at least `least`; true and false are none."""
    return (
        isinstance(value, int) and not isinstance(value, bool) and (least is None or value >= least)
    )


def is_within(bounds: Mapping[str, Any], value: float) -> bool:
    """Check a number against the bounds of a JSON Schema; NaN is within none."""
    return (
        value >= bounds.get("minimum", float("-inf"))
        and value <= bounds.get("maximum", float("inf"))
        and ("exclusiveMinimum" not in bounds or value > bounds["exclusiveMinimum"])
        and ("exclusiveMaximum" not in bounds or value < bounds["exclusiveMaximum"])
    )


def describe_bounds(bounds: Mapping[str, Any]) -> str:
    """Describe the bounds of a JSON Schema in words: ``1 or more``, ``a number from 0 to 1``."""
    low = bounds.get("minimum", bounds.get("exclusiveMinimum"))
    high = bounds.get("maximum", bounds.get("exclusiveMaximum"))
    if low is None:
        return f"{high:g} or less" if "maximum" in bounds else f"less than {high:g}"
    if high is None:
        return f"{low:g} or more" if "minimum" in bounds else f"more than {low:g}"
    if "minimum" in bounds and "maximum" in bounds:
        return f"a number from {low:g} to {high:g}"
    first = "at least" if "minimum" in bounds else "above"
    last = "at most" if "maximum" in bounds else "below"
    return f"{first} {low:g} and {last} {high:g}"
