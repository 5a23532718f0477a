"""Predictions that are no row of a table, such as boxes.

Divided into samples, and written as JSON lines.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from lightkit.runs.files import finite


def split_samples(prediction: Any, num_samples: int | None) -> list[Any] | None:
    """Divide the prediction of a batch into those of its samples.

    None where it is not one for each sample.

    A list has an item for each sample; a mapping, a tuple, a named tuple and a dataclass have
    columns, whose parts are as long as the batch; a tensor or an array has rows.

    Args:
        prediction: Returned by `predict_step`.
        num_samples: Of the batch; None where the loader does not tell, and the prediction's own
            length counts.
    """
    if isinstance(prediction, (list, Tensor, np.ndarray)):
        return (
            _list_rows(prediction)
            if _is_column(prediction) and _fits(prediction, num_samples)
            else None
        )
    named = _list_fields(prediction)
    if named is not None:
        rows = _join_columns([*named.values()], num_samples)
        return None if rows is None else [dict(zip(named, row, strict=True)) for row in rows]
    if not isinstance(prediction, tuple):
        return None
    rows = _join_columns(prediction, num_samples)
    if rows is not None:
        return [list(row) for row in rows]
    # a tuple of what each sample has
    return list(prediction) if num_samples == len(prediction) else None


def _join_columns(columns: Sequence[Any], num_samples: int | None) -> list[tuple[Any, ...]] | None:
    """Return the rows of columns; None where these are no columns as long as the batch."""
    if not columns or not all(map(_is_column, columns)):
        return None
    if any(len(each) != len(columns[0]) for each in columns) or not _fits(columns[0], num_samples):
        return None
    return list(zip(*map(_list_rows, columns), strict=True))


def _fits(values: Sized, num_samples: int | None) -> bool:
    return num_samples in (None, len(values))


def _list_rows(column: Any) -> list[Any]:
    """List the rows of a column.

    A row of a tensor that is sent to another rank takes its whole tensor along.
    """
    return [row.clone() for row in column] if isinstance(column, Tensor) else list(column)


def _is_column(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or (
        isinstance(value, (Tensor, np.ndarray)) and value.ndim > 0
    )


def _list_fields(value: Any) -> dict[str, Any] | None:
    """Return the parts of a mapping, a named tuple or a dataclass by name.

    None for anything else.
    """
    if isinstance(value, Mapping):
        return {str(name): part for name, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return dict(value._asdict())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    return None


def name_parts(value: Any) -> dict[str, Any]:
    """Return the parts of a sample's prediction by name.

    Its own names, else all of it as ``prediction``.
    """
    fields = _list_fields(value)
    return {"prediction": value} if fields is None else fields


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON lines; a number that is not finite is null.

    Raises:
        TypeError: If a value has no form in JSON.
    """
    with path.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(finite(to_plain(line)), ensure_ascii=False) + "\n")


def to_plain(value: Any) -> Any:
    """Return a value in the types of JSON: tensors and arrays as lists, NaN and infinities as such.

    Raises:
        TypeError: If it has no form in JSON.
    """
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, Tensor):
        return to_plain(to_numpy(value))
    if isinstance(value, (np.ndarray, np.generic)):
        return _list_numbers(np.asarray(value))
    fields = _list_fields(value)
    if fields is not None:
        return {name: to_plain(part) for name, part in fields.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(part) for part in value]
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


def to_numpy(values: Tensor) -> np.ndarray[Any, np.dtype[Any]]:
    """Return a tensor as an array.

    Narrow floating point, of which numpy has no bfloat16, as float32.
    """
    detached = values.detach()
    is_narrow = detached.is_floating_point() and detached.element_size() < 4
    array: np.ndarray[Any, np.dtype[Any]] = (
        (detached.float() if is_narrow else detached).cpu().numpy()
    )
    return array


def _list_numbers(array: np.ndarray[Any, np.dtype[Any]]) -> Any:
    """Return the numbers of an array as lists.

    Those of float32 as the shortest ones that are the same in it.

    Raises:
        TypeError: If they are no numbers, or complex.
    """
    kind = array.dtype.kind
    if kind == "f" and array.dtype.itemsize < np.dtype(np.float64).itemsize:
        return array.astype(str).astype(np.float64).tolist()
    if kind in "biuUf":
        return array.tolist()
    raise TypeError(f"an array of {array.dtype} has no form in JSON")
