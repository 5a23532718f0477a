from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lightkit.data.tables.footers import footers_of
from lightkit.data.tables.stores import Store
from lightkit.errors import DataError


@pytest.mark.parametrize("num_columns", [1, 3000], ids=["short", "longer than one read"])
def test_a_footer_tells_what_the_file_holds(tmp_path: Path, num_columns: int) -> None:
    table = pa.table({f"column {number}": [1, 2, 3] for number in range(num_columns)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    (footer,) = footers_of(Store(), [str(tmp_path / "a.parquet")], missing="")
    assert footer.schema.names == table.schema.names
    assert [footer.metadata.row_group(number).num_rows for number in range(2)] == [2, 1]
    assert footer.size_bytes == (tmp_path / "a.parquet").stat().st_size


def test_footers_come_in_the_order_of_their_files(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{number}.parquet") for number in range(20)]
    for number, path in enumerate(paths):
        pq.write_table(pa.table({"x": [0] * (number + 1)}), path)
    footers = footers_of(Store(), paths[::-1], missing="")
    assert [footer.metadata.num_rows for footer in footers] == list(range(20, 0, -1))
    assert len({footer.digest for footer in footers}) == 20


def test_a_missing_file_is_told_in_the_callers_words(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"lost\.parquet is lost"):
        footers_of(Store(), [str(tmp_path / "lost.parquet")], missing="{path} is lost")


def test_a_folder_in_place_of_a_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"this file of the table cannot be read"):
        footers_of(Store(), [str(tmp_path)], missing="")
