from __future__ import annotations

import io
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightkit.data.tables import snapshot as snapshots
from lightkit.data.tables.columns import columns_of
from lightkit.data.tables.filters import filter_of
from lightkit.data.tables.indexing import index_of
from lightkit.data.tables.opening import open_table
from lightkit.errors import ConfigError, DataError
from tests.data.tables.conftest import WriteParquet

BATCH = pa.record_batch({
    "x": pa.array([1, 2, None, 4]),
    "name": pa.array(["a", "b", "c", None]).dictionary_encode(),
    "day": pa.array([date(2026, 1, day) for day in (1, 2, 3, 4)]),
    "yes": [True, False, None, True],
})  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "rows"),
    [
        (None, [0, 1, 2, 3]),
        ([], [0, 1, 2, 3]),
        ([["x", ">", 1]], [1, 3]),
        (["x", "=", 1], None),
        ([["x", "=", 1.0]], [0]),
        ([["x", "!=", 1]], [1, 3]),
        ([["x", "<=", 2], ["name", "==", "b"]], [1]),
        ([["x", "in", [1, 4, 7]]], [0, 3]),
        ([["x", "not  IN", [1]]], [1, 3]),
        ([["x", "in", []]], []),
        ([[["x", "==", 1]], [["name", "==", "c"], ["day", ">", "2026-01-02"]]], [0, 2]),
        ([["day", "<", "2026-01-03"]], [0, 1]),
        ([["yes", "==", True]], [0, 3]),
    ],
    ids=str,
)
def test_rows_pass_as_in_sql(asked: list[Any] | None, rows: list[int] | None) -> None:
    if rows is None:
        with pytest.raises(ConfigError, match=r"expected \[column, operator, value\]"):
            filter_of(asked, BATCH.schema)
        return
    passed = filter_of(asked, BATCH.schema).holds(BATCH).to_pylist()
    assert [row for row, passes in enumerate(passed) if passes] == rows


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ([["x", "like", 1]], "'like' is no operator; expected one of ==, =, !=, <"),
        ([["x", ">", "high"]], "column 'x' holds int64, so it cannot be compared with 'high'"),
        ([["x", ">", None]], "cannot be compared with None; rows with nulls never pass"),
        ([["x", "==", True]], "cannot be compared with True"),
        ([["yes", "==", 1]], "column 'yes' holds bool, so it cannot be compared with 1"),
        ([["x", "in", 1]], "x 'in' expects a list of values, got 1"),
        ([["x", "==", [1]]], r"x '==' expects one value, got \[1\]"),
        ([["x", ">"]], r"expected \[column, operator, value\], such as .*got \['x', '>'\]"),
        ("x > 1", "expected .*, got 'x'"),
    ],
    ids=str,
)
def test_a_filter_that_cannot_be_meant_is_told(asked: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=rf"data\.init_args\.filter: .*{says}|data\.init_args\.filter: {says}"):
        filter_of(asked, BATCH.schema)


def test_a_column_that_is_not_there_is_told_with_near_names() -> None:
    with pytest.raises(DataError, match=r"data\.init_args\.filter: the table has no column 'nam'; did you mean 'name'"):
        filter_of([["nam", "==", "a"]], BATCH.schema)


