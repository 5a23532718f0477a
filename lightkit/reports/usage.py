"""Figures of the memory, cores and GPUs that a run has used over its time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lightkit.reports import figures
from lightkit.reports.curves import Chart, Curve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GB = 1e9
_AXES = {
    "memory": ("memory in GB", {"memory_bytes": ("this process and its loaders", _GB)}),
    "cpu": ("cores in use", {"cpu_cores": ("this process and its loaders", 1.0)}),
    "gpu": ("GPU in use, %", {"gpu_percent": ("mean of the GPUs", 1.0)}),
    "gpu-memory": ("GPU memory in GB", {"gpu_memory_bytes": ("all GPUs", _GB)}),
}
"""By the name of a figure, its caption, and its columns of resources.csv with their label and
divisor."""


def draw_usage(rows: Sequence[Mapping[str, float]]) -> list[tuple[str, Figure, str, str, Chart]]:
    """Draw each resource that was measured.

    Name, figure, caption, description, and the chart of the page's script.

    Args:
        rows: Those of resources.csv.
    """
    drawn = []
    for name, (caption, columns) in _AXES.items():
        shown = {
            key: label for key, (label, _) in columns.items() if any(key in row for row in rows)
        }
        if not shown:
            continue
        scaled = []
        for row in rows:
            values = {shown[key]: row[key] / columns[key][1] for key in shown if key in row}
            scaled.append({"seconds": row["seconds"], "minutes": row["seconds"] / 60, **values})
        labels = list(shown.values())
        largest = max(row[label] for row in scaled for label in labels if label in row)
        figure = figures.draw_curves(scaled, labels, axis="minutes", starts_at_zero=True)
        curves = [Curve(label, scaled, label, color=at) for at, label in enumerate(labels)]
        text = f"{caption} over {rows[-1]['seconds'] / 60:.3g} minutes, at most {largest:.4g}"
        drawn.append(
            (
                f"resource-{name}",
                figure,
                caption,
                text,
                Chart(f"resource-{name}", curves, axes=("seconds",)),
            )
        )
    return drawn
