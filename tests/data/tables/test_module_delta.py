from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lightkit.errors import ConfigError, DataError
from lightkit.images.delta_table import find_unreadable
from lightkit.rows.parquet_table import Snapshot, open_table
from tests.data.tables.conftest import WriteDelta, delete_by_vector, map_columns

ROWS = {"x": list(range(6)), "label": ["a", "b"] * 3}


def rows_of(snapshot: Snapshot, *columns: str) -> list[tuple[object, ...]]:
    return [
        tuple(row.values())
        for group in snapshot.groups
        for batch in group.read(columns, batch_rows=4)
        for row in batch.to_pylist()
    ]


def xs(snapshot: Snapshot) -> list[object]:
    return sorted(x for (x,) in rows_of(snapshot, "x"))  # type: ignore[type-var]


def test_the_newest_version_is_read_and_stays(write_delta: WriteDelta) -> None:
    table = write_delta({"x": [0]})
    snapshot = open_table(str(table))
    write_delta({"x": [1]}, mode="overwrite")
    assert (snapshot.version, xs(snapshot)) == (0, [0])
    newer = open_table(str(table))
    assert (newer.version, xs(newer)) == (1, [1])  # and no file of the version before
    assert newer.fingerprint != snapshot.fingerprint


def test_a_version_is_read_again_by_its_number(write_delta: WriteDelta) -> None:
    first = open_table(str(write_delta({"x": [0]}))).fingerprint
    table = write_delta({"x": [1]}, mode="append")
    assert xs(open_table(str(table))) == [0, 1]
    again = open_table(str(table), version=0)
    assert (again.version, again.fingerprint, xs(again)) == (0, first, [0])


def test_a_timestamp_chooses_the_version_of_its_moment(write_delta: WriteDelta) -> None:
    table = write_delta({"x": [0]})
    write_delta({"x": [1]}, mode="append")
    for version, seconds in enumerate([1_700_000_000, 1_800_000_000]):
        log = table / "_delta_log" / f"{version:020d}.json"
        text = log.read_text()
        start = text.index('"timestamp":') + len('"timestamp":')
        log.write_text(text[:start] + str(seconds * 1000) + text[text.index(",", start) :])
        os.utime(log, (seconds, seconds))
    snapshot = open_table(str(table), timestamp="2024-05-01T12:00:00Z")
    assert (snapshot.version, xs(snapshot)) == (0, [0])
    with pytest.raises(
        DataError, match=r"no state of .*timestamp 2020-01-01; it has version 0 \(2023-11-14T22"
    ):
        open_table(str(table), timestamp="2020-01-01")


def test_a_timestamp_that_is_no_moment_is_refused(write_delta: WriteDelta) -> None:
    with pytest.raises(
        ConfigError, match=r"expected a moment such as .* \(ISO 8601\), got 'yesterday'"
    ):
        open_table(str(write_delta(ROWS)), timestamp="yesterday")


def test_a_version_that_does_not_exist_is_reported_with_those_that_do(
    write_delta: WriteDelta,
) -> None:
    table = write_delta(ROWS)
    with pytest.raises(
        DataError, match=r"this Delta table has no version 7; it has version 0 .* to version 0\."
    ):
        open_table(str(table), version=7)
    write_delta(ROWS, mode="append")
    with pytest.raises(
        DataError, match=r"this Delta table has no version 7; it has version 0 .* to version 1\."
    ):
        open_table(str(table), version=7)


def test_columns_that_came_later_are_null_in_older_files(write_delta: WriteDelta) -> None:
    write_delta({"x": [0]})
    table = write_delta({"x": [1], "w": [0.5]}, mode="append", schema_mode="merge")
    assert sorted(rows_of(open_table(str(table)), "x", "w")) == [(0, None), (1, 0.5)]
    assert open_table(str(table), version=0).schema.names == ["x"]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["a b", "ü/é", None], pa.string()),
        ([1, -2, None], pa.int32()),
        ([True, False, None], pa.bool_()),
    ],
    ids=["text", "integers", "booleans"],
)
def test_partition_columns_come_from_the_log(
    write_delta: WriteDelta, values: list[object], kind: pa.DataType
) -> None:
    table = write_delta({"x": [0, 1, 2], "of": pa.array(values, kind)}, partition_by=["of"])
    snapshot = open_table(str(table))
    assert sorted(rows_of(snapshot, "x", "of")) == list(zip([0, 1, 2], values, strict=True))
    assert [row for (row,) in rows_of(snapshot, "of")].count(None) == 1
    assert snapshot.schema.field("of").type == kind


