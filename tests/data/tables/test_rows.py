from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from lightkit.data.tables.columns import Columns
from lightkit.data.tables.opening import open_table
from lightkit.data.tables.rows import class_name, label_values, read_rows, rows_at_once, weight_values
from lightkit.data.tables.snapshot import DataFile, RowGroup
from lightkit.data.tables.stores import Store
from tests.data.tables.conftest import WriteParquet


@pytest.mark.parametrize("wanted", [[], [0], [4], [1, 2, 4], [0, 1, 2, 3, 4]], ids=str)
def test_exactly_the_rows_that_are_wanted_are_read(write_parquet: WriteParquet, wanted: list[int]) -> None:
    table = write_parquet({"x": list(range(5)), "label": ["a", "b"] * 2 + ["a"], "w": [0.5] * 5}, rows=5)
    (group,) = open_table(str(table)).fragments
    columns = Columns(None, ("x",), "label", weight="w")
    rows = list(read_rows(group, columns, np.array(wanted, int), class_numbers={"a": 0, "b": 1}, shapes=((),)))
    assert [row.features.tolist() for row in rows if row.features is not None] == [[x] for x in wanted]
    assert [row.label for row in rows] == [x % 2 for x in wanted]
    assert {row.weight for row in rows} <= {0.5}
    assert [row.place for row in rows] == [f"{table}/part-0.parquet, row {x}" for x in wanted]
    assert all(row.image is None for row in rows)


def test_a_table_without_labels_gives_none(write_parquet: WriteParquet) -> None:
    (group,) = open_table(str(write_parquet({"image": [b"a"]}))).fragments
    (row,) = read_rows(group, Columns("image", (), None), np.array([0]), class_numbers={}, shapes=())
    assert (row.image, row.features, row.label, row.weight) == (b"a", None, None, None)


def test_large_rows_are_read_a_few_at_a_time() -> None:
    file = DataFile("f", Store(), pa.schema([]))
    assert rows_at_once(RowGroup(file, 0, 0, 100, 100, 100 * 65_000)) == 64
    assert rows_at_once(RowGroup(file, 0, 0, 2, 2, 10**9)) == 1
    assert rows_at_once(RowGroup(file, 0, 0, 10**6, 10**6, 10**6)) == 4096


@pytest.mark.parametrize(("value", "name"), [("a b", "a b"), (-3, "-3"), (True, "true")], ids=str)
def test_a_class_is_known_by_its_name(value: str | int, name: str) -> None:
    assert class_name(value) == name


def test_labels_that_cannot_be_used_are_none() -> None:
    batch = pa.record_batch({"y": [1.0, None, float("nan"), 2.5, float("inf"), 1e300]})
    values = label_values(batch, Columns(None, (), "y", target="value"))
    assert values == [1.0, None, None, 2.5, None, None]
    assert label_values(batch, Columns(None, (), "y", target="class"))[:4] == [1, None, None, None]


def test_weights_that_cannot_be_used_are_nan() -> None:
    weights = weight_values(pa.record_batch({"w": [0.0, 2.0, -1.0, None, float("inf")]}), "w")
    np.testing.assert_array_equal(weights, np.array([0, 2, np.nan, np.nan, np.nan], np.float32))


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("label", None, "no label that was there when the table was opened"),
        ("label", "c", "no label that was there when the table was opened"),
        ("w", -1.0, "column 'w' has no weight of 0 or more"),
        ("x", float("nan"), "a null, NaN, infinity or another length in x"),
    ],
    ids=["null label", "unknown class", "weight", "features"],
)
def test_rows_that_cannot_be_used_any_more_say_why(
    write_parquet: WriteParquet, column: str, value: object, reason: str
) -> None:
    rows = {"x": [0.0, 1.0], "label": ["a", "b"], "w": [0.5, 0.5]}
    rows[column][1] = value  # type: ignore[index]
    (group,) = open_table(str(write_parquet(rows))).fragments
    columns = Columns(None, ("x",), "label", weight="w")
    found = list(read_rows(group, columns, np.arange(2), class_numbers={"a": 0, "b": 1}, shapes=((),)))
    assert found[0].defect is None
    assert reason in (found[1].defect or "")
