"""Columns of a table: which one is what, filters over them, and their values as arrays."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import reduce
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from lightkit.config import near
from lightkit.errors import ConfigError, DataError
from lightkit.rows.values import is_text, plain

Numbers = npt.NDArray[np.float32]
Shape = tuple[int, ...]
Target = Literal["auto", "class", "value"]

_COMPARE: dict[str, Callable[[Any, Any], pc.Expression]] = {
    "==": operator.eq, "=": operator.eq, "!=": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_OPERATORS = (*_COMPARE, "in", "not in")


@dataclass(frozen=True)
class Columns:
    """Names of the columns that make up a sample.

    Args:
        image: Encoded images: binary, or a struct with a binary field ``bytes`` as Hugging Face's
            data sets have it.
        features: Numbers, lists or tensors of numbers; those of several columns are joined into one
            vector.
        label: What is to be predicted; None for a table without labels.
        weight: Numbers of 0 or more by which a sample's loss is multiplied, over their mean.
        split: Names of splits.
        key: What the split of a row is decided by, in place of its content.
        target: Whether the label is a class or a number.
        label_names: Names of the classes that whole numbers in the column of labels count into;
            empty where the table does not have them.
    """

    image: str | None
    features: tuple[str, ...]
    label: str | None
    weight: str | None = None
    split: str | None = None
    key: str | None = None
    target: Literal["class", "value"] = "class"
    label_names: tuple[str, ...] = ()

    @property
    def of_a_sample(self) -> list[str]:
        """Columns that are read for each batch."""
        return list(
            dict.fromkeys(
                name for name in (self.image, *self.features, self.label, self.weight) if name
            )
        )


def find_columns(
    schema: pa.Schema,
    *,
    image: str | None = None,
    features: str | Sequence[str] | None = None,
    label: str | None = "label",
    weight: str | None = None,
    split: str | None = None,
    key: str | None = None,
    target: Target = "auto",
) -> Columns:
    """Find the columns in a table's schema; the arguments are those of `lightkit.data.Table`.

    Raises:
        ConfigError: If both image and features are given.
        DataError: If a column is missing, or of a type that does not fit.
    """
    names = (features,) if isinstance(features, str) else tuple(features or ())
    if image is not None and names:
        raise ConfigError(
            f"data.init_args.image ({image!r}) and data.init_args.features ({', '.join(names)}) are"
            " both set. A model gets one of them: leave out the other."
        )
    if image is None and not names:
        image = "image"
    wanted = {"image": image, "label": label, "weight": weight, "split": split, "key": key}
    for argument, name in [*wanted.items(), *(("features", name) for name in names)]:
        if name is not None:
            _check_column(schema, argument, name)
    return Columns(image, names, label, weight, split, key, _choose_target(schema, label, target))


def _choose_target(
    schema: pa.Schema, label: str | None, target: Target
) -> Literal["class", "value"]:
    """Choose whether a label is a class or a number.

    Raises:
        DataError: If it has to be a number, and is none.
    """
    if label is None or target == "class":
        return "class"
    kind = plain_type(schema.field(label).type)
    if target == "auto":
        return "value" if _is_real(kind) else "class"
    if not (_is_number(kind) or types.is_boolean(kind)):
        raise DataError(
            f"data.init_args.target: column {label!r} holds {kind}, which is not a number to"
            " predict. Set it to class, or data.init_args.label to a column of numbers."
        )
    return "value"


def _check_column(schema: pa.Schema, argument: str, name: str) -> None:
    """Refuse a column that is not there once, or of a type that does not fit its argument."""
    if schema.names.count(name) != 1:
        raise _missing_column(schema, argument, name)
    found = schema.field(name).type
    fits, expected = _EXPECTED[argument]
    if not fits(plain_type(found)):
        raise DataError(
            f"data.init_args.{argument}: column {name!r} holds {found}, expected {expected}."
        )


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values, without a dictionary or an extension around them."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    return plain_type(kind.value_type) if types.is_dictionary(kind) else kind


def _missing_column(schema: pa.Schema, argument: str, name: str) -> DataError:
    names = ", ".join(schema.names[:12]) + (", ..." if len(schema.names) > 12 else "")
    hint = near(name, schema.names) or f"; it has {names}."
    num = schema.names.count(name)
    return DataError(
        f"data.init_args.{argument}: the table has {f'{num} columns' if num else 'no column'}"
        f" {name!r}{hint}"
    )


def _is_number(kind: pa.DataType) -> bool:
    return bool(types.is_integer(kind)) or _is_real(kind)


def _is_real(kind: pa.DataType) -> bool:
    return bool(types.is_floating(kind) or types.is_decimal(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return str(kind) in ("binary", "large_binary", "binary_view")


def _is_image(kind: pa.DataType) -> bool:
    is_struct = types.is_struct(kind) and kind.get_field_index("bytes") >= 0
    return _is_bytes(kind.field("bytes").type if is_struct else kind)


def _is_feature(kind: pa.DataType) -> bool:
    if types.is_fixed_size_list(kind):
        return _is_feature(kind.value_type)
    is_list = types.is_list(kind) or types.is_large_list(kind)
    return _is_number(kind.value_type if is_list else kind) or bool(types.is_boolean(kind))


_EXPECTED: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "image": (_is_image, "encoded images as binary, or a struct with a binary field 'bytes'"),
    "features": (_is_feature, "numbers, or lists or tensors of numbers"),
    "label": (
        lambda kind: is_text(kind) or _is_number(kind) or types.is_boolean(kind),
        "text, integers or booleans for classes, or numbers to predict",
    ),
    "weight": (_is_number, "numbers of 0 or more"),
    "split": (is_text, "the names train, val (or valid, validation) and test"),
    "key": (
        lambda kind: is_text(kind) or _is_bytes(kind) or types.is_integer(kind),
        "text, integers or binary",
    ),
}


@dataclass(frozen=True, eq=False)
class RowFilter:
    """Conditions on rows; a null fulfils none, as in SQL.

    Args:
        columns: Columns that the conditions compare.
        rows: The conditions.
        row_groups: Those of them that may be decided by a row group's statistics.
        text: The conditions as text, for a digest.
    """

    columns: tuple[str, ...]
    rows: pc.Expression
    row_groups: pc.Expression
    text: str

    def passes(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Check each row of a batch: bool ``(rows,)``."""
        import pyarrow.dataset as ds  # with pandas, 0.2 s

        table = pa.table({name: plain_column(batch, name) for name in self.columns})
        found = ds.dataset(table).to_table(columns={"passes": self.rows}, use_threads=False)[
            "passes"
        ]
        return np.asarray(pc.fill_null(found, False))


