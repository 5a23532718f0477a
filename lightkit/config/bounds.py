"""Bounds of numbers and forms of texts, written into the types of a signature.

A check without torch and a constructor read the same ones.

jsonargparse 4.53 takes the value and leaves what `Annotated` adds to its type to us.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeGuard, get_args, get_origin, get_type_hints

_KEYWORDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}
"""Names of bounds in pydantic's `annotated_types`, which count in a class of the user's own too,
and in JSON Schema."""


_OWN_KEYWORDS = {**_KEYWORDS, "pattern": "pattern", "expected": "expected"}
BOUNDS = frozenset(_KEYWORDS.values())
_ALONE = {
    "minimum": "{:g} or more",
    "exclusiveMinimum": "more than {:g}",
    "maximum": "{:g} or less",
    "exclusiveMaximum": "less than {:g}",
    "multipleOf": "a multiple of {:g}",
}
"""Words for a bound that is the only one."""
_TOGETHER = {
    "minimum": "at least {:g}",
    "exclusiveMinimum": "above {:g}",
    "maximum": "at most {:g}",
    "exclusiveMaximum": "below {:g}",
    "multipleOf": "a multiple of {:g}",
}
"""Words for one of several."""


@dataclass(frozen=True)
class Bounds:
    """Where the values of a number begin and end: ``Annotated[int, Bounds(ge=1)]``.

    Args:
        ge: Smallest value.
        gt: Value above which all are.
        le: Largest value.
        lt: Value below which all are.
        multiple_of: Number of which all are multiples.
        expected: What an error expects, where that says more than the numbers.
    """

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    multiple_of: float | None = None
    expected: str | None = None


@dataclass(frozen=True)
class Form:
    """The form of a text: ``Annotated[str, Form(".+:[0-9]+", "HOST:PORT")]``.

    Args:
        pattern: Regular expression of all of it.
        expected: What an error expects.
    """

    pattern: str
    expected: str


MAX_FLOAT = sys.float_info.max
PositiveInt = Annotated[int, Bounds(ge=1)]
NonNegativeInt = Annotated[int, Bounds(ge=0)]
PositiveFloat = Annotated[float, Bounds(gt=0)]
NonNegativeFloat = Annotated[float, Bounds(ge=0)]
FiniteFloat = Annotated[float, Bounds(ge=-MAX_FLOAT, le=MAX_FLOAT, expected="a finite number")]
Fraction = Annotated[float, Bounds(ge=0, le=1)]
Part = Annotated[float, Bounds(ge=0, lt=1)]
"""A share that leaves something."""


@cache
def find_hints(cls: type) -> dict[str, Any]:
    """Return the types of a constructor's arguments, also of those passed on to its bases.

    A type has what `Annotated` adds to it, which jsonargparse leaves out.
    """
    found: dict[str, Any] = {}
    for owner in reversed(cls.__mro__):
        constructor = vars(owner).get("__init__")
        if constructor is None or not hasattr(constructor, "__annotations__"):
            continue
        # a name that only a type checker knows: other constructors are read all the same
        with suppress(Exception):
            found |= get_type_hints(constructor, include_extras=True)
    found.pop("return", None)
    return found


def has_bounds(hint: Any) -> bool:
    """Check whether a type, or one inside it, has bounds or a form."""
    return bool(read_bounds(hint)) or any(map(has_bounds, get_args(hint)))


def read_bounds(hint: Any) -> dict[str, Any]:
    """Return the bounds of a type or its form, or those of the one alternative that has some.

    Returns:
        Keywords of JSON Schema, and ``expected`` with what an error expects.
    """
    if get_origin(hint) is not Annotated:
        branches = [
            read_bounds(branch) for branch in get_args(hint) if get_origin(branch) is Annotated
        ]
        return branches[0] if len(branches) == 1 else {}
    keywords: dict[str, Any] = {}
    for each in hint.__metadata__:
        names = _OWN_KEYWORDS if isinstance(each, (Bounds, Form)) else _KEYWORDS
        for name, keyword in names.items():
            value = getattr(each, name, None)
            if isinstance(value, (int, float, str)):
                keywords[keyword] = value
    return keywords


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a number that a float can hold.

    Infinity, NaN, true and false are none.
    """
    return is_any_number(value) and abs(value) <= MAX_FLOAT


def is_too_large(value: Any) -> bool:
    """Return whether a value is an integer that no float can hold, such as one of 400 digits."""
    return isinstance(value, int) and abs(value) > MAX_FLOAT


def is_any_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a number, an infinite one and NaN included.

    True and false are none.
    """
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_int(value: Any, least: int | None = None) -> TypeGuard[int]:
    """Return whether a value is an integer that a float can hold; true and false are none.

    Args:
        value: The value.
        least: Its least value; None for any.
    """
    is_integer = isinstance(value, int) and not isinstance(value, bool) and not is_too_large(value)
    return is_integer and (least is None or value >= least)


def is_within(bounds: Mapping[str, Any], value: float) -> bool:
    """Check a number against the bounds of a JSON Schema; NaN is within none."""
    return (
        value >= bounds.get("minimum", float("-inf"))
        and value <= bounds.get("maximum", float("inf"))
        and ("exclusiveMinimum" not in bounds or value > bounds["exclusiveMinimum"])
        and ("exclusiveMaximum" not in bounds or value < bounds["exclusiveMaximum"])
        and ("multipleOf" not in bounds or value % bounds["multipleOf"] == 0)
    )


def describe_bounds(bounds: Mapping[str, Any]) -> str:
    """Describe the bounds of a JSON Schema in words: ``1 or more``, ``a number from 0 to 1``."""
    if "expected" in bounds:
        return str(bounds["expected"])
    given = [keyword for keyword in _ALONE if keyword in bounds]
    if given == ["minimum", "maximum"]:
        return f"a number from {bounds['minimum']:g} to {bounds['maximum']:g}"
    words = _ALONE if len(given) == 1 else _TOGETHER
    return " and ".join(words[keyword].format(bounds[keyword]) for keyword in given)
