from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs

from lightkit.data.tables.columns import find_columns, parse_filter
from lightkit.data.tables.index import index_table
from lightkit.errors import ConfigError, DataError
from lightkit.rows.parquet_table import DataFile, RowGroup, open_table
from tests.data.tables.conftest import WriteParquet

BATCH = pa.record_batch({
    "x": pa.array([1, 2, None, 4]),
    "name": pa.array(["a", "b", "c", None]).dictionary_encode(),
    "day": pa.array([date(2026, 1, day) for day in (1, 2, 3, 4)]),
    "yes": [True, False, None, True],
})  # fmt: skip


def passing(asked: Any, batch: pa.RecordBatch) -> list[int]:
    where = parse_filter(asked, batch.schema)
    return (
        list(range(batch.num_rows))
        if where is None
        else np.flatnonzero(where.passes(batch)).tolist()
    )


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()], ids=str)
@pytest.mark.parametrize("zero", [0, 0.0, -0.0], ids=str)
def test_both_zeros_are_the_same_number_in_every_condition(kind: pa.DataType, zero: float) -> None:
    zeros = np.array([0.0, -0.0, 1.0, np.nan], np.dtype(kind.to_pandas_dtype()))
    batch = pa.record_batch({"x": pa.array(zeros, kind)})
    assert passing([["x", "==", zero]], batch) == [0, 1]
    assert passing([["x", "in", [zero]]], batch) == [0, 1]
    assert passing([["x", "in", [zero, 1]]], batch) == [0, 1, 2]
    assert (
        passing([["x", "!=", zero]], batch) == passing([["x", "not in", [zero]]], batch) == [2, 3]
    )


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
            parse_filter(asked, BATCH.schema)
        return
    assert passing(asked, BATCH) == rows


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ([["x", "like", 1]], "'like' is not an operator; expected one of ==, =, !=, <"),
        ([["x", ">", "high"]], "column 'x' holds int64, so it cannot be compared with 'high'"),
        ([["x", ">", None]], r"cannot be compared with None\..* rows with nulls never pass"),
        ([["x", "==", True]], "cannot be compared with True"),
        ([["yes", "==", 1]], "column 'yes' holds bool, so it cannot be compared with 1"),
        ([["x", "in", 1]], "x 'in' expects a list of values, got 1"),
        ([["x", "==", [1]]], r"x '==' expects one value, got \[1\]"),
        ([["x", ">"]], r"expected \[column, operator, value\], such as .*got \['x', '>'\]"),
        ("x > 1", "expected .*, got 'x'"),
    ],
    ids=str,
)
def test_a_filter_that_cannot_be_meant_is_reported(asked: Any, says: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"data\.init_args\.filter: .*{says}|data\.init_args\.filter: {says}"
    ):
        parse_filter(asked, BATCH.schema)


def test_a_column_that_is_not_there_is_reported_with_near_names() -> None:
    with pytest.raises(
        DataError,
        match=r"data\.init_args\.filter: the table has no column 'nam'; did you mean 'name'",
    ):
        parse_filter([["nam", "==", "a"]], BATCH.schema)


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
    write_parquet: WriteParquet,
    monkeypatch: pytest.MonkeyPatch,
    asked: list[Any],
    groups: list[int],
) -> None:
    table = write_parquet({"x": list(range(8)), "label": ["a", "z"] * 4}, "of=train/a.parquet")
    read: list[int] = []
    plain = RowGroup.read

    def noting(group: RowGroup, *args: Any, **options: Any) -> Any:
        read.append(group.number)
        return plain(group, *args, **options)

    monkeypatch.setattr(RowGroup, "read", noting)
    snapshot = open_table(str(table))
    try:
        index = index_table(
            {None: snapshot}, find_columns(snapshot.schema, features="x"), filter=asked
        )
    except DataError:
        assert asked[0][0] == "label"  # no row is of that class, which only reading them shows
    else:
        batch = pa.record_batch({"x": list(range(8)), "of": ["train"] * 8})
        assert index.counts["train"] == len(passing(asked, batch))
    assert sorted(read) == groups


def test_a_partition_that_cannot_hold_such_rows_is_not_read(write_parquet: WriteParquet) -> None:
    write_parquet({"x": [0, 1], "label": ["a", "b"]}, "year=2024/a.parquet")
    table = write_parquet({"x": [2], "label": ["a"]}, "year=2025/a.parquet")
    damaged = table / "year=2024" / "a.parquet"
    content = bytearray(damaged.read_bytes())
    content[4:40] = b"\xff" * 36  # a page; nobody looks at it
    damaged.write_bytes(bytes(content))
    snapshot = open_table(str(table))
    index = index_table(
        {None: snapshot}, find_columns(snapshot.schema, features="x"), filter=[["year", ">=", 2025]]
    )
    assert index.counts == {"train": 1, "val": 0, "test": 0}