def test_rows_that_a_deletion_vector_deletes_are_not_read(write_delta: WriteDelta) -> None:
    table = write_delta(ROWS)
    delete_by_vector(table, [1, 4])
    snapshot = open_table(str(table))
    assert (snapshot.version, xs(snapshot)) == (1, [0, 2, 3, 5])
    (group,) = snapshot.groups
    assert [name.rpartition(", ")[2] for name in group.row_names(np.arange(4))] == [
        "row 0",
        "row 2",
        "row 3",
        "row 5",
    ]
    before = open_table(str(table), version=0)
    assert xs(before) == ROWS["x"]
    assert before.fingerprint != snapshot.fingerprint


def test_other_deletion_vectors_make_another_fingerprint(write_delta: WriteDelta) -> None:
    table = write_delta(ROWS)
    copy = table.with_name("copy")
    shutil.copytree(table, copy)
    assert open_table(str(table)).fingerprint == open_table(str(copy)).fingerprint
    delete_by_vector(table, [1, 4])
    delete_by_vector(copy, [1, 3])
    assert open_table(str(table)).fingerprint != open_table(str(copy)).fingerprint


def test_a_row_group_counts_its_own_deleted_rows(write_delta: WriteDelta) -> None:
    from deltalake import WriterProperties  # an extra

    table = write_delta(ROWS, writer_properties=WriterProperties(max_row_group_size=2))
    delete_by_vector(table, [0, 1, 2])
    snapshot = open_table(str(table))
    assert [group.num_rows for group in snapshot.groups] == [1, 2]
    assert xs(snapshot) == [3, 4, 5]


def test_column_mapping_is_refused_with_what_to_do(write_delta: WriteDelta) -> None:
    table = write_delta(ROWS)
    map_columns(table)
    with pytest.raises(
        DataError,
        match=r"uses columnMapping, which lightkit cannot read\. Copy it to a table without",
    ):
        open_table(str(table))


def test_a_table_with_deletion_vectors_of_deltalake_is_read(write_delta: WriteDelta) -> None:
    table = write_delta(ROWS, configuration={"delta.enableDeletionVectors": "true"})
    features = importorskip_delta(table).protocol().reader_features
    assert "deletionVectors" in features
    assert xs(open_table(str(table))) == ROWS["x"]
    importorskip_delta(table).delete("x = 2")
    assert xs(open_table(str(table))) == [0, 1, 3, 4, 5]


def importorskip_delta(table: Path) -> Any:
    return pytest.importorskip("deltalake", reason="needs the extra delta (deltalake)").DeltaTable(
        table
    )


@pytest.mark.parametrize(
    ("field", "unreadable"),
    [
        ({"name": "variant", "type": "string"}, []),
        ({"name": "x", "type": "variant"}, ["variantType"]),
        (
            {
                "name": "x",
                "type": {"type": "array", "elementType": "variant", "containsNull": True},
            },
            ["variantType"],
        ),
    ],
    ids=["a column of that name", "a column", "in a list"],
)
def test_variants_are_refused_where_there_are_some(
    field: dict[str, Any], unreadable: list[str]
) -> None:
    table: Any = SimpleNamespace(
        protocol=lambda: SimpleNamespace(reader_features=["deletionVectors", "variantType"]),
        metadata=lambda: SimpleNamespace(configuration={}),
        schema=lambda: SimpleNamespace(
            to_json=lambda: json.dumps({"type": "struct", "fields": [field]})
        ),
    )
    assert find_unreadable(table) == unreadable
