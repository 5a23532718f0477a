"""Choosing rows by what their columns hold, and passing over row groups that cannot hold any."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lightkit.data.tables.columns import missing_column, plain_type
from lightkit.data.tables.filter_values import compared_as, value_of
from lightkit.errors import ConfigError

__all__ = ["Condition", "Filter", "filter_of"]

_COMPARE: dict[str, Callable[..., pa.Array]] = {
    "==": pc.equal, "!=": pc.not_equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip
_OPERATORS = ("==", "=", "!=", "<", "<=", ">", ">=", "in", "not in")
_NUM_PARTS = 3


@dataclass(frozen=True)
class Condition:
    """What one column must hold.

    Args:
        column: Its name.
        operator: ``==``, ``!=``, ``<``, ``<=``, ``>``, ``>=``, ``in`` or ``not in``.
        values: What it is compared with, in the column's type: one, or, for the last two, any number.
    """

    column: str
    operator: str
    values: tuple[Any, ...]

    def holds(self, batch: pa.RecordBatch) -> pa.Array:
        """Tell for each row whether it does; a null never does, as in SQL."""
        column = batch.column(batch.schema.get_field_index(self.column))
        kind = compared_as(plain_type(column.type), self.values)
        column = column.cast(kind) if column.type != kind else column
        if self.operator in _COMPARE:
            found = _COMPARE[self.operator](column, pa.array(self.values, kind)[0])
        else:
            found = pc.is_in(column, value_set=pa.array(self.values, kind))
            found = pc.and_(pc.invert(found) if self.operator == "not in" else found, pc.is_valid(column))
        return pc.fill_null(found, False)

    def can_hold(self, least: Any, greatest: Any) -> bool:
        """Tell whether a value between two, both included, or NaN, which is never counted among them, may fulfil it."""
        if isinstance(least, float) and self._may_pass_nan(least, greatest):
            return True
        first = self.values[0] if self.values else None
        if self.operator in ("==", "in"):
            return any(least <= value <= greatest for value in self.values)
        if self.operator == "!=":
            return not least == greatest == first
        if self.operator == "not in":
            return not (least == greatest and least in self.values)
        return bool(least < first if self.operator == "<" else least <= first if self.operator == "<=" else
                    greatest > first if self.operator == ">" else greatest >= first)  # fmt: skip

    def _may_pass_nan(self, least: float, greatest: float) -> bool:
        """Tell whether a row of NaN passes, or the two say nothing, because a writer has counted NaN among them."""
        if math.isnan(least) or math.isnan(greatest) or self.operator in ("!=", "not in"):
            return True
        return self.operator == "in" and any(math.isnan(value) for value in self.values)


@dataclass(frozen=True)
class Filter:
    """Conditions of which all must hold, in any of several groups.

    Args:
        groups: The groups; none at all lets every row through.
    """

    groups: tuple[tuple[Condition, ...], ...] = ()

    @property
    def columns(self) -> list[str]:
        """Names of the columns that it looks at."""
        return list(dict.fromkeys(condition.column for group in self.groups for condition in group))

    def holds(self, batch: pa.RecordBatch) -> pa.Array:
        """Tell for each row of a batch whether it is let through."""
        if not self.groups:
            return pa.array([True] * batch.num_rows, pa.bool_())
        groups = [reduce(pc.and_, [condition.holds(batch) for condition in group]) for group in self.groups]
        return reduce(pc.or_, groups)

    def can_hold(self, partition: Mapping[str, Any], stored: pq.RowGroupMetaData) -> bool:
        """Tell whether a row group may have such rows, by what its folder and its statistics say."""
        if not self.groups:
            return True
        ranges = _ranges(partition, stored, self.columns)
        return any(all(_can_hold(condition, ranges) for condition in group) for group in self.groups)


def filter_of(asked: Sequence[Any] | None, schema: pa.Schema) -> Filter:
    """Check a filter as it stands in a config.

    Args:
        asked: ``[column, operator, value]`` triples that must all hold, or a list of such lists of which one must.
        schema: The table's.

    Raises:
        ConfigError: If it is none, or compares a column with a value of another type.
        DataError: If the table has no such column.
    """
    if not asked:
        return Filter()
    groups = asked if all(_is_group(part) for part in asked) else [asked]
    return Filter(tuple(tuple(_condition(triple, schema) for triple in group) for group in groups))


def _is_group(part: Any) -> bool:
    return isinstance(part, (list, tuple)) and bool(part) and all(isinstance(inner, (list, tuple)) for inner in part)


def _condition(triple: Any, schema: pa.Schema) -> Condition:
    if not isinstance(triple, (list, tuple)) or len(triple) != _NUM_PARTS or not isinstance(triple[0], str):
        raise ConfigError(
            "data.init_args.filter: expected [column, operator, value], such as [height, '>=', 100], or a list of "
            f"those, got {triple!r}"
        )
    column, operator, value = triple
    operator = " ".join(str(operator).lower().split())
    if operator not in _OPERATORS:
        raise ConfigError(
            f"data.init_args.filter: {operator!r} is no operator; expected one of {', '.join(_OPERATORS)}"
        )
    if column not in schema.names:
        raise missing_column(schema, "filter", column)
    is_many = operator.endswith("in")
    if is_many != isinstance(value, (list, tuple)):
        expected = "a list of values" if is_many else "one value"
        raise ConfigError(f"data.init_args.filter: {column} {operator!r} expects {expected}, got {value!r}")
    kind = plain_type(schema.field(column).type)
    values = tuple(value_of(one, kind, column) for one in (value if is_many else [value]))
    return Condition(column, "==" if operator == "=" else operator, values)


def _ranges(partition: Mapping[str, Any], stored: pq.RowGroupMetaData, columns: Sequence[str]) -> dict[str, Any]:
    """Least and greatest value of each column that says so; None for a column of nothing but nulls."""
    ranges: dict[str, Any] = {name: (value, value) if value is not None else None for name, value in partition.items()}
    for number in range(stored.num_columns):
        column = stored.column(number)
        name = column.path_in_schema
        if name not in columns or name in partition or not column.is_stats_set:
            continue
        said = column.statistics
        if said.has_null_count and said.null_count == stored.num_rows:
            ranges[name] = None
        elif said.has_min_max:
            with suppress(ValueError, OverflowError):  # Python has no such moment, or a text was cut within a letter
                ranges[name] = (said.min, said.max)
    return ranges


def _can_hold(condition: Condition, ranges: Mapping[str, Any]) -> bool:
    if condition.column not in ranges:
        return True
    found = ranges[condition.column]
    if found is None:
        return False
    try:
        return condition.can_hold(*found)
    except TypeError:  # such as a moment with a zone and one without: no reason to leave anything out
        return True
