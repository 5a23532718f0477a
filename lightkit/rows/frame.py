"""Rows of a pandas DataFrame as a batch of a table. No torch, and pandas is not imported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from lightkit.errors import DataError, cut, visible
from lightkit.rows.values import missing_column

_MAX_SHOWN = 60  # characters of a cell in an error


def read_frame(frame: Any, names: Sequence[str]) -> pa.RecordBatch:
    """Convert columns of a DataFrame to a batch, as `lightkit.rows.reader` does for tables.

    Args:
        frame: A `pandas.DataFrame`; other columns of it are ignored.
        names: The columns.

    Raises:
        DataError: If there is no such column, there are two, or a cell is no single value.
    """
    own = [str(name) for name in frame.columns]
    arrays = []
    for name in names:
        if name not in own:
            raise missing_column(name, own)
        if own.count(name) > 1:
            raise DataError(
                f"the table has {own.count(name)} columns {name!r},"
                " expected one. Rename the others."
            )
        arrays.append(_convert_column(name, frame.iloc[:, own.index(name)]))
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def _convert_column(name: str, column: Any) -> pa.Array:
    try:
        array = pa.array(column, from_pandas=True)
    except (pa.ArrowException, OverflowError):  # cells of several types
        is_missing = column.isna().tolist()
        cells = zip(column.tolist(), is_missing, strict=True)
        array = pa.array(
            [None if gone else _format_cell(name, cell) for cell, gone in cells], pa.string()
        )
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _format_cell(column: str, cell: Any) -> str:
    """Write a cell as the text of a file of JSON lines.

    Raises:
        DataError: If it is no single value.
    """
    value = cell.item() if hasattr(cell, "item") else cell  # a number of numpy
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, date | datetime):
        return value.isoformat()
    shown = visible(cut(repr(value), _MAX_SHOWN), in_line=True)
    raise DataError(
        f"column {column!r} has {shown}, expected a text, a number, a boolean or a date."
    )
