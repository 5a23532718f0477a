"""Numbers of a table's columns as one float32 array a row."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from lightkit.data.tables.columns import plain_type

__all__ = ["Numbers", "Shape", "column_shape", "feature_matrix", "joined_shape", "numbers_of", "plain_column"]

Numbers = npt.NDArray[np.float32]
Shape = tuple[int, ...]


def joined_shape(shapes: Sequence[Shape]) -> Shape:
    """Give the shape of a row's features: one column keeps its own, several are joined into a vector."""
    if len(shapes) == 1:
        return shapes[0] or (1,)
    return (sum(math.prod(shape) for shape in shapes),)


def column_shape(kind: pa.DataType) -> Shape | None:
    """Give the shape of a column's value: empty for a number, None for lists, whose length is each row's own."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return tuple(kind.shape)
    plain = plain_type(kind)
    if types.is_list(plain) or types.is_large_list(plain):
        return None
    if types.is_fixed_size_list(plain):
        inner = column_shape(plain.value_type)
        assert inner is not None  # columns_of lets no lists of lists through but fixed ones
        return (plain.list_size, *inner)
    return ()


def feature_matrix(
    batch: pa.RecordBatch, names: Sequence[str], shapes: Sequence[Shape]
) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """Give a batch's features, each row flat, and which of the rows can be used.

    Args:
        batch: Record batch with the columns.
        names: The columns, in the order in which they are joined.
        shapes: Of a value of each.

    Returns:
        float32 ``(rows, numbers)`` and bool ``(rows,)``: a row with a null, a NaN, an infinite number, or a list of
        another length cannot be used, and has NaN in its place.
    """
    parts = [_part(batch, name, math.prod(shape)) for name, shape in zip(names, shapes, strict=True)]
    matrix = np.concatenate(parts, axis=1)
    return matrix, np.asarray(np.isfinite(matrix).all(axis=1))


def numbers_of(column: pa.Array) -> Numbers:
    """Give a column of numbers or booleans as float32, NaN for null."""
    if types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    elif types.is_decimal(column.type):
        column = column.cast(pa.float64())
    with np.errstate(over="ignore"):  # too large a number becomes infinite, and its row is not used
        return np.asarray(column.to_numpy(zero_copy_only=False)).astype(np.float32)


def plain_column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Give a column without a dictionary or an extension around its values."""
    column = batch.column(batch.schema.get_field_index(name))
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    return column.dictionary_decode() if types.is_dictionary(column.type) else column


def _part(batch: pa.RecordBatch, name: str, width: int) -> Numbers:
    """One column's numbers: ``(rows, width)``."""
    column = plain_column(batch, name)
    if not types.is_nested(column.type):
        return numbers_of(column).reshape(-1, 1)
    fits = np.asarray(pc.fill_null(pc.equal(pc.list_value_length(column), _length(column, width)), False))
    # a null or another length would shift all rows behind it
    values = column.filter(pa.array(fits)).flatten()
    num_fitting = int(fits.sum())
    whole = np.ones(num_fitting, np.bool_)
    while types.is_nested(values.type):  # lists of lists, each of a fixed length
        whole &= np.asarray(values.is_valid()).reshape(num_fitting, -1).all(axis=1)
        size = values.type.list_size
        values = values.values.slice(values.offset * size, len(values) * size)
    numbers = np.full((len(column), width), np.nan, np.float32)
    numbers[fits] = np.where(whole[:, None], numbers_of(values).reshape(num_fitting, width), np.float32(np.nan))
    return numbers


def _length(column: pa.Array, width: int) -> int:
    return int(column.type.list_size) if types.is_fixed_size_list(column.type) else width
