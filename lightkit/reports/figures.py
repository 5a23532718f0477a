"""Figures for reports and loggers: one function each, which returns a Matplotlib figure. No pyplot, no torch."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lightkit.reports.statistics import CalibrationBins

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# after M. Okabe and K. Ito, "Color Universal Design" (2008), with at least 4.5 of contrast on white
_INK, _DIM, _LINE, _PAPER = "#1f2328", "#59636e", "#d1d9e0", "#ffffff"
_SERIES = ("#0868ac", "#a84300", "#00735a", "#a0307a", "#6b5900", "#444b54")
_STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": _LINE,
    "axes.labelcolor": _DIM,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.titlecolor": _INK,
    "font.size": 10,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "legend.frameon": False,
    "legend.labelcolor": _INK,
    "figure.facecolor": _PAPER,
    "axes.facecolor": "none",
    "grid.color": _LINE,
    "text.parse_math": False,  # a class may be called $x
    "text.color": _INK,
    "xtick.color": _DIM,
    "ytick.color": _DIM,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}
_MAX_LABELLED_CLASSES = 30  # beyond, names and numbers overlap
_MAX_CELLS = 200  # a side of the image of a matrix of more classes


@contextmanager
def _figure(width: float, height: float) -> Iterator[Figure]:
    """Give a figure of that size in inches, in the style of the reports."""
    import matplotlib as mpl  # 0.4 s, which the start of a command need not wait for
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        yield Figure(figsize=(width, height), layout="constrained")


def draw_curves(
    rows: Sequence[Mapping[str, float]],
    names: Sequence[str],
    *,
    best_epoch: int | None = None,
    resumed_at: Sequence[int] = (),
    skipped_at: Sequence[int] = (),
    with_learning_rate: bool = False,
) -> Figure:
    """Draw metrics over the epochs, each as a line.

    Args:
        rows: Those of metrics.csv.
        names: Metrics of one unit, such as ``train/loss`` and ``val/loss``.
        best_epoch: Marked by a vertical line.
        resumed_at: Epochs in which the training was resumed, marked at the bottom.
        skipped_at: Epochs in which a batch was left out, marked at the bottom.
        with_learning_rate: Whether the learning rates are drawn below.
    """
    rates = sorted({name for row in rows for name in row if name == "lr" or name.startswith("lr/")})[: len(_SERIES)]
    with _figure(4.6, 3.4 if with_learning_rate and rates else 2.6) as figure:
        if with_learning_rate and rates:
            axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
            _draw_lines(below, rows, rates, labels=False)
            below.set_ylabel("learning rate")
            below.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
            below.set_ylim(bottom=0)
        else:
            axes = below = figure.add_subplot()
        _draw_lines(axes, rows, names, labels=True)
        below.set_xlabel("epoch")
        below.xaxis.get_major_locator().set_params(integer=True)
        if best_epoch is not None:
            axes.axvline(best_epoch, color=_DIM, linewidth=1, linestyle=(0, (2, 2)))
            axes.annotate(
                "best",
                (best_epoch, 1),
                xycoords=axes.get_xaxis_transform(),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                color=_DIM,
                fontsize=9,
            )
        for epochs, marker, color, label in (
            (resumed_at, "^", _SERIES[2], "resumed"),
            (skipped_at, "x", _SERIES[3], "skipped batch"),
        ):
            if epochs:
                axes.plot(
                    epochs,
                    [0.02] * len(epochs),
                    marker,
                    color=color,
                    markersize=5,
                    label=label,
                    transform=axes.get_xaxis_transform(),
                    clip_on=False,
                )
        figure.legend(
            *axes.get_legend_handles_labels(),
            loc="outside upper left",
            ncols=3,
            fontsize=10,
            handlelength=1.4,
            columnspacing=1.2,
        )
    return figure


def _draw_lines(axes: Axes, rows: Sequence[Mapping[str, float]], names: Sequence[str], *, labels: bool) -> None:
    axes.grid(axis="y", linewidth=0.8)
    for position, name in enumerate(names):
        dashes, color = divmod(position, len(_SERIES))
        points = [(row["epoch"], row[name]) for row in rows if math.isfinite(row.get(name, math.nan))]
        marker = "o" if len(points) < 30 else None
        axes.plot(
            *zip(*points, strict=True),
            color=_SERIES[color],
            linestyle=("-", (0, (4, 1.5)), (0, (1, 1)), (0, (4, 1, 1, 1)))[dashes % 4],
            label=name if labels else None,
            linewidth=1.6,
            marker=marker,
            markersize=3,
        ) if points else None


def draw_confusion_matrix(counts: NDArray[np.integer], class_names: Sequence[str]) -> Figure:
    """Draw how often each class was taken for which, as a heat map whose rows add up to one.

    Args:
        counts: ``(num_classes, num_classes)``, rows are labels and columns predictions.
        class_names: In the order of the labels.
    """
    num = len(counts)
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    is_labelled = num <= _MAX_LABELLED_CLASSES
    side = min(11.0, 2.4 + 0.42 * num) if is_labelled else 6.0
    with _figure(side, side) as figure:
        axes = figure.add_subplot(xlabel="predicted", ylabel="label")
        if not is_labelled:  # the square root, and the maximum of pixels that fall together, show single mistakes
            step = math.ceil(num / _MAX_CELLS)
            starts = np.arange(0, num, step)
            largest = np.maximum.reduceat(np.maximum.reduceat(share, starts, axis=0), starts, axis=1)
            axes.imshow(np.sqrt(largest), cmap="Blues", vmin=0, vmax=1, extent=(0, num, num, 0))
            return figure
        axes.imshow(share, cmap="Blues", vmin=0, vmax=2)  # the lighter half, on which text has a contrast of 4.5
        names = [name if len(name) <= 24 else f"{name[:23]}…" for name in map(str, class_names)]
        axes.set_xticks(np.arange(num), names, rotation=90 if num > 4 or max(map(len, names)) > 9 else 0)
        axes.set_yticks(np.arange(num), names)
        for row, column in np.argwhere(counts):
            size = 10 if num <= 15 else 7
            axes.text(column, row, f"{counts[row, column]}", ha="center", va="center", fontsize=size)
    return figure


def draw_reliability(bins: CalibrationBins) -> Figure:
    """Draw a reliability diagram: accuracy over confidence, with the number of samples below."""
    edges, counts, confidence, accuracy = bins
    with _figure(4.2, 3.8) as figure:
        axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
        widths = np.diff(edges) * 0.9
        centers = (edges[1:] + edges[:-1]) / 2
        axes.plot([0, 1], [0, 1], color=_DIM, linestyle=(0, (2, 2)), linewidth=1, label="calibrated")
        axes.bar(centers, np.nan_to_num(accuracy), widths, color=_SERIES[0], alpha=0.3)
        axes.plot(confidence, accuracy, "o-", color=_SERIES[0], markersize=4, label="this model", clip_on=False)
        axes.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy")
        axes.grid(axis="y", linewidth=0.8)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=2, fontsize=10)
        below.bar(centers, counts, widths, color=_DIM, alpha=0.5)
        below.set(xlabel="confidence", ylabel="samples")
    return figure


def draw_scatter(target: NDArray[Any], prediction: NDArray[Any]) -> Figure:
    """Draw the predictions of a regressor over its targets, both ``(samples,)``."""
    with _figure(4.2, 3.8) as figure:
        axes = figure.add_subplot()
        stride = math.ceil(len(target) / 1000) or 1
        axes.plot(target[::stride], prediction[::stride], "o", color=_SERIES[0], markersize=3, alpha=0.5)
        ends = [np.nanmin(target), np.nanmax(target)] if len(target) else [0, 1]
        axes.plot(ends, ends, color=_DIM, linestyle=(0, (2, 2)), linewidth=1)
        axes.set(xlabel="target", ylabel="prediction")
        axes.grid(linewidth=0.8)
    return figure


def draw_durations(seconds: Mapping[str, float]) -> Figure:
    """Draw where the time went, as one bar for each part.

    Args:
        seconds: By the name of the part.
    """
    with _figure(4.6, 0.5 + 0.34 * len(seconds)) as figure:
        axes = figure.add_subplot()
        total = sum(seconds.values()) or 1.0
        bars = axes.barh(range(len(seconds)), list(seconds.values()), 0.62, color=_SERIES[0])
        axes.bar_label(bars, [f"{value / total:.0%}" for value in seconds.values()], padding=4)
        axes.set_yticks(range(len(seconds)), list(seconds))
        axes.tick_params(axis="y", labelcolor=_INK)
        axes.invert_yaxis()
        axes.set_xlabel("seconds")
        axes.spines["left"].set_visible(False)
        axes.margins(x=0.15)
    return figure


def to_png(figure: Figure, *, dpi: int = 144) -> bytes:
    """Render a figure as PNG, with a palette, which makes it a third as large."""
    file = io.BytesIO()
    to_image(figure, dpi=dpi).quantize(128).save(file, "PNG", optimize=True)
    return file.getvalue()


def to_image(figure: Figure, *, dpi: int = 100) -> Image.Image:
    """Render a figure in RGB on white."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=dpi)
    return Image.open(file).convert("RGB")
