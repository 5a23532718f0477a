"""A Parquet file of images: what is in it, and that it can be read in small pieces."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from lightkit.errors import DataError
from lightkit.images.table_writer import _SCHEMA as SCHEMA
from lightkit.images.table_writer import plan_files, write_file
from tests.images.conftest import MakeRows


def _ignore(_rows: int, _bytes: int) -> None:
    pass


def test_the_file_holds_the_bytes_and_all_else_of_every_row(make_rows: MakeRows, tmp_path: Path) -> None:
    rows = make_rows(23)
    (groups,) = plan_files(rows, num_files=1, row_group_bytes=4_000)
    write_file(tmp_path / "part.parquet", groups, advance=_ignore)

    table = parquet.read_table(tmp_path / "part.parquet")
    assert table.schema.equals(SCHEMA)
    by_path = {row.path: row for row in rows}
    assert sorted(table["path"].to_pylist()) == sorted(by_path)
    for found in table.to_pylist():
        row = by_path[found["path"]]
        assert found["image"] == row.file.read_bytes()
        assert (found["label"], found["split"], found["width"], found["height"]) == (
            row.label, row.split, row.width, row.height,
        )  # fmt: skip


def test_the_row_groups_are_those_that_were_laid_out_and_say_their_split(make_rows: MakeRows, tmp_path: Path) -> None:
    (groups,) = plan_files(make_rows(40), num_files=1, row_group_bytes=5_000)
    write_file(tmp_path / "part.parquet", groups, advance=_ignore)

    metadata = parquet.read_metadata(tmp_path / "part.parquet")
    found = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    assert [group.num_rows for group in found] == [len(group) for group in groups]
    of_split = SCHEMA.get_field_index("split")
    said = [(group.column(of_split).statistics.min, group.column(of_split).statistics.max) for group in found]
    assert said == [(group[0].split, group[0].split) for group in groups]


def test_a_reader_that_streams_holds_a_small_part_of_a_row_group(make_rows: MakeRows, tmp_path: Path) -> None:
    (groups,) = plan_files(make_rows(100, num_bytes=200_000), num_files=1, row_group_bytes=1 << 30)
    write_file(tmp_path / "part.parquet", groups, advance=_ignore)
    assert len(groups[0]) == 70

    file = parquet.ParquetFile(tmp_path / "part.parquet", memory_map=False, buffer_size=1 << 16, pre_buffer=False)
    before, most = pa.total_allocated_bytes(), 0
    for _ in file.iter_batches(4, row_groups=[0], columns=["image"], use_threads=False):
        most = max(most, pa.total_allocated_bytes() - before)
    assert 0 < most < 14_000_000 / 2


def test_memory_is_bounded_by_the_row_group(make_rows: MakeRows, tmp_path: Path) -> None:
    (groups,) = plan_files(make_rows(80, num_bytes=200_000), num_files=1, row_group_bytes=1_000_000)
    kept: list[int] = []
    tracemalloc.start()
    try:
        write_file(
            tmp_path / "part.parquet", groups, advance=lambda rows, size: kept.append(pa.total_allocated_bytes())
        )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(groups) >= 16
    assert peak < 4_000_000
    assert max(kept) - min(kept) < 3_000_000


def test_it_is_told_how_much_is_written_after_each_row_group(make_rows: MakeRows, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    (groups,) = plan_files(make_rows(20), num_files=1, row_group_bytes=5_000)
    write_file(tmp_path / "part.parquet", groups, advance=lambda rows, size: told.append((rows, size)))
    assert told == [(len(group), 1000 * len(group)) for group in groups]


def test_an_image_that_changes_or_goes_meanwhile_ends_it_with_its_name(make_rows: MakeRows, tmp_path: Path) -> None:
    rows = make_rows(4)
    groups = plan_files(rows, num_files=1, row_group_bytes=9_000)[0]
    rows[1].file.write_bytes(b"another")
    with pytest.raises(DataError, match=r"1\.jpg: this image was changed while the table was written\. Nothing"):
        write_file(tmp_path / "changed.parquet", groups, advance=_ignore)
    rows[1].file.unlink()
    with pytest.raises(DataError, match=r"1\.jpg: No such file or directory, and was an image a moment ago"):
        write_file(tmp_path / "gone.parquet", groups, advance=_ignore)
