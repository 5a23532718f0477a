"""Values of a filter in a column's type."""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lightkit.data.tables.filter_values import compared_as, value_of
from lightkit.data.tables.filters import filter_of
from lightkit.errors import ConfigError

MONEY = pa.decimal128(3, 2)
UTC = pa.timestamp("us", "UTC")
MIDNIGHT = datetime(2024, 1, 15, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (1.0, MONEY, Decimal("1.0")),
        ("1.0", MONEY, Decimal("1.0")),
        (1.555, MONEY, Decimal("1.555")),
        (1000, MONEY, Decimal(1000)),
        ("2024-01-15", UTC, MIDNIGHT),
        ("2024-01-15T02:00+02:00", UTC, MIDNIGHT),
        ("2024-01-15", pa.timestamp("ms", "Europe/Berlin"), MIDNIGHT),
        ("2024-01-15", pa.timestamp("s"), datetime(2024, 1, 15)),
        (3.0, pa.int8(), 3),
        (2**24 + 1, pa.float32(), float(2**24)),
        (2**64 - 1, pa.uint64(), 2**64 - 1),
    ],
    ids=str,
)
def test_a_value_is_given_in_the_columns_type(value: Any, kind: pa.DataType, expected: Any) -> None:
    found = value_of(value, kind, "x")
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "kind", "says"),
    [
        (-1, pa.uint32(), "holds uint32, .* compared with -1: its values go from 0 to 4294967295"),
        (10**30, pa.int64(), "its values go from -9223372036854775808 to 9223372036854775807"),
        (300.0, pa.int8(), "its values go from -128 to 127"),
        (1.5, pa.int8(), r"compared with 1\.5: write a whole number"),
        ("3", pa.int64(), "compared with '3': write 3 without quotes"),
        ("0.5", pa.float32(), "write 0.5 without quotes"),
        (3, pa.string(), "compared with 3: write '3' in quotes"),
        ("high", pa.int64(), r"compared with 'high'\.$"),
        ("dear", MONEY, r"holds decimal128\(3, 2\), so it cannot be compared with 'dear'"),
        (float("inf"), MONEY, "compared with inf"),
        (1e80, MONEY, r"compared with 1e\+80"),
        (float("nan"), pa.int8(), "compared with nan"),
        (10**400, pa.float64(), "compared with 1000"),
        ("2024-13-15", UTC, "compared with '2024-13-15'"),
        ("2024-01-15T00:00Z", pa.timestamp("us"), "compared with '2024-01-15T00:00Z'"),
    ],
    ids=lambda part: str(part)[:40],
)
def test_a_value_that_cannot_be_compared_is_told(value: Any, kind: pa.DataType, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        value_of(value, kind, "x")


@pytest.mark.parametrize(
    ("operator", "value", "passed"),
    [
        ("==", 1.5, [1]),
        (">", 1.555, [2]),
        ("<", 1000, [0, 1, 2]),
        ("in", [1.5, "2.250", 10**50], [1, 2]),
        ("not in", [1.5, 0.001], [0, 2]),
    ],
    ids=str,
)
def test_decimals_are_compared_with_any_number(operator: str, value: Any, passed: list[int]) -> None:
    column = pa.array([Decimal("1.00"), Decimal("1.50"), Decimal("2.25"), None], MONEY)
    batch = pa.record_batch({"x": column})
    holds = filter_of([["x", operator, value]], batch.schema).holds(batch)
    assert [row for row, passes in enumerate(holds.to_pylist()) if passes] == passed


def test_half_precision_is_compared_in_single_precision() -> None:
    batch = pa.record_batch({"x": pa.array(np.array([1, 2, 3], np.float16))})
    assert filter_of([["x", ">=", 2]], batch.schema).holds(batch).to_pylist() == [False, True, True]


def test_decimals_are_compared_in_a_type_wide_enough() -> None:
    assert compared_as(MONEY, [Decimal("12.345")]) == pa.decimal128(5, 3)
    assert compared_as(MONEY, [Decimal("1e40")]) == pa.decimal256(43, 2)