NAN = float("nan")
MOMENT = datetime(2024, 1, 1, tzinfo=UTC)
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
def test_statistics_take_away_no_row_that_passes(
    kind: str, drawn: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    column, values = KINDS[kind]
    value = st.sampled_from(values)
    rows = drawn.draw(st.lists(st.one_of(st.none(), value), min_size=1, max_size=4))
    operator = drawn.draw(st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "in", "not in"]))
    asked = drawn.draw(st.lists(value, max_size=3) if operator.endswith("in") else value)
    table = pa.table({"x": pa.array(rows, column)})
    path = tmp_path_factory.mktemp("table") / "a.parquet"
    pq.write_table(table, path)
    where = parse_filter([["x", operator, asked]], table.schema)
    assert where is not None
    file = DataFile(str(path), fs.LocalFileSystem(), table.schema, b"", {}, np.empty(0, np.int64))
    if not RowGroup(file, 0, 0, len(table), len(table), 0).may_match(where.row_groups):
        assert not where.passes(table.to_batches()[0]).any()


@pytest.mark.parametrize("with_statistics", [True, False], ids=["statistics", "no statistics"])
@pytest.mark.parametrize(("operator", "value"), [("!=", 5.0), ("not in", [5.0])])
def test_rows_of_nan_next_to_a_single_value_pass(
    tmp_path: Path, with_statistics: bool, operator: str, value: Any
) -> None:
    table = pa.table({"q": [5.0, NAN] * 20, "x": range(40), "label": ["a", "b"] * 20})
    pq.write_table(table, tmp_path / "a.parquet", write_statistics=with_statistics)
    snapshot = open_table(str(tmp_path))
    index = index_table({None: snapshot}, find_columns(snapshot.schema, features="x"),
                        filter=[["q", operator, value]],
                     val_fraction=0, test_fraction=0)  # fmt: skip
    assert index.counts["train"] == 20


MONEY = pa.decimal128(3, 2)
UTC = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("value", "kind", "says"),
    [
        (-1, pa.uint32(), "holds uint32, .* compared with -1"),
        (1.5, pa.int8(), r"compared with 1\.5"),
        ("3", pa.int64(), r"compared with '3'\. Write text in quotes"),
        ("0.5", pa.float32(), "Write text in quotes and numbers without"),
        (3, pa.string(), r"compared with 3\. Write text in quotes"),
        ("high", pa.int64(), r"compared with 'high'"),
        ("dear", MONEY, r"holds decimal128\(3, 2\), so it cannot be compared with 'dear'"),
        (10**400, pa.float64(), "compared with 1000"),
        ("2024-13-15", UTC, "compared with '2024-13-15'"),
        ("2024-01-15T00:00Z", pa.timestamp("us"), "compared with '2024-01-15T00:00Z'"),
    ],
    ids=lambda part: str(part)[:40],
)
def test_a_value_that_cannot_be_compared_is_reported(
    value: Any, kind: pa.DataType, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_filter([["x", ">", value]], pa.schema([("x", kind)]))


@pytest.mark.parametrize(
    ("operator", "value", "passed"),
    [
        ("==", 1.5, [1]),
        (">", 1.555, [2]),
        ("<", 1000, [0, 1, 2]),
        ("in", [1.5, "2.250", 10**50], [1, 2]),
        ("not in", [1.5, 0.001], [0, 2]),
        ("==", "1.0", [0]),
    ],
    ids=str,
)
def test_decimals_are_compared_with_any_number(
    operator: str, value: Any, passed: list[int]
) -> None:
    column = pa.array([Decimal("1.00"), Decimal("1.50"), Decimal("2.25"), None], MONEY)
    assert passing([["x", operator, value]], pa.record_batch({"x": column})) == passed


@pytest.mark.parametrize(
    "kind", [UTC, pa.timestamp("ms", "Europe/Berlin"), pa.timestamp("s")], ids=str
)
def test_a_text_is_a_moment_of_utc(kind: pa.DataType) -> None:
    # 2024-01-15
    seconds = pa.array([1705276800 + hour * 3600 for hour in (-1, 0, 1)], pa.timestamp("s"))
    batch = pa.record_batch(
        {"x": seconds.cast(pa.timestamp(kind.unit)).cast(pa.int64()).cast(kind)}
    )
    assert passing([["x", ">=", "2024-01-15"]], batch) == [1, 2]


def test_half_precision_is_compared_in_single_precision() -> None:
    batch = pa.record_batch({"x": pa.array(np.array([1, 2, 3], np.float16))})
    assert passing([["x", ">=", 2]], batch) == [1, 2]
