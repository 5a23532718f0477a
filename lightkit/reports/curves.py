"""The numbers of the curves of a page, which its script draws with uPlot.

The figures of Matplotlib stay below them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from lightkit.errors import visible

_MAX_NUMBERS = 60_000  # of all curves of a page: about 400 kB
_LOG_RANGE = 100.0
Row = Mapping[str, float]


@dataclass(frozen=True)
class Curve:
    """A line of a chart.

    Args:
        label: Its name in the legend.
        rows: Rows with its points, in their order.
        key: Column of the value.
        color: Position in the colours of the page.
        dash: Position in the patterns of the lines.
    """

    label: str
    rows: Sequence[Row]
    key: str
    color: int = 0
    dash: int = 0


@dataclass(frozen=True)
class Chart:
    """A chart that the script draws over the figure of the same name.

    Args:
        name: Of the figure.
        curves: Its lines.
        axes: Columns that can be its horizontal axis, the first at the start.
        best: Value of the first axis that is marked; None for no mark.
    """

    name: str
    curves: Sequence[Curve]
    axes: tuple[str, ...] = ("epoch", "step")
    best: float | None = None


def choose_log_axis(values: Sequence[float]) -> bool:
    """Return whether a logarithmic axis shows more.

    All values are positive and span two powers of ten or more.
    """
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and min(finite) > 0 and max(finite) / min(finite) >= _LOG_RANGE


def dump_charts(charts: Sequence[Chart]) -> Markup:
    """Write the charts as JSON for a script element of a page; empty without any.

    Long curves are thinned, all by the same stride; the last point stays.
    """
    if not charts:
        return Markup("")
    total = sum(len(curve.rows) for chart in charts for curve in chart.curves)
    stride = 1 + total // _MAX_NUMBERS
    return dump_json([_describe(chart, stride) for chart in charts])


def dump_json(value: Any) -> Markup:
    """Write a value as JSON for a script element, which no text in it can end."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    # a name such as </script>: the three letters are written as escapes
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)  # noqa: S704 - escaped above


def _describe(chart: Chart, stride: int) -> dict[str, Any]:
    """Describe a chart; rows that several curves share are written once."""
    shared: dict[int, int] = {}
    columns: list[dict[str, list[float | None]]] = []
    series = []
    values: list[float] = []
    for curve in chart.curves:
        if id(curve.rows) not in shared:
            shared[id(curve.rows)] = len(columns)
            rows = _thin(curve.rows, stride)
            columns.append({axis: [_round(row.get(axis)) for row in rows] for axis in chart.axes})
        numbers = [_round(row.get(curve.key)) for row in _thin(curve.rows, stride)]
        values += [number for number in numbers if number is not None]
        series.append(
            {
                "label": visible(curve.label, in_line=True),
                "x": shared[id(curve.rows)],
                "y": numbers,
                "color": curve.color,
                "dash": curve.dash,
            }
        )
    return {
        "name": chart.name,
        "axes": list(chart.axes),
        "x": columns,
        "series": series,
        "log": choose_log_axis(values),
        "best": chart.best,
    }


def _thin(rows: Sequence[Row], stride: int) -> Sequence[Row]:
    if stride == 1 or not rows:
        return rows
    chosen = list(rows[::stride])
    if (len(rows) - 1) % stride:
        chosen.append(rows[-1])
    return chosen


def _round(value: float | None) -> float | None:
    """Round to six digits; None for a gap."""
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
