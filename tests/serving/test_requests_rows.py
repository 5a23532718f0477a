"""Rows in requests to the server, prepared as rows of a table are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lightkit.rows.table import TableFit
from lightkit.rows.values import ColumnType, read_columns

pytest.importorskip("fastapi", reason="the server is an extra")
from lightkit.serving.predictor import Predictor, Refusal
from lightkit.serving.requests import Item

TYPES: dict[str, ColumnType] = {"a": "number", "c": "category"}


def test_a_row_of_a_request_is_prepared_as_a_row_of_a_table() -> None:
    fitted = TableFit(TYPES, scaling="quantile")
    fitted.add(pa.table({"a": [1.0, 2.0, 4.0, None], "c": ["x", "y", "x", "y"]}))
    preprocessing = fitted.finish()
    records: list[dict[str, Any]] = [
        {"a": 3, "c": "x", "other": 1},
        {"a": None, "c": "new"},
        {"a": "2.5", "c": None},
    ]
    found = Predictor._encode(
        [Item(str(at), record) for at, record in enumerate(records)], preprocessing
    )
    rows, _ = read_columns(pa.record_batch({"a": ["3", "", "2.5"], "c": ["x", "new", ""]}), TYPES)
    assert isinstance(found, list)
    for given, expected in zip(zip(*found, strict=True), preprocessing.encode(rows), strict=True):
        np.testing.assert_array_equal(np.stack(given), expected)
    refused = Predictor._encode(
        [Item("0", records[0]), Item("1", {"a": "many", "c": "x"})], preprocessing
    )
    assert refused == Refusal(422, "rows[1]: column 'a' has 'many', expected a finite number")
