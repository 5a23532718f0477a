"""Cells of a table as values of the types that a model needs: numbers, categories, dates and texts.

No torch.

A cell that is none of its column's type is a null and a `Defect`, so that nothing is lost and each
error has its row.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from lightkit.config import near
from lightkit.errors import DataError, cut, join_names, visible

ColumnType = Literal["number", "category", "date", "text"]
"""Type of a column of a model's rows."""
COLUMN_TYPES: tuple[ColumnType, ...] = get_args(ColumnType)
MISSING = (
    *("", "?", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", "None"),
    *("none", "NaT"),
)
"""Cells of text that are no number and no date, and stand for a missing one."""
_EXPECTED = {
    "number": "a finite number",
    "category": "a text, a number or a boolean",
    "date": "a date, such as 2026-01-31 or 2026-01-31T12:00:00",
    "text": "a text",
}
_ARROW: dict[ColumnType, pa.DataType] = {
    "number": pa.float64(),
    "category": pa.string(),
    "date": pa.timestamp("us"),
    "text": pa.string(),
}
_NUMBER = r"^(?:[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|(?i:[+-]?(?:inf|infinity|nan)))$"
_MAX_SHOWN = 60  # characters of a cell in an error
_NEARLY_ALL = 0.95  # of the cells of a column
_MOST_CODES = 20  # different numbers that may be codes, among which are others such as X
Mask = npt.NDArray[np.bool_]


class Defect(NamedTuple):
    """A cell that has no value of its column's type.

    Args:
        row: Number of the row in its batch.
        column: Name of the column.
        reason: The cell, and the type that is expected.
    """

    row: int
    column: str
    reason: str


def read_columns(
    batch: pa.RecordBatch, columns: Mapping[str, ColumnType]
) -> tuple[pa.Table, list[Defect]]:
    """Convert columns of a batch to their types.

    Args:
        batch: Of a table, with more columns or not.
        columns: Name and type of each.

    Returns:
        The columns in that order, nulls where a cell is missing or none of its type; and the cells
        that are none.

    Raises:
        DataError: If a column is not there.
    """
    arrays = []
    defects: list[Defect] = []
    for name, kind in columns.items():
        if batch.schema.names.count(name) != 1:
            raise missing_column(name, batch.schema.names)
        array, is_bad = convert(batch.column(batch.schema.names.index(name)), kind)
        arrays.append(array)
        for row in np.flatnonzero(is_bad).tolist():
            cell = batch.column(batch.schema.names.index(name))[row].as_py()
            defects.append(Defect(row, name, describe_defect(name, cell, kind)))
    return pa.table(arrays, names=list(columns)), sorted(defects)


def missing_column(name: str, names: Sequence[str]) -> DataError:
    """Return the error of a column that a table does not have."""
    hint = near(name, names) or f"; it has {join_names(list(names), most=12)}."
    return DataError(f"the table has no column {name!r}{hint}")


def describe_defect(column: str, cell: Any, kind: ColumnType) -> str:
    """Describe a cell that is none of its column's type."""
    shown = visible(cut(repr(cell), _MAX_SHOWN), in_line=True)
    return f"column {column!r} has {shown}, expected {_EXPECTED[kind]}"


def plain(column: pa.Array) -> pa.Array:
    """Return a column without a dictionary or an extension around its values, text as strings."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(pa.string()) if is_text(column.type) else column


def is_text(kind: pa.DataType) -> bool:
    """Return whether cells are text."""
    return str(kind) in ("string", "large_string", "string_view")


def convert(column: pa.Array, kind: ColumnType) -> tuple[pa.Array, Mask]:
    """Convert the cells of a column.

    Args:
        column: Cells of any type.
        kind: Type of the values.

    Returns:
        ``(rows,)`` float64, text or timestamps in UTC, null where a cell is missing or none; and
        bool ``(rows,)``, which cells are none.
    """
    column = plain(column)
    if types.is_null(column.type):
        return pa.nulls(len(column), _ARROW[kind]), np.zeros(len(column), np.bool_)
    convert_cells = {
        "number": _to_numbers,
        "category": _to_names,
        "date": _to_dates,
        "text": _to_texts,
    }[kind]
    values, is_bad = convert_cells(column)
    return values.cast(_ARROW[kind]), is_bad


def _none_bad(column: pa.Array) -> Mask:
    return np.zeros(len(column), np.bool_)


def _all_bad(column: pa.Array, kind: ColumnType) -> tuple[pa.Array, Mask]:
    return pa.nulls(len(column), _ARROW[kind]), np.asarray(column.is_valid())


def _blank_missing(column: pa.Array) -> pa.Array:
    """Return texts without blanks around them; null where they stand for a missing value."""
    trimmed = pc.utf8_trim_whitespace(column)
    return pc.if_else(
        pc.is_in(trimmed, value_set=pa.array(MISSING)), pa.scalar(None, pa.string()), trimmed
    )


def _to_numbers(column: pa.Array) -> tuple[pa.Array, Mask]:
    is_bad = _none_bad(column)
    if is_text(column.type):
        column, is_bad = _parse_numbers(column)
    elif types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    elif not (
        types.is_integer(column.type)
        or types.is_floating(column.type)
        or types.is_decimal(column.type)
    ):
        return _all_bad(column, "number")
    numbers = np.asarray(
        column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64
    )
    is_infinite = np.isinf(numbers)
    mask = ~np.isfinite(numbers)
    return pa.array(numbers, mask=mask), is_bad | is_infinite


def _parse_numbers(column: pa.Array) -> tuple[pa.Array, Mask]:
    """Return the numbers that texts are, null where one is missing or none, and which are none."""
    # most columns have numbers alone, and are read at once; then with missing ones; then with other
    # texts
    try:
        return column.cast(pa.float64()), _none_bad(column)
    except pa.ArrowInvalid:
        column = _blank_missing(column)
    try:
        return column.cast(pa.float64()), _none_bad(column)
    except pa.ArrowInvalid:
        is_number = pc.match_substring_regex(column, _NUMBER)
    is_bad = np.asarray(pc.fill_null(pc.invert(is_number), False))
    known = pc.if_else(is_number, column, pa.scalar(None, pa.string()))
    return pc.replace_substring_regex(known, r"^\+", "").cast(pa.float64()), is_bad


def _to_names(column: pa.Array) -> tuple[pa.Array, Mask]:
    if is_text(column.type):
        trimmed = pc.utf8_trim_whitespace(column)
        return pc.if_else(pc.equal(trimmed, ""), pa.scalar(None, pa.string()), trimmed), _none_bad(
            column
        )
    if types.is_timestamp(column.type) or types.is_date(column.type) or types.is_time(column.type):
        return _name_moments(column), _none_bad(column)
    if types.is_boolean(column.type) or types.is_integer(column.type):
        return column.cast(pa.string()), _none_bad(column)
    if types.is_decimal(column.type):
        return _name_decimals(column), _none_bad(column)
    if types.is_floating(column.type):
        # pandas turns whole numbers into floats where one of them is missing
        numbers = np.asarray(column.to_numpy(zero_copy_only=False))
        exact = numbers.astype(np.float64)
        is_whole = (np.abs(exact) < 2**53) & (exact == np.floor(exact))
        whole = pa.array(np.where(is_whole, exact, 0).astype(np.int64)).cast(pa.string())
        # the text of a narrow float is that of a file of text: 0.1, where the float64 of a float32
        # is 0.10000000149011612
        if not types.is_float64(column.type):
            exact = numbers.astype(str).astype(np.float64)
        names = pc.if_else(
            pa.array(is_whole), whole, pa.array(exact, mask=np.isnan(exact)).cast(pa.string())
        )
        return names, np.isinf(exact)
    return _all_bad(column, "category")


def _name_moments(column: pa.Array) -> pa.Array:
    """Write dates and times in one spelling, whatever their unit: in UTC, and a midnight as a date.

    pandas holds a date as a moment of nanoseconds, where Parquet may have it in other units.
    """
    if types.is_timestamp(column.type):
        column = column.cast(pa.timestamp(column.type.unit))
    elif types.is_date(column.type):
        column = column.cast(pa.date32()).cast(pa.timestamp("s"))
    names = pc.replace_substring_regex(column.cast(pa.string()), r"\.0+$|(\.\d*?)0+$", r"\1")
    return pc.replace_substring_regex(names, r" 00:00:00$", "")


def _name_decimals(column: pa.Array) -> pa.Array:
    """Write decimal numbers with all their digits, of which a float64 holds 15, but no last zeros.

    Two identifiers of 18 digits stay two categories.
    """
    encoded = column.dictionary_encode()
    texts = [format(value, "f") for value in encoded.dictionary.to_pylist()]
    texts = [text.rstrip("0").rstrip(".") if "." in text else text for text in texts]
    return pa.array(texts, pa.string()).take(encoded.indices)


def _to_dates(column: pa.Array) -> tuple[pa.Array, Mask]:
    if types.is_date(column.type) or types.is_timestamp(column.type):
        if types.is_timestamp(column.type) and column.type.tz is not None:
            column = column.cast(pa.timestamp("us", "UTC"), safe=False).cast(pa.int64())
        return column.cast(pa.timestamp("us"), safe=False), _none_bad(column)
    if not is_text(column.type):
        return _all_bad(column, "date")
    texts = _blank_missing(column)
    try:
        return texts.cast(pa.timestamp("us")), _none_bad(column)
    except pa.ArrowInvalid:  # another form of ISO 8601, a zone, or no date
        encoded = texts.dictionary_encode()
        moments = [_parse_date(text) for text in encoded.dictionary.to_pylist()]
        values = pa.array(moments, pa.timestamp("us"))
        dates = (
            values.take(encoded.indices)
            if len(values)
            else pa.nulls(len(column), pa.timestamp("us"))
        )
        return dates, np.asarray(pc.and_(texts.is_valid(), dates.is_null()))


def _parse_date(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(f"{text[:-1]}+00:00" if text[-1:] in "Zz" else text)
        return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):  # in UTC it may be before the year 1 or after 9999
        return None


def _to_texts(column: pa.Array) -> tuple[pa.Array, Mask]:
    if is_text(column.type):
        return column, _none_bad(column)
    return _to_names(column)


def missing_rows(columns: Mapping[str, ColumnType], num_rows: int = 1) -> pa.Table:
    """Return rows whose cells are all missing."""
    return pa.table({name: pa.nulls(num_rows, _ARROW[kind]) for name, kind in columns.items()})


def table_of_records(records: Sequence[Mapping[str, Any]], names: Sequence[str]) -> pa.RecordBatch:
    """Convert objects of JSON to a batch of texts, as the lines of a file of JSON are read.

    Args:
        records: Cells by column; a column that one lacks is missing there.
        names: The columns.
    """
    arrays = [
        pa.array([format_cell(record.get(name)) for record in records], pa.string())
        for name in names
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def format_cell(value: Any) -> str | None:
    """Write a value of JSON as the text of a cell; NaN is a missing one in a column of any type."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float) and math.isnan(value):
        return None
    return json.dumps(value, ensure_ascii=False)


class TypeGuess:
    """The type of a column, from its cells.

    Numbers and dates are columns of which each cell is one, or missing; any other is of categories.
    Values are counted until there are too many different ones.

    Args:
        most: Different values of a column that are counted.
    """

    def __init__(self, most: int = 10_000) -> None:
        self.num_rows = 0
        self.num_values = 0
        self.num_other = 0  # cells that are no single values, such as lists
        self._not_number: str | None = None  # the first cell that is none
        self.values: dict[str, int] = {}
        self.num_characters = 0
        self._most = most
        self._may_be: list[ColumnType] = ["number", "date"]

    def add(self, column: pa.Array) -> None:
        """Add the cells of a batch."""
        column = plain(column)
        self.num_rows += len(column)
        for kind in list(self._may_be):
            _, is_bad = convert(column, kind)
            is_infinite = kind == "number" and not types.is_boolean(column.type)
            if types.is_boolean(column.type) or (
                is_bad.any() and not (is_infinite and _are_infinite(column, is_bad))
            ):
                self._may_be.remove(kind)
                if kind == "number" and is_bad.any():
                    self._not_number = str(column[int(np.flatnonzero(is_bad)[0])].as_py()).strip()
        if self.is_many:
            return
        names, is_other = convert(column, "category")
        self.num_other += int(is_other.sum())
        self.num_values += len(names) - names.null_count
        for found in pc.value_counts(names.drop_null()).to_pylist():
            self.values[found["values"]] = self.values.get(found["values"], 0) + found["counts"]
            self.num_characters += len(found["values"]) * found["counts"]

    @property
    def is_many(self) -> bool:
        """Return whether there are more different values than are counted."""
        return len(self.values) > self._most

    @property
    def kind(self) -> ColumnType | None:
        """The type; None where each cell is missing."""
        if not self.num_values:
            return None
        return self._may_be[0] if self._may_be else "category"

    def find_typo(self) -> str | None:
        """Return the first cell that is no number.

        Of a column of categories in which nearly all cells are numbers.
        """
        if self.kind != "category" or self._not_number is None:
            return None
        # those with a decimal comma are meant as numbers
        texts = [value.replace(",", ".") for value in self.values]
        numbers, _ = convert(pa.array(texts, pa.string()), "number")
        is_number = np.asarray(numbers.is_valid())
        counts = np.array(list(self.values.values()))
        are_many = (
            is_number.sum() > _MOST_CODES and counts[is_number].sum() >= _NEARLY_ALL * counts.sum()
        )
        return self._not_number if are_many else None


def _are_infinite(column: pa.Array, is_bad: Mask) -> bool:
    """Return whether all cells that are no finite numbers are infinite ones."""
    bad = column.filter(pa.array(is_bad))
    if not is_text(bad.type):
        return bool(types.is_floating(bad.type))
    is_infinite = pc.match_substring_regex(
        pc.utf8_trim_whitespace(bad), r"^(?i:[+-]?(?:inf|infinity))$"
    )
    return all(is_infinite.to_pylist())
