from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from lightkit.data.tables.columns import Shape, column_shape, feature_matrix, join_shapes

FIXED = pa.list_(pa.int32(), 2)
TENSORS = pa.FixedShapeTensorArray.from_numpy_ndarray(
    np.arange(18, dtype=np.float64).reshape(3, 2, 3)
)
NAN = float("nan")


@pytest.mark.parametrize(
    ("column", "shape", "expected", "usable"),
    [
        (pa.array([1, None, 3]), (), [[1], [NAN], [3]], [True, False, True]),
        (pa.array([1.5, NAN, float("inf")]), (), [[1.5], [NAN], [float("inf")]],
         [True, False, False]),
        (pa.array([1e300, 2.0, 3.0]), (), [[float("inf")], [2], [3]], [False, True, True]),
        (pa.array([True, None, False]), (), [[1], [NAN], [0]], [True, False, True]),
        (pa.array([[1.0, 2.0], [3.0], None]), (2,), [[1, 2], [NAN] * 2, [NAN] * 2],
         [True, False, False]),
        (pa.array([[1.0, 2.0], None, [None, 4.0]]), (2,), [[1, 2], [NAN] * 2, [NAN, 4]],
         [True, False, False]),
        (pa.array([[1, 2], None, [3, 4]], FIXED), (2,), [[1, 2], [NAN] * 2, [3, 4]],
         [True, False, True]),
        (pa.array([[[1, 2]], [None], [[3, 4]]], pa.list_(FIXED, 1)), (1, 2),
         [[1, 2], [NAN] * 2, [3, 4]],
         [True, False, True]),
        (TENSORS, (2, 3), np.arange(18).reshape(3, 6).tolist(), [True] * 3),
    ],
    ids=["integers", "floats", "large", "booleans", "lists", "nulls in lists", "fixed",
         "fixed in fixed", "tensors"],
)  # fmt: skip
def test_a_column_becomes_float32_and_reports_the_rows_that_cannot_be_used(
    column: pa.Array, shape: Shape, expected: list[list[float]], usable: list[bool]
) -> None:
    batch = pa.record_batch([pa.concat_arrays([column, column])], ["c"])
    # a slice begins within its buffers
    matrix, found = feature_matrix(batch.slice(3), ["c"], [shape])
    assert matrix.dtype == np.float32
    np.testing.assert_array_equal(matrix, np.array(expected, np.float32))
    assert found.tolist() == usable


def test_several_columns_are_joined_in_the_order_in_which_they_are_named() -> None:
    batch = pa.record_batch({"a": [1, 2], "b": pa.array([[3, 4], [5, 6]], FIXED)})
    shapes = [column_shape(batch.schema.field(name).type) or () for name in ("b", "a")]
    assert join_shapes(shapes) == (3,)
    assert feature_matrix(batch, ["b", "a"], shapes)[0].tolist() == [[3, 4, 1], [5, 6, 2]]


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (pa.int8(), ()),
        (pa.list_(pa.int8()), None),
        (pa.list_(FIXED, 3), (3, 2)),
        (TENSORS.type, (2, 3)),
    ],
    ids=["number", "list", "fixed", "tensor"],
)
def test_a_type_reports_the_shape_of_its_values(kind: pa.DataType, shape: Shape | None) -> None:
    assert column_shape(kind) == shape
