from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lightkit.data.tables.opening import open_table
from lightkit.data.tables.snapshot import DataFile, RowGroup
from lightkit.data.tables.stores import Store
from lightkit.errors import DataError
from tests.data.tables.conftest import WriteParquet


def test_a_row_group_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    images = [os.urandom(50_000) for _ in range(400)]  # 20 MB
    pq.write_table(
        pa.table({"image": images}),
        tmp_path / "a.parquet",
        use_dictionary=False,
        write_batch_size=8,
        compression="none",
    )
    del images
    (group,) = open_table(str(tmp_path)).fragments
    before, most, num_rows = pa.total_allocated_bytes(), 0, 0
    for batch in group.read(["image"], batch_rows=10):
        most = max(most, pa.total_allocated_bytes() - before)
        num_rows += batch.num_rows
    assert num_rows == group.num_rows == 400
    assert most < 6e6  # a buffer, some pages and a batch


def test_columns_come_in_the_order_in_which_they_are_asked_for(write_parquet: WriteParquet) -> None:
    snapshot = open_table(str(write_parquet({"a": [1, 2, 3], "b": [4, 5, 6], "c": [7, 8, 9]}, rows=3)))
    batches = list(snapshot.fragments[0].read(["c", "a"], batch_rows=2))
    assert [batch.to_pydict() for batch in batches] == [{"c": [7, 8], "a": [1, 2]}, {"c": [9], "a": [3]}]


def test_a_value_that_does_not_fit_the_tables_type_is_told(write_parquet: WriteParquet) -> None:
    table = write_parquet({"a": [1, 300]})
    (group,) = open_table(str(table)).fragments
    file = DataFile(group.path, Store(), pa.schema([("a", pa.int8())]))
    with pytest.raises(DataError, match=r"column 'a' holds int64, which does not fit the table's int8 \(.*300"):
        list(RowGroup(file, 0, 0, 2, 2, 16).read(["a"], batch_rows=2))


def test_places_count_deleted_rows() -> None:
    file = DataFile("f.parquet", Store(), pa.schema([]), deleted=np.array([1, 11, 12]))
    group = RowGroup(file, 1, 10, 5, 3, 1)
    assert group.places(np.array([0, 1, 2])) == ["f.parquet, row 10", "f.parquet, row 13", "f.parquet, row 14"]
    assert group.key == (0, "f.parquet", 1)
