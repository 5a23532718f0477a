"""Numbers, dates and categories as the inputs of a model.

By the statistics of the rows that were fitted.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from lightkit.errors import DataError
from lightkit.rows.preprocessing import dump_preprocessing, load_preprocessing
from lightkit.rows.table import TableFit, TablePreprocessing
from lightkit.rows.values import ColumnType


def fit(
    columns: dict[str, Any], types: dict[str, ColumnType], **options: Any
) -> TablePreprocessing:
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
    assert encoded[:, 2].tolist() == [0, 0, 0, 0, 0]  # of a constant column nothing was learned


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


def test_a_rank_is_of_all_values_ties_in_their_middle_and_between_two_on_their_line() -> None:
    values = [1.0, 1.0, 2.0, 5.0, 5.0, 5.0]
    made = fit({"a": values}, {"a": "number"}, scaling="quantile")
    ranks = {1.0: 1 / 6, 2.0: 2.5 / 6, 5.0: 4.5 / 6}
    normal = {value: NormalDist().inv_cdf(rank) for value, rank in ranks.items()}
    (encoded,) = made.encode(pa.table({"a": [1.0, 2.0, 5.0, 3.5, -100.0, 100.0]}))
    between = (normal[2.0] + normal[5.0]) / 2
    expected = [normal[1.0], normal[2.0], normal[5.0], between, normal[1.0], normal[5.0]]
    np.testing.assert_allclose(encoded[:, 0], expected, rtol=1e-6)


def make_turns(num: int) -> npt.NDArray[np.float64]:
    """Return values of two kinds that take turns, as where two sensors write one table."""
    return np.where(np.arange(num) % 2 == 0, 0.0, np.random.default_rng(4).normal(100, 1, num))


def test_quantiles_of_a_large_column_are_those_of_all_its_values_in_any_order_and_parts() -> None:
    values = make_turns(420_000)
    found = []
    for size in (8192, 50_001):
        fitted = TableFit({"a": "number"}, scaling="quantile")
        for start in range(0, len(values), size):
            fitted.add(pa.table({"a": values[start : start + size]}))
        found.append(fitted.finish())
    assert found[0].numbers[0].knots == found[1].numbers[0].knots
    (encoded,) = found[0].encode(pa.table({"a": values}))
    assert encoded[::2].std() == 0
    # half of the values are 0
    assert encoded[0, 0] == pytest.approx(NormalDist().inv_cdf(0.25), abs=0.01)
    wanted = [NormalDist().inv_cdf(rank) for rank in (0.6, 0.75, 0.9)]
    quantiles = np.quantile(values, [0.6, 0.75, 0.9])
    np.testing.assert_allclose(found[0].numbers[0].scale(quantiles, "quantile"), wanted, atol=0.02)


@pytest.mark.parametrize("factor", [1e-13, 1.0, 1e15], ids=str)
def test_a_column_of_any_size_has_deviation_1_and_a_constant_one_stays_constant(
    factor: float,
) -> None:
    values = np.random.default_rng(2).normal(3, 1, 50) * factor
    made = fit({"a": values, "b": [0.1 * factor] * 50}, {"a": "number", "b": "number"})
    (encoded,) = made.encode(pa.table({"a": values, "b": [0.1 * factor] * 50}))
    np.testing.assert_allclose(
        encoded[:, 0], (values - values.mean()) / values.std(), rtol=1e-4, atol=1e-5
    )
    assert encoded[:, 1].tolist() == [0.0] * 50


@pytest.mark.parametrize(
    "values", [[1.0, 2.0, 1.7976931348623157e308], [-1.7e308, 1.7e308, 0.0]], ids=["one", "two"]
)
def test_numbers_too_large_for_a_variance_are_an_error(values: list[float]) -> None:
    with pytest.raises(
        DataError, match="column 'a' has numbers of which a float64 holds no variance"
    ):
        fit({"a": values * 3, "b": values * 3}, {"a": "number"})


def test_each_bin_has_as_many_training_rows_and_a_column_of_few_values_has_a_bin_between_two() -> (
    None
):
    values = np.random.default_rng(0).permutation(1000).astype(float)
    made = fit({"a": values, "b": [0.0, 1.0, 1.0, 4.0] * 250}, {"a": "number", "b": "number"})
    edges = made.list_bins(8)
    (encoded,) = made.encode(pa.table({"a": values, "b": [0.0, 1.0, 1.0, 4.0] * 250}))
    counts, _ = np.histogram(encoded[:, 0], bins=edges[0])
    assert len(counts) == 8
    assert counts.tolist() == pytest.approx([125] * 8, abs=4)
    there = np.array([0.0, 1.0, 4.0])
    np.testing.assert_allclose(edges[1], (there - 1.5) / np.std([0.0, 1.0, 1.0, 4.0]), rtol=1e-6)


@pytest.mark.parametrize("scaling", ["standard", "quantile"])
def test_a_column_without_a_value_in_the_training_is_0(scaling: str) -> None:
    made = fit({"a": pa.array([None] * 4, pa.float64())}, {"a": "number"}, scaling=scaling)
    (encoded,) = made.encode(pa.table({"a": pa.array([50_000.0, None], pa.float64())}))
    assert encoded.tolist() == [[0, 0], [0, 1]]


def test_unknown_missing_and_rare_categories_have_their_own_index() -> None:
    made = fit({"c": ["x", "y", "x", "y", "once", None]}, {"c": "category"}, min_count=2)
    assert made.categories[0].values == ("x", "y")
    (encoded,) = made.encode(
        pa.table({"c": pa.array(["x", "y", "new", "once", None], pa.string())})
    )
    assert encoded[:, 0].tolist() == [2, 3, 0, 0, 1]


def test_a_category_is_known_by_its_boolean_decimal_number_or_moment_too() -> None:
    known = ["True", "False", "1", "2.50", "01", "x", "2026-01-31", "2026-01-31T12:00:00"]
    made = fit({"c": known}, {"c": "category"}, min_count=1)
    place = {name: made.categories[0].values.index(name) + 2 for name in known}
    cells = {
        "true": "True",
        "FALSE": "False",
        "1.0": "1",
        "2.5": "2.50",
        "1": "1",
        "01": "01",
        "x": "x",
        "2026-01-31 00:00:00": "2026-01-31",
        "2026-01-31 12:00:00.000": "2026-01-31T12:00:00",
    }
    (encoded,) = made.encode(
        pa.table({"c": pa.array([*cells, "X", "2", "001", None], pa.string())})
    )
    assert encoded[:, 0].tolist() == [*(place[name] for name in cells.values()), 0, 0, 0, 1]
    both = fit({"c": ["1", "1.0"]}, {"c": "category"}, min_count=1)
    # which of the two
    assert both.encode(pa.table({"c": ["1", "1.0", "1.00"]}))[0][:, 0].tolist() == [2, 3, 0]


def test_an_example_has_made_up_cells_and_missing_ones() -> None:
    days = pa.array([datetime(2026, 1, 1), datetime(2026, 1, 3)], pa.timestamp("us"))
    made = fit(
        {"a": [1.0, 4.0], "c": ["x", "y"], "d": days},
        {"a": "number", "c": "category", "d": "date"},
        min_count=1,
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


def test_the_numbers_of_dates_are_those_of_pythons_calendar() -> None:
    random = np.random.default_rng(6)
    moments = [
        datetime(1950, 1, 1) + timedelta(minutes=int(each))
        for each in random.integers(0, 60_000_000, 300)
    ]
    made = fit({"d": pa.array(moments, pa.timestamp("us"))}, {"d": "date"})
    (encoded,) = made.encode(pa.table({"d": pa.array(moments, pa.timestamp("us"))}))
    days = np.array([(each - datetime(1970, 1, 1)) / timedelta(days=1) for each in moments])
    shares = {
        "year": [(each.timetuple().tm_yday - 1) / 365.25 for each in moments],
        "week": [each.weekday() / 7 for each in moments],
        "day": [(each.hour * 60 + each.minute) / 1440 for each in moments],
    }
    expected = [(days - days.mean()) / days.std()]
    for share in shares.values():
        expected += [np.sin(2 * np.pi * np.array(share)), np.cos(2 * np.pi * np.array(share))]
    np.testing.assert_allclose(encoded, np.stack(expected, axis=1), atol=1e-5)


def test_the_form_in_json_encodes_alike() -> None:
    columns = {
        "a": [1.0, 2.0, None],
        "c": ["x", "x", "y"],
        "d": pa.array([0, 86_400_000_000, None], pa.timestamp("us")),
    }
    made = fit(columns, {"a": "number", "c": "category", "d": "date"}, scaling="quantile")
    again = load_preprocessing(json.loads(json.dumps(dump_preprocessing(made))))
    assert again == made
    for one, other in zip(
        made.encode(pa.table(columns)), made.encode(pa.table(columns)), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(DataError, match="damaged"):
        load_preprocessing({"kind": "table", "scaling": "standard"})
    with pytest.raises(DataError, match="expected one of the kinds table, text"):
        load_preprocessing({"kind": "sound"})