def parse_filter(asked: Sequence[Any] | None, schema: pa.Schema) -> RowFilter | None:
    """Convert a filter of a config to expressions.

    Args:
        asked: ``[column, operator, value]`` triples that must all hold, or a list of such lists of
            which one must.
        schema: The table's.

    Returns:
        None for a filter that every row passes.

    Raises:
        ConfigError: If it is no filter, or compares a column with a value of another type.
        DataError: If the table has no such column.
    """
    if not asked:
        return None
    groups = asked if all(map(_is_group, asked)) else [asked]
    parsed = [[_parse_condition(triple, schema) for triple in group] for group in groups]
    names = dict.fromkeys(name for group in parsed for name, _, _ in group)
    rows, row_groups = (
        reduce(
            operator.or_,
            [reduce(operator.and_, [condition[part] for condition in group]) for group in parsed],
        )
        for part in (1, 2)
    )
    return RowFilter(tuple(names), rows, row_groups, repr(asked))


def _is_group(part: Any) -> bool:
    """Return whether a part of a filter is a list of conditions, and not one condition."""
    is_filled = isinstance(part, list | tuple) and bool(part)
    return is_filled and all(isinstance(one, list | tuple) for one in part)


def _parse_condition(triple: Any, schema: pa.Schema) -> tuple[str, pc.Expression, pc.Expression]:
    """Convert a condition to its column, its expression for rows, and that for row groups."""
    column, sign, value = _check_condition(triple, schema)
    kind = plain_type(schema.field(column).type)
    field = pc.field(column)
    if types.is_float16(kind):  # Arrow compares no half precision
        kind = pa.float32()
        field = field.cast(pa.float32())
    if isinstance(value, list | tuple):
        found = _is_in(field, [_convert_value(one, kind, column) for one in value], kind)
        found = ~found & field.is_valid() if sign == "not in" else found
    else:
        found = _COMPARE[sign](field, _convert_value(value, kind, column))
    # Arrow (25.0) takes a row group whose least and greatest value are equal for one without NaN
    misses_nan = types.is_floating(kind) and sign in ("!=", "in", "not in")
    return column, found, pc.scalar(True) if misses_nan else found


def _check_condition(triple: Any, schema: pa.Schema) -> tuple[str, str, Any]:
    """Return the column, the operator in one spelling, and the value of a condition.

    Raises:
        ConfigError: If it is no condition.
        DataError: If the table has no such column.
    """
    if not isinstance(triple, list | tuple) or len(triple) != 3 or not isinstance(triple[0], str):
        raise ConfigError(
            "data.init_args.filter: expected [column, operator, value], such as [height, '>=',"
            f" 100], or a list of those, got {triple!r}"
        )
    column, sign, value = triple
    sign = " ".join(str(sign).lower().split())
    if sign not in _OPERATORS:
        raise ConfigError(
            f"data.init_args.filter: {sign!r} is not an operator; expected one of"
            f" {', '.join(_OPERATORS)}"
        )
    if column not in schema.names:
        raise _missing_column(schema, "filter", column)
    is_many = sign.endswith("in")
    if is_many != isinstance(value, list | tuple):
        expected = "a list of values" if is_many else "one value"
        raise ConfigError(
            f"data.init_args.filter: {column} {sign!r} expects {expected}, got {value!r}"
        )
    return column, sign, value


