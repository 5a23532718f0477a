"""Rows of a DataFrame, as those of the table that it was read from."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lightkit.errors import DataError
from lightkit.rows.frame import read_frame
from lightkit.rows.reader import open_rows
from lightkit.rows.table import TableFit
from lightkit.rows.values import ColumnType, read_columns

TYPES: dict[str, ColumnType] = {
    "n": "number",
    "i": "number",
    "c": "category",
    "f": "category",
    "d": "date",
}
TABLE = """\
n,i,c,f,d,g
1.5,3,oak,True,2026-01-02,1.50
,4,,False,,2.00
-2e3,,elm,,2026-03-04T05:06:07,1.50
7,2,oak,True,2026-01-02,2.00
"""


def test_a_frame_is_encoded_as_the_table_that_it_was_read_from(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(TABLE, encoding="utf-8")
    types: dict[str, ColumnType] = {**TYPES, "g": "category"}
    (batch,) = open_rows(str(path)).read(list(types))
    rows, _ = read_columns(batch.rows, types)
    fitted = TableFit(types, scaling="quantile", min_count=1)
    fitted.add(rows)
    preprocessing = fitted.finish()
    assert preprocessing.categories[1].values == ("False", "True")
    for frame in (
        pd.read_csv(path),
        pd.read_csv(path, dtype=str, keep_default_na=False),
        pd.read_csv(path, parse_dates=["d"], date_format="ISO8601"),
        pd.read_csv(path, dtype_backend="pyarrow"),
        pd.read_csv(path).astype({"c": "category"}).astype(object),
    ):
        found, defects = read_columns(read_frame(frame, list(types)), types)
        assert not defects
        for one, other in zip(preprocessing.encode(found), preprocessing.encode(rows), strict=True):
            np.testing.assert_array_equal(one, other)


def test_cells_of_several_types_are_read_one_by_one() -> None:
    cells = [
        "a",
        1,
        2.5,
        np.float64(3.0),
        True,
        None,
        float("nan"),
        pd.NA,
        Decimal("1.5"),
        date(2026, 1, 2),
    ]
    cells.append(datetime(2026, 1, 2, 3))
    frame = pd.DataFrame({"c": pd.Series(cells, dtype=object)})
    assert read_frame(frame, ["c"]).column("c").to_pylist() == [
        *("a", "1", "2.5", "3.0", "true", None, None, None, "1.5"),
        *("2026-01-02", "2026-01-02T03:00:00"),
    ]


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (pd.DataFrame({"b": [1]}), "the table has no column 'c'"),
        (pd.DataFrame([[1, 2]], columns=["c", "c"]), "has 2 columns 'c', expected one"),
        (pd.DataFrame({"c": [["a"], "b"]}), r"column 'c' has \['a'\], expected a text"),
    ],
    ids=["missing", "twice", "list"],
)
def test_what_is_no_table_is_an_error(frame: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        read_frame(frame, ["c"])


def test_a_cell_that_is_none_of_its_type_is_a_defect_with_its_row() -> None:
    frame = pd.DataFrame(
        {"n": [1.0, np.inf], "c": ["a", "b"], "d": ["2026-01-02", "soon"], "f": [1, 2], "i": [1, 2]}
    )
    _, defects = read_columns(read_frame(frame, list(TYPES)), TYPES)
    assert [(each.row, each.column) for each in defects] == [(1, "d"), (1, "n")]
    for cells in ([b"raw", b"b"], [["a"], ["b"]], [pd.Timedelta(1), pd.Timedelta(2)]):
        _, defects = read_columns(read_frame(pd.DataFrame({"c": cells}), ["c"]), {"c": "category"})
        assert [each.row for each in defects] == [0, 1]
