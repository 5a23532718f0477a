from __future__ import annotations

import os
from pathlib import Path

import pytest

from lightkit.data.tables.file_states import FileState, state_of
from lightkit.data.tables.opening import open_table
from lightkit.data.tables.stores import Store
from lightkit.errors import DataError
from tests.data.tables.conftest import ObjectStore, WriteParquet


def test_a_file_that_took_the_time_of_another_is_another_entry_with_equal_times(tmp_path: Path) -> None:
    old, new = tmp_path / "a", tmp_path / "b"
    old.write_text("one")
    before = state_of(Store(), str(old))
    new.write_text("two")
    os.utime(new, ns=(old.stat().st_atime_ns, old.stat().st_mtime_ns))
    new.replace(old)
    after = state_of(Store(), str(old))
    assert before != after
    assert not before.is_written_over(after)  # a copy of the same may take its place while it is read


@pytest.mark.parametrize(
    ("now", "is_other"),
    [
        (FileState(3, ("1",), (9, 9)), False),
        (FileState(3, ("2",), (7, 8)), True),
        (FileState(4, ("1",), (7, 8)), True),
    ],
    ids=["other entry", "other time", "other size"],
)
def test_size_and_time_tell_that_a_file_was_written_over(now: FileState, is_other: bool) -> None:
    assert FileState(3, ("1",), (7, 8)).is_written_over(now) == is_other


@pytest.mark.slow
def test_an_object_that_is_replaced_while_it_is_read_is_told(
    write_parquet: WriteParquet, object_store: ObjectStore
) -> None:
    write_parquet({"x": [1, 2]})
    place = f"s3://{object_store.bucket}/table"
    snapshot = open_table(place, storage_options=object_store.options)
    assert "etag" in snapshot.states.lower()
    assert open_table(place, storage_options=object_store.options).states == snapshot.states
    write_parquet({"x": [1, 2, 3]})
    with pytest.raises(DataError, match="replaced or written over after the table was opened"):
        list(snapshot.fragments[0].read(["x"], batch_rows=2))
