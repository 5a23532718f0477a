"""Columns that leak the target: equal to it, a sum that is, or a border that parts the classes.

No torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lightkit.errors import join_names

_MIN_ROWS = 30
_UNEXPLAINED = 1e-6  # share of the variance of the target that sums of other columns leave
_SHARE = 0.01  # of the deviation of the target, from which on a column has a part in a sum
_MAX_COLUMNS = 200
_REMEDY = "Where it is not known before the target is, leave it out: data.init_args.ignore."


def find_leaks(rows: pa.Table, target: pa.ChunkedArray) -> list[str]:
    """Find columns that leak the target of rows.

    Args:
        rows: Columns of their types.
        target: Numbers, or names of classes.

    Returns:
        A sentence for each column, or for several whose sum does.
    """
    if rows.num_rows < _MIN_ROWS or len(pc.unique(target)) < 2:
        return []
    if pa.types.is_floating(target.type):
        return _find_sums(rows, target.to_numpy())
    found = []
    codes = target.combine_chunks().dictionary_encode().indices.to_numpy()
    for name in rows.column_names:
        column = rows[name].combine_chunks()
        if pa.types.is_string(column.type):
            says_all = _maps_categories(column, codes)
        else:
            says_all = _has_borders(
                column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column, codes
            )
        if says_all:
            found.append(
                f"column {name!r} alone determines the class of each of {rows.num_rows:,} training"
                f" rows. {_REMEDY}"
            )
    return found


def _maps_categories(column: pa.Array, codes: npt.NDArray[Any]) -> bool:
    """Return whether each category has one class, and has it in several rows."""
    indices = pc.fill_null(column.dictionary_encode().indices, -1).to_numpy()
    categories = np.unique(indices)
    if len(categories) < 2 or len(categories) * 3 > len(codes):
        return False
    return len(np.unique(np.stack([indices, codes]), axis=1)[0]) == len(categories)


def _has_borders(column: pa.Array, codes: npt.NDArray[Any]) -> bool:
    """Return whether numbers in their order part the classes, each in one stretch."""
    if column.null_count or len(pc.unique(column)) < 2:
        return False
    numbers = column.to_numpy(zero_copy_only=False).astype(np.float64)
    order = np.lexsort((codes, numbers))
    ordered = codes[order]
    num_changes = int((ordered[1:] != ordered[:-1]).sum())
    is_split = numbers[order][1:] == numbers[order][:-1]
    has_mixed = bool((is_split & (ordered[1:] != ordered[:-1])).any())
    return not has_mixed and num_changes == len(np.unique(codes)) - 1


def _standardize_columns(rows: pa.Table) -> dict[str, npt.NDArray[np.float64]]:
    """Return the first columns of numbers that vary and have no null, with mean 0 and deviation 1.

    By their names, at most `_MAX_COLUMNS`.
    """
    columns: dict[str, npt.NDArray[np.float64]] = {}
    for name in rows.column_names:
        if len(columns) == _MAX_COLUMNS:
            break
        if pa.types.is_floating(rows[name].type) and not rows[name].null_count:
            numbers = rows[name].to_numpy()
            if numbers.std() > 0:
                columns[name] = (numbers - numbers.mean()) / numbers.std()
    return columns


def _find_sums(rows: pa.Table, target: npt.NDArray[np.float64]) -> list[str]:
    """Find numbers that are the target in another unit, alone or in a weighted sum."""
    columns = _standardize_columns(rows)
    wanted = (target - target.mean()) / target.std()
    found = []
    for name, column in columns.items():
        if 1 - (column @ wanted / len(wanted)) ** 2 < _UNEXPLAINED:
            found.append(f"column {name!r} is the target in another unit. {_REMEDY}")
    if found or len(columns) + 1 >= len(wanted) or not columns:
        return found
    matrix = np.stack([*columns.values()], axis=1)
    factors, *_ = np.linalg.lstsq(matrix, wanted, rcond=None)
    if float(np.square(wanted - matrix @ factors).mean()) >= _UNEXPLAINED:
        return []
    parts = [name for name, factor in zip(columns, factors, strict=True) if abs(factor) > _SHARE]
    return [f"the target is a sum of the columns {_join(parts)}. {_REMEDY}"]


def _join(names: Sequence[str]) -> str:
    return join_names([repr(name) for name in names], most=8)
