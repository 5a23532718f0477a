"""Rows of a table as samples: bytes of an image or a vector of numbers, a label, a weight, and where they stand."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from lightkit.data.tables.columns import Columns
from lightkit.data.tables.features import Numbers, Shape, feature_matrix, joined_shape, numbers_of, plain_column
from lightkit.data.tables.snapshot import RowGroup

__all__ = [
    "ClassValue",
    "Row",
    "class_name",
    "image_bytes",
    "label_values",
    "read_rows",
    "rows_at_once",
    "weight_values",
]

ClassValue = str | int

_READ_BYTES = 4 << 20  # of record batches that are in memory at once
_MOST_ROWS = 4096


class Row(NamedTuple):
    """One row of one split.

    Args:
        image: Encoded image, where the table has images.
        features: float32, of the index's ``feature_shape``, where it has numbers.
        label: Number of the class, or the value to predict; None where the table has no label.
        weight: Of its loss; None where the table has none.
        place: What people know it by: the file, and the row's number in it.
        defect: Why it cannot be used, though it could when the table was opened.
    """

    image: bytes | None
    features: Numbers | None
    label: int | float | None
    weight: float | None
    place: str
    defect: str | None = None


def read_rows(
    group: RowGroup,
    columns: Columns,
    wanted: npt.NDArray[np.int64],
    *,
    class_numbers: dict[str, int],
    shapes: Sequence[Shape],
) -> Iterator[Row]:
    """Read some rows of a row group, in stored order.

    Args:
        group: The row group.
        columns: Which of its columns are what.
        wanted: Numbers of the rows among those that `RowGroup.read` gives, ascending.
        class_numbers: Number of each class by its name.
        shapes: Of each column of features.
    """
    at = done = 0
    for batch in group.read(columns.of_a_sample, batch_rows=rows_at_once(group)):
        until = int(np.searchsorted(wanted, at + batch.num_rows))
        if until > done:
            rows = wanted[done:until]
            places = group.places(rows)
            yield from _rows(batch.take(pa.array(rows - at)), columns, places, class_numbers, shapes)
        done, at = until, at + batch.num_rows
        if done == len(wanted):
            return


def _rows(
    batch: pa.RecordBatch,
    columns: Columns,
    places: Sequence[str],
    class_numbers: dict[str, int],
    shapes: Sequence[Shape],
) -> Iterator[Row]:
    images = image_bytes(batch, columns.image) if columns.image else None
    features, whole = feature_matrix(batch, columns.features, shapes) if columns.features else (None, None)
    labels = label_values(batch, columns) if columns.label else None
    weights = weight_values(batch, columns.weight) if columns.weight else None
    for number, place in enumerate(places):
        label: Any = None if labels is None else labels[number]
        defect = None
        if labels is not None and columns.target == "class":
            label = None if label is None else class_numbers.get(class_name(label))
        if labels is not None and label is None:
            defect = f"no label that was there when the table was opened (column {columns.label!r})"
        elif weights is not None and np.isnan(weights[number]):
            defect = f"column {columns.weight!r} has no weight of 0 or more"
        elif whole is not None and not whole[number]:
            defect = f"a null, NaN, infinity or another length in {', '.join(columns.features)}"
        yield Row(
            None if images is None else images[number].as_py(),
            None if features is None else features[number].reshape(joined_shape(shapes)),
            label,
            None if weights is None else float(weights[number]),
            place,
            defect,
        )


def rows_at_once(group: RowGroup) -> int:
    """Give the rows of a record batch that take some megabytes, by the row group's average."""
    each = max(1, group.size_bytes // max(1, group.num_stored))
    return max(1, min(_MOST_ROWS, _READ_BYTES // each))


def image_bytes(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Give a batch's encoded images as a binary array; a struct gives its field ``bytes``."""
    column = plain_column(batch, name)
    return pc.struct_field(column, "bytes") if types.is_struct(column.type) else column


def label_values(batch: pa.RecordBatch, columns: Columns) -> list[Any]:
    """Give a batch's labels: a class as text, integer or boolean, a value as float; None for none that can be used."""
    assert columns.label is not None
    column = plain_column(batch, columns.label)
    if columns.target == "value":
        return [number if math.isfinite(number) else None for number in numbers_of(column).tolist()]
    found: list[Any] = column.to_pylist()
    # pandas turns integers into floats where one of them is missing
    return [_whole(value) if value is not None and not isinstance(value, (str, int)) else value for value in found]


def class_name(value: ClassValue) -> str:
    """Write a class as its name."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def weight_values(batch: pa.RecordBatch, name: str) -> Numbers:
    """Give a batch's weights; NaN for what is none, such as nulls and numbers below 0."""
    weights = numbers_of(plain_column(batch, name))
    return np.where(np.isfinite(weights) & (weights >= 0), weights, np.float32(np.nan))


def _whole(value: Any) -> int | None:
    """Give the integer that a number is, or None."""
    number = float(value)
    return int(number) if number.is_integer() else None
