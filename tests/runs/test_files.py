"""Values in records that may lack a part, or hold something else in its place."""

from __future__ import annotations

from typing import Any

import pytest

from lightkit.runs.files import find_value


@pytest.mark.parametrize(
    ("record", "found"),
    [
        ({"best": {"monitor": "val/f1"}}, "val/f1"),
        ({"best": {}}, None),
        ({"best": None}, None),
        ({"best": "no record"}, None),
        ({}, None),
        (None, None),
    ],
    ids=["there", "without the key", "null", "another type", "empty", "no record"],
)
def test_a_value_of_a_record_is_found_or_none(record: Any, found: str | None) -> None:
    assert find_value(record, "best", "monitor") == found