def _is_in(field: pc.Expression, values: Sequence[pa.Scalar], kind: pa.DataType) -> pc.Expression:
    """Compare a column with each of several values of its type."""
    found = [one.as_py() for one in values]
    # Arrow (25.0) compares bits here, and 0.0 equals -0.0
    if types.is_floating(kind) and 0 in found:
        found += [0.0, -0.0]
    return field.isin(pa.array(found, None if types.is_decimal(kind) and values else kind))


def _convert_value(value: Any, kind: pa.DataType, column: str) -> pa.Scalar:
    """Convert a value of a config to a column's type.

    A text is a moment, in UTC if only the column has a zone.
    """
    try:
        # Arrow takes True for 1
        if value is None or isinstance(value, bool) != types.is_boolean(kind):
            raise TypeError  # noqa: TRY301
        if types.is_decimal(kind):  # any number, also with more digits than the column holds
            return pa.scalar(Decimal(str(value)))
        if isinstance(value, str) and types.is_temporal(kind):
            return _parse_moment(value, kind)
        if isinstance(value, float) and types.is_integer(kind):
            if not value.is_integer():  # Arrow would cut it off
                raise ValueError  # noqa: TRY301
            value = int(value)
        return pa.scalar(
            float(value) if types.is_floating(kind) and isinstance(value, int) else value, kind
        )
    except (ValueError, TypeError, OverflowError, InvalidOperation, pa.ArrowException) as error:
        raise ConfigError(
            f"data.init_args.filter: column {column!r} holds {kind}, so it cannot be compared with"
            f" {value!r}. Write text in quotes and numbers without; rows with nulls never pass."
        ) from error


def _parse_moment(text: str, kind: pa.DataType) -> pa.Scalar:
    """Parse a moment of a column's type.

    Raises:
        ArrowException: If the text is none.
    """
    try:
        return pa.scalar(text).cast(kind)
    except pa.ArrowException:
        if not types.is_timestamp(kind) or kind.tz is None:
            raise
        return pa.scalar(text).cast(pa.timestamp(kind.unit)).cast(pa.int64()).cast(kind)


def plain_column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column without a dictionary or an extension around its values."""
    return plain(batch.column(batch.schema.get_field_index(name)))


def image_bytes(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return a batch's encoded images as a binary array; a struct gives its field ``bytes``."""
    column = plain_column(batch, name)
    return pc.struct_field(column, "bytes") if types.is_struct(column.type) else column


def label_column(batch: pa.RecordBatch, columns: Columns) -> pa.Array:
    """Return a batch's labels: classes as text, integers or booleans, values as float32.

    Null if unusable.
    """
    assert columns.label is not None
    column = plain_column(batch, columns.label)
    if columns.target == "value":
        numbers = _numbers_of(column)
        return pa.array(numbers, mask=~np.isfinite(numbers))
    if _is_real(column.type):
        # pandas turns integers into floats where one of them is missing
        numbers = np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False))
        is_whole = (np.abs(numbers) < 2**53) & (numbers == np.floor(numbers))
        column = pa.array(np.where(is_whole, numbers, 0).astype(np.int64), mask=~is_whole)
    if columns.label_names:
        is_known = pc.and_(pc.greater_equal(column, 0), pc.less(column, len(columns.label_names)))
        places = pc.if_else(is_known, column, pa.scalar(None, column.type))
        return pa.array(columns.label_names, pa.string()).take(places)
    return column


def format_class(value: str | int) -> str:
    """Convert a class to its name."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def weight_values(batch: pa.RecordBatch, name: str) -> Numbers:
    """Return a batch's weights; NaN for nulls, numbers below 0 and infinite ones."""
    weights = _numbers_of(plain_column(batch, name))
    return np.where(np.isfinite(weights) & (weights >= 0), weights, np.float32(np.nan))


def join_shapes(shapes: Sequence[Shape]) -> Shape:
    """Return the shape of a row's features.

    One column keeps its own, several are joined into a vector.
    """
    if len(shapes) == 1:
        return shapes[0] or (1,)
    return (sum(math.prod(shape) for shape in shapes),)


def column_shape(kind: pa.DataType) -> Shape | None:
    """Return the shape of a column's value.

    Empty for a number, None for lists, whose length is each row's own.
    """
    if isinstance(kind, pa.FixedShapeTensorType):
        return tuple(kind.shape)
    kind = plain_type(kind)
    if types.is_list(kind) or types.is_large_list(kind):
        return None
    if types.is_fixed_size_list(kind):
        return (kind.list_size, *(column_shape(kind.value_type) or ()))
    return ()


