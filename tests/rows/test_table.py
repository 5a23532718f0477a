"""Numbers, dates and categories as the inputs of a model, by the statistics of the rows that were fitted."""

from __future__ import annotations

import json
from datetime import datetime
from statistics import NormalDist
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lightkit.errors import DataError
from lightkit.rows.preprocessing import dump_preprocessing, load_preprocessing
from lightkit.rows.table import TableFit, TablePreprocessing
from lightkit.rows.values import ColumnType


def fit(columns: dict[str, Any], types: dict[str, ColumnType], **options: Any) -> TablePreprocessing:
    fitted = TableFit(types, **{"scaling": "standard", **options})
    rows = pa.table(columns)
    for start in range(0, rows.num_rows, 3):  # in parts
        fitted.add(rows.slice(start, 3))
    return fitted.finish()


def test_numbers_have_mean_0_and_deviation_1_and_missing_ones_an_input_of_their_own() -> None:
    values = [3.0, 5.0, None, 10.0, 2.0]
    made = fit({"a": values, "b": [7.0] * 5}, {"a": "number", "b": "number"})
    (encoded,) = made.encode(pa.table({"a": values, "b": [7.0, 7.0, 7.0, 7.0, 8.0]}))
    there = np.array([3.0, 5.0, 10.0, 2.0])
    expected = (there - there.mean()) / there.std()
    assert encoded.dtype == np.float32
    assert made.feature_names == ["a", "a: missing", "b"]
    np.testing.assert_allclose(encoded[[0, 1, 3, 4], 0], expected, rtol=1e-6)
    assert encoded[2].tolist() == [0, 1, 0]
    assert encoded[:, 2].tolist() == [0, 0, 0, 0, 1]


def test_quantiles_make_a_normal_distribution_of_any_other() -> None:
    values = np.exp(np.random.default_rng(0).normal(size=5000))
    made = fit({"a": values}, {"a": "number"}, scaling="quantile")
    (encoded,) = made.encode(pa.table({"a": values}))
    assert abs(encoded.mean()) < 0.02
    assert abs(encoded.std() - 1) < 0.02
    ranks = (np.argsort(np.argsort(values)) + 0.5) / len(values)
    expected = np.array([NormalDist().inv_cdf(rank) for rank in ranks])
    middle = (ranks > 0.01) & (ranks < 0.99)
    np.testing.assert_allclose(encoded[middle, 0], expected[middle], atol=0.05)


def test_unknown_missing_and_rare_categories_have_their_own_index() -> None:
    made = fit({"c": ["x", "y", "x", "y", "once", None]}, {"c": "category"}, min_count=2)
    assert made.categories[0].values == ("x", "y")
    (encoded,) = made.encode(pa.table({"c": pa.array(["x", "y", "new", "once", None], pa.string())}))
    assert encoded[:, 0].tolist() == [2, 3, 0, 0, 1]


def test_a_category_is_known_by_its_boolean_or_decimal_number_too() -> None:
    known = ["True", "False", "1", "2.50", "01", "x"]
    made = fit({"c": known}, {"c": "category"}, min_count=1)
    place = {name: made.categories[0].values.index(name) + 2 for name in known}
    cells = {"true": "True", "FALSE": "False", "1.0": "1", "2.5": "2.50", "1": "1", "01": "01", "x": "x"}
    (encoded,) = made.encode(pa.table({"c": pa.array([*cells, "X", "2", "001", None], pa.string())}))
    assert encoded[:, 0].tolist() == [*(place[name] for name in cells.values()), 0, 0, 0, 1]
    both = fit({"c": ["1", "1.0"]}, {"c": "category"}, min_count=1)
    assert both.encode(pa.table({"c": ["1", "1.0", "1.00"]}))[0][:, 0].tolist() == [2, 3, 0]  # which of the two


def test_an_example_has_made_up_cells_and_missing_ones() -> None:
    days = pa.array([datetime(2026, 1, 1), datetime(2026, 1, 3)], pa.timestamp("us"))
    made = fit(
        {"a": [1.0, 4.0], "c": ["x", "y"], "d": days}, {"a": "number", "c": "category", "d": "date"}, min_count=1
    )
    assert made.make_example().to_pylist() == [
        {"a": 2.5, "d": "2026-01-02", "c": "x"},
        {"a": None, "d": None, "c": None},
    ]


def test_dates_are_a_trend_and_places_in_year_week_and_day() -> None:
    dates = pa.array([datetime(2026, 1, 5, 6), datetime(2026, 1, 6), None], pa.timestamp("us"))
    made = fit({"d": dates}, {"d": "date"})
    (encoded,) = made.encode(pa.table({"d": dates}))
    named = dict(zip(made.feature_names, encoded.T, strict=True))
    assert named["d: week_cos"][0] == pytest.approx(1)  # 5 January 2026 is a Monday
    assert named["d: day_sin"][0] == pytest.approx(1)  # a quarter of the day
    assert named["d: trend"][:2].tolist() == pytest.approx([-1, 1])
    assert named["d: missing"].tolist() == [0, 0, 1]
    assert len(made.list_bins(8)) == len(made.feature_names)


def test_the_form_in_json_encodes_alike() -> None:
    columns = {
        "a": [1.0, 2.0, None],
        "c": ["x", "x", "y"],
        "d": pa.array([0, 86_400_000_000, None], pa.timestamp("us")),
    }
    made = fit(columns, {"a": "number", "c": "category", "d": "date"}, scaling="quantile")
    again = load_preprocessing(json.loads(json.dumps(dump_preprocessing(made))))
    assert again == made
    for one, other in zip(made.encode(pa.table(columns)), made.encode(pa.table(columns)), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(DataError, match="damaged"):
        load_preprocessing({"kind": "table", "scaling": "standard"})
    with pytest.raises(DataError, match="expected one of the kinds table, text"):
        load_preprocessing({"kind": "sound"})