@pytest.mark.parametrize(
    ("asked", "groups"),
    [
        ([["x", ">=", 6]], [3]),
        ([["x", "<", 2]], [0]),
        ([["x", "==", 3]], [1]),
        ([["x", "!=", 0]], [0, 1, 2, 3]),
        ([["x", "in", [0, 7]]], [0, 3]),
        ([[["x", "<", 2]], [["x", ">", 5]]], [0, 3]),
        ([["of", "==", "train"], ["x", ">", 0]], [0, 1, 2, 3]),
        ([["label", "==", "c"], ["x", "<", 6]], [0, 1, 2]),
    ],
    ids=str,
)
def test_row_groups_that_cannot_hold_such_rows_are_not_read(
    write_parquet: WriteParquet, monkeypatch: pytest.MonkeyPatch, asked: list[Any], groups: list[int]
) -> None:
    table = write_parquet({"x": list(range(8)), "label": ["a", "z"] * 4}, "of=train/a.parquet")
    read: list[int] = []
    plain = snapshots.RowGroup.read

    def noting(group: snapshots.RowGroup, *args: Any, **options: Any) -> Any:
        read.append(group.number)
        return plain(group, *args, **options)

    monkeypatch.setattr(snapshots.RowGroup, "read", noting)
    snapshot = open_table(str(table))
    try:
        index = index_of(snapshot, columns_of(snapshot.schema, features="x"), filter=asked)
    except DataError:
        assert asked[0][0] == "label"  # no row is of that class, which only reading them shows
    else:
        expected = [x for x in range(8) if filter_of(asked, pa.schema([("x", pa.int64()), ("of", pa.string())]))
                    .holds(pa.record_batch({"x": [x], "of": ["train"]}))[0].as_py()]  # fmt: skip
        assert index.counts["train"] == len(expected)
    assert sorted(read) == groups


def test_a_partition_that_cannot_hold_such_rows_is_not_read(write_parquet: WriteParquet) -> None:
    write_parquet({"x": [0, 1], "label": ["a", "b"]}, "year=2024/a.parquet")
    table = write_parquet({"x": [2], "label": ["a"]}, "year=2025/a.parquet")
    damaged = table / "year=2024" / "a.parquet"
    content = bytearray(damaged.read_bytes())
    content[4:40] = b"\xff" * 36  # a page; nobody looks at it
    damaged.write_bytes(bytes(content))
    snapshot = open_table(str(table))
    index = index_of(snapshot, columns_of(snapshot.schema, features="x"), filter=[["year", ">=", 2025]])
    assert index.counts == {"train": 1, "val": 0, "test": 0}


NAN = float("nan")
MOMENT = datetime(2024, 1, 1, tzinfo=timezone.utc)
KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "double": (pa.float64(), [-1.0, -0.0, 0.0, 5.0, NAN]),
    "half": (pa.float16(), [-1.0, 0.0, 5.0, NAN]),
    "unsigned": (pa.uint32(), [0, 1, 2**32 - 1]),
    "text": (pa.string(), ["", "a", "ü"]),
    "decimal": (pa.decimal128(3, 2), [Decimal("-1.00"), Decimal("0.00"), Decimal("1.50")]),
    "moment": (pa.timestamp("us", "UTC"), [MOMENT, MOMENT + timedelta(microseconds=1)]),
    "truth": (pa.bool_(), [False, True]),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(derandomize=True)
@given(drawn=st.data())
def test_statistics_take_away_no_row_that_passes(kind: str, drawn: st.DataObject) -> None:
    column, values = KINDS[kind]
    value = st.sampled_from(values)
    rows = drawn.draw(st.lists(st.one_of(st.none(), value), min_size=1, max_size=4))
    operator = drawn.draw(st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "in", "not in"]))
    asked = drawn.draw(st.lists(value, max_size=3) if operator.endswith("in") else value)
    table = pa.table({"x": pa.array(rows, column)})
    stored = io.BytesIO()
    pq.write_table(table, stored)
    where = filter_of([["x", operator, asked]], table.schema)
    if not where.can_hold({}, pq.read_metadata(stored).row_group(0)):
        assert not any(where.holds(table.to_batches()[0]).to_pylist())


@pytest.mark.parametrize("with_statistics", [True, False], ids=["statistics", "no statistics"])
@pytest.mark.parametrize(("operator", "value"), [("!=", 5.0), ("not in", [5.0])])
def test_rows_of_nan_beside_a_single_value_pass(
    tmp_path: Path, with_statistics: bool, operator: str, value: Any
) -> None:
    table = pa.table({"q": [5.0, NAN] * 20, "x": range(40), "label": ["a", "b"] * 20})
    pq.write_table(table, tmp_path / "a.parquet", write_statistics=with_statistics)
    snapshot = open_table(str(tmp_path))
    index = index_of(snapshot, columns_of(snapshot.schema, features="x"), filter=[["q", operator, value]],
                     val_fraction=0, test_fraction=0)  # fmt: skip
    assert index.counts["train"] == 20