def feature_matrix(
    batch: pa.RecordBatch, names: Sequence[str], shapes: Sequence[Shape]
) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """Return a batch's features, each row flat, and which rows can be used.

    Args:
        batch: Record batch with the columns.
        names: The columns, in the order in which they are joined.
        shapes: Of a value of each.

    Returns:
        float32 ``(rows, numbers)`` and bool ``(rows,)``: a row with a null, a NaN, an infinite
        number, or a list of another length cannot be used, and has NaN in its place.
    """
    parts = [
        _flatten_column(batch, name, math.prod(shape))
        for name, shape in zip(names, shapes, strict=True)
    ]
    matrix = np.concatenate(parts, axis=1)
    return matrix, np.asarray(np.isfinite(matrix).all(axis=1))


def wide_matrix(batch: pa.RecordBatch, name: str, shape: Shape) -> npt.NDArray[np.float64] | None:
    """Return a column of numbers or lists in float64, each row flat.

    None where float32 has all values of its type.
    """
    kind = plain_type(batch.schema.field(name).type)
    while types.is_nested(kind):
        kind = kind.value_type
    is_exact = kind in (
        pa.bool_(),
        pa.int8(),
        pa.uint8(),
        pa.int16(),
        pa.uint16(),
        pa.float16(),
        pa.float32(),
    )
    return None if is_exact else _flatten_column(batch, name, math.prod(shape), np.float64)


def count_distinct(values: npt.NDArray[np.float64]) -> tuple[int, int]:
    """Count the different values of a sorted array, in float64 and in float32."""
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float32)
    before, after = (
        int(np.count_nonzero(each[1:] != each[:-1])) + min(1, len(each))
        for each in (values, rounded)
    )
    return before, after


def find_rounding(matrix: npt.NDArray[np.float64]) -> tuple[int, int] | None:
    """Find numbers whose differences are lost in float32, such as times in seconds since 1970.

    They are lost where a tenth of the different values is, or where half of the values are moved by
    a thousandth of the distance from the 5th to the 95th percentile.

    Args:
        matrix: ``(rows, numbers)``.

    Returns:
        The different values of the column with the most that are lost, in float64 and in float32;
        None if there is no such column.
    """
    worst: tuple[int, int] | None = None
    for column in matrix.T:
        values = np.sort(column[np.isfinite(column)])
        if len(values) < 2:
            continue
        before, after = count_distinct(values)
        low, high = (values[round(share * (len(values) - 1))] for share in (0.05, 0.95))
        with np.errstate(over="ignore", invalid="ignore"):
            moved = float(np.median(np.abs(values - values.astype(np.float32))))
        is_lost = after < 0.9 * before or (high > low and not moved <= (high - low) / 1000)
        if is_lost and (worst is None or after * worst[0] < worst[1] * before):
            worst = before, after
    return worst


def _numbers_of(column: pa.Array, dtype: type[np.floating[Any]] = np.float32) -> npt.NDArray[Any]:
    """Convert a column of numbers or booleans to floating point, NaN for null."""
    if types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    elif types.is_decimal(column.type):
        column = column.cast(pa.float64())
    with np.errstate(over="ignore"):  # too large a number becomes infinite, and its row is not used
        return np.asarray(column.to_numpy(zero_copy_only=False)).astype(dtype)


def _flatten_column(
    batch: pa.RecordBatch, name: str, width: int, dtype: type[np.floating[Any]] = np.float32
) -> npt.NDArray[Any]:
    """Convert a column of numbers or lists to ``(rows, width)``.

    NaN for nulls and lists of another length.
    """
    column = plain_column(batch, name)
    if not types.is_nested(column.type):
        return _numbers_of(column, dtype).reshape(-1, 1)
    length = column.type.list_size if types.is_fixed_size_list(column.type) else width
    fits = np.asarray(pc.fill_null(pc.equal(pc.list_value_length(column), length), False))
    # a null or another length would shift all rows behind it
    values = column.filter(pa.array(fits)).flatten()
    num_fitting = int(fits.sum())
    whole = np.ones(num_fitting, np.bool_)
    while types.is_nested(values.type):  # lists of lists, each of a fixed length
        whole &= np.asarray(values.is_valid()).reshape(num_fitting, -1).all(axis=1)
        size = values.type.list_size
        values = values.values.slice(values.offset * size, len(values) * size)
    numbers = np.full((len(column), width), np.nan, dtype)
    numbers[fits] = np.where(
        whole[:, None], _numbers_of(values, dtype).reshape(num_fitting, width), dtype(np.nan)
    )
    return numbers
