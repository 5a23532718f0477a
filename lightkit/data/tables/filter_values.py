"""What a filter compares a column with: values of a config in the column's type, or words why they cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from lightkit.errors import ConfigError

__all__ = ["compared_as", "value_of"]

_DIGITS_128, _DIGITS_256 = 38, 76


def value_of(value: Any, kind: pa.DataType, column: str) -> Any:
    """Give a value in a column's type.

    A text stands for a moment, in UTC where the column has a zone and the text has none. A decimal column takes any
    number, also with more digits than it holds itself.

    Args:
        value: As it stands in a config.
        kind: Type of the column's values.
        column: Its name.

    Raises:
        ConfigError: If it cannot be compared with what the column holds.
    """
    try:
        return _converted(value, kind)
    except (ValueError, TypeError, OverflowError, InvalidOperation, pa.ArrowException) as error:
        raise ConfigError(
            f"data.init_args.filter: column {column!r} holds {kind}, so it cannot be compared with {value!r}"
            f"{_hint(value, kind)}"
        ) from error


def compared_as(kind: pa.DataType, values: Sequence[Any]) -> pa.DataType:
    """Give the type in which a column and the values can be compared, where its own does not do.

    Arrow compares no half-precision numbers, and a decimal type may be too narrow for a value.
    """
    if pa.types.is_float16(kind):
        return pa.float32()
    if not pa.types.is_decimal(kind):
        return kind
    scale, whole = kind.scale, kind.precision - kind.scale
    for value in values:
        exponent = value.as_tuple().exponent
        scale, whole = max(scale, -exponent), max(whole, value.adjusted() + 1)
    digits = scale + whole
    return pa.decimal128(digits, scale) if digits <= _DIGITS_128 else pa.decimal256(digits, scale)


def _converted(value: Any, kind: pa.DataType) -> Any:
    if value is None or isinstance(value, bool) != pa.types.is_boolean(kind):  # Arrow takes True for 1
        raise TypeError
    if pa.types.is_decimal(kind):
        return _decimal(value, kind)
    if pa.types.is_temporal(kind) and isinstance(value, str):
        return _moment(value, kind).as_py()
    if isinstance(value, float) and pa.types.is_integer(kind):
        if not value.is_integer():  # Arrow would cut it off
            raise ValueError
        value = int(value)
    elif isinstance(value, int) and pa.types.is_floating(kind):
        value = float(value)
    return pa.scalar(value, kind).as_py()


def _decimal(value: Any, kind: pa.DataType) -> Decimal:
    number = Decimal(str(value))
    if not number.is_finite() or compared_as(kind, [number]).precision > _DIGITS_256:
        raise ValueError
    return number


def _moment(text: str, kind: pa.DataType) -> pa.Scalar:
    try:
        return pa.scalar(text).cast(kind)
    except pa.ArrowException:
        if not pa.types.is_timestamp(kind) or kind.tz is None:
            raise
        return pa.scalar(text).cast(pa.timestamp(kind.unit)).cast(pa.int64()).cast(kind)  # taken for UTC


def _hint(value: Any, kind: pa.DataType) -> str:
    """Say what to do next, where that is known."""
    if value is None:
        return "; rows with nulls never pass."
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if pa.types.is_integer(kind) and is_number:
        if value % 1:
            return ": write a whole number."
        least, greatest = _bounds(kind)
        return f": its values go from {least} to {greatest}."
    if isinstance(value, str) and (pa.types.is_integer(kind) or pa.types.is_floating(kind)) and _is_number(value):
        return f": write {value} without quotes."
    if is_number and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return f": write '{value}' in quotes."
    return "."


def _bounds(kind: pa.DataType) -> tuple[int, int]:
    if pa.types.is_signed_integer(kind):
        return -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1
    return 0, int(2**kind.bit_width - 1)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
