"""Runs in columns, for people."""

from __future__ import annotations

from collections.abc import Sequence

from lightkit.errors import visible
from lightkit.runs.fingerprints import shown_size
from lightkit.runs.listing import Listed

__all__ = ["line_of", "shown_age", "table_of"]

_HEAD = ("name", "id", "status", "metric", "size", "age", "")
_RIGHT = (4, 5)  # columns of numbers
_UNITS = (("d", 86400.0), ("h", 3600.0), ("min", 60.0))


def table_of(listed: Sequence[Listed], *, now: float) -> str:
    """Write one line a run.

    Args:
        listed: The runs.
        now: Seconds since 1970.
    """
    rows = [_HEAD, *(_cells(each, now) for each in listed)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_HEAD))]
    return "\n".join(_line(row, widths) for row in rows)


def line_of(each: Listed, *, now: float) -> str:
    """Write a run as one line of a list."""
    name, run_id, status, metric, size, age, _ = _cells(each, now)
    return "  ".join(part for part in (f"{name}/{run_id}", status, metric, size, age) if part)


def shown_age(seconds: float) -> str:
    """Write an age in its largest whole unit: ``12 d``, ``3 h``, ``5 min``."""
    for unit, size in _UNITS:
        if seconds >= size:
            return f"{int(seconds / size)} {unit}"
    return f"{max(0, int(seconds))} s"


def _cells(each: Listed, now: float) -> tuple[str, ...]:
    metric = "" if each.metric is None or each.value is None else f"{each.metric} {each.value:.4g}"
    marks = [word for word, is_so in (("locked", each.is_locked), ("promoted", each.is_promoted)) if is_so]
    return (
        visible(each.run.name, in_line=True),
        each.run.id,
        each.status,
        metric,
        shown_size(each.size_bytes),
        shown_age(now - each.created),
        ", ".join(marks),
    )


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    pairs = enumerate(zip(row, widths, strict=True))
    return "  ".join(f"{cell:>{width}}" if at in _RIGHT else f"{cell:<{width}}" for at, (cell, width) in pairs).rstrip()
