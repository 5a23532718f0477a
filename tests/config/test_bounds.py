"""Numbers and integers, as opposed to true, false, infinity and NaN."""

from __future__ import annotations

import math
from typing import Any

import pytest

from lightkit.config.bounds import is_any_number, is_int, is_number


@pytest.mark.parametrize(
    ("value", "finite", "number", "integer"),
    [
        (3, True, True, True),
        (0.5, True, True, False),
        (10**400, False, True, False),
        (math.inf, False, True, False),
        (math.nan, False, True, False),
        (True, False, False, False),
        ("3", False, False, False),
        (None, False, False, False),
    ],
)
def test_a_finite_number_a_number_and_an_integer_are_told_apart(
    value: Any, finite: bool, number: bool, integer: bool
) -> None:
    assert (is_number(value), is_any_number(value), is_int(value)) == (finite, number, integer)


def test_an_integer_has_a_least_value() -> None:
    assert [is_int(value, 1) for value in (0, 1, 2)] == [False, True, True]
