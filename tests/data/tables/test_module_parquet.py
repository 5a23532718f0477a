from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lightkit.errors import DataError
from lightkit.rows.parquet_table import Snapshot, open_table
from tests.data.tables.conftest import WriteParquet


def rows_of(snapshot: Snapshot, *columns: str) -> list[tuple[object, ...]]:
    batches = (batch for group in snapshot.groups for batch in group.read(columns, batch_rows=3))
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def test_files_of_all_folders_are_one_table_in_the_order_of_their_paths(
    write_parquet: WriteParquet,
) -> None:
    write_parquet({"x": [2, 3, 4]}, "b/part.PARQUET")
    table = write_parquet({"x": [0, 1]}, "a/part.parquet")
    snapshot = open_table(str(table))
    assert rows_of(snapshot, "x") == [(0,), (1,), (2,), (3,), (4,)]
    assert [(Path(group.file.path).parent.name, group.number,
             group.num_rows) for group in snapshot.groups] == [
        ("a", 0, 2), ("b", 0, 2), ("b", 1, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name", ["_tmp/x.parquet", ".hidden.parquet", "_SUCCESS.parquet", "notes.txt"]
)
def test_what_is_hidden_or_no_parquet_is_left_out(write_parquet: WriteParquet, name: str) -> None:
    table = write_parquet({"x": [0]})
    (table / name).parent.mkdir(exist_ok=True)
    (table / name).write_text("no table")
    assert rows_of(open_table(str(table)), "x") == [(0,)]


def test_folders_say_columns(write_parquet: WriteParquet) -> None:
    write_parquet({"x": [0]}, "split=train/year=2024/a.parquet")
    write_parquet({"x": [1]}, "split=a%20b/year=2025/a.parquet")
    table = write_parquet({"x": [2]}, "split=__HIVE_DEFAULT_PARTITION__/year=2026/a.parquet")
    snapshot = open_table(str(table))
    assert sorted(rows_of(snapshot, "x", "split", "year")) == [
        (0, "train", 2024), (1, "a b", 2025), (2, None, 2026)
    ]  # fmt: skip
    assert snapshot.schema.field("year").type == pa.int64()


def test_folders_with_leading_zeros_say_text(write_parquet: WriteParquet) -> None:
    write_parquet({"x": [0]}, "fold=07/a.parquet")
    assert rows_of(open_table(str(write_parquet({"x": [1]}, "fold=8/a.parquet"))), "fold") == [
        ("07",),
        ("8",),
    ]


def test_only_partition_columns_can_be_read(write_parquet: WriteParquet) -> None:
    table = write_parquet({"x": [0, 1, 2, 3]}, "fold=1/a.parquet", rows=4)
    assert rows_of(open_table(str(table)), "fold") == [(1,)] * 4


def test_columns_that_a_file_lacks_are_null_and_numbers_become_wide_enough(
    write_parquet: WriteParquet,
) -> None:
    write_parquet({"x": pa.array([1], pa.int32())}, "a.parquet")
    table = write_parquet({"x": pa.array([2], pa.int64()), "w": [0.5]}, "b.parquet")
    snapshot = open_table(str(table))
    assert rows_of(snapshot, "w", "x") == [(None, 1), (0.5, 2)]
    assert snapshot.schema.field("x").type == pa.int64()


def test_the_fingerprint_is_of_names_sizes_and_footers(
    write_parquet: WriteParquet, tmp_path: Path
) -> None:
    table = write_parquet({"x": [1, 2]})
    before = open_table(str(table)).fingerprint
    moved = table.rename(tmp_path / "elsewhere")
    assert open_table(str(moved)).fingerprint == before
    (moved / "part-0.parquet").rename(moved / "part-1.parquet")
    assert open_table(str(moved)).fingerprint != before
    assert open_table(str(write_parquet({"x": [1, 3]}))).fingerprint != before


def test_a_folder_without_parquet_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no Parquet files here\. Set data\.init_args\.path"):
        open_table(str(tmp_path))


def test_a_file_that_is_written_over_while_the_table_is_read_is_reported(
    write_parquet: WriteParquet,
) -> None:
    table = write_parquet({"x": [1, 2, 3, 4]}, rows=2)
    snapshot = open_table(str(table))
    first, second = snapshot.groups
    assert sum(batch.num_rows for batch in first.read(["x"], batch_rows=2)) == 2
    write_parquet({"x": [1, 2, 3, 5]}, rows=2)
    with pytest.raises(DataError, match=r"part-0\.parquet: .* written over after"):
        list(second.read(["x"], batch_rows=2))


def test_damage_that_comes_while_a_file_is_read_is_reported_as_what_it_is(
    write_parquet: WriteParquet,
) -> None:
    table = write_parquet({"x": list(range(1000))}, rows=1000)
    (group,) = open_table(str(table)).groups
    file = table / "part-0.parquet"
    with group.file.open():  # what it says of itself is known from here on
        file.write_bytes(b"\xff" * file.stat().st_size)
    with pytest.raises(DataError, match="written over after the table was opened"):
        list(group.read(["x"], batch_rows=10))


def test_a_row_group_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    images = [os.urandom(50_000) for _ in range(400)]  # 20 MB
    table = pa.table({"image": images})
    pq.write_table(
        table, tmp_path / "a.parquet", use_dictionary=False, write_batch_size=8, compression="none"
    )
    del images, table
    (group,) = open_table(str(tmp_path)).groups
    before, most, num_rows = pa.total_allocated_bytes(), 0, 0
    for batch in group.read(["image"], batch_rows=10):
        most = max(most, pa.total_allocated_bytes() - before)
        num_rows += batch.num_rows
    assert num_rows == group.num_rows == 400
    assert most < 6e6  # a buffer, some pages and a batch


def test_columns_come_in_the_order_in_which_they_are_asked_for(write_parquet: WriteParquet) -> None:
    snapshot = open_table(
        str(write_parquet({"a": [1, 2, 3], "b": [4, 5, 6], "c": [7, 8, 9]}, rows=3))
    )
    batches = list(snapshot.groups[0].read(["c", "a"], batch_rows=2))
    assert [batch.to_pydict() for batch in batches] == [
        {"c": [7, 8], "a": [1, 2]},
        {"c": [9], "a": [3]},
    ]
