"""Figures for reports and loggers: one function each, which returns a Matplotlib figure.

No pyplot, no torch.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree as ET

import numpy as np
from numpy.typing import NDArray

from lightkit.errors import visible
from lightkit.reports.statistics import Calibration

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class RateLine(NamedTuple):
    """A line of one rate over another.

    Args:
        x: Rates from 0 to 1.
        y: Likewise.
        labels: Of the two axes.
        points: Those that are named: label, x, y.
    """

    x: NDArray[np.floating]
    y: NDArray[np.floating]
    labels: tuple[str, str]
    points: Sequence[tuple[str, float, float]] = ()


SERIES = ("c0", "c1", "c2", "c3", "c4", "c5")
"""Roles of the colours of lines and bars, in their order."""
# after M. Okabe and K. Ito, "Color Universal Design" (2008), with at least 4.5 of contrast on white
_COLORS = {
    "ink": "#1f2328",
    "dim": "#59636e",
    "line": "#d1d9e0",
    "paper": "#ffffff",
    "heat": "#57a5dd",
} | dict(
    zip(SERIES, ("#0868ac", "#a84300", "#00735a", "#a0307a", "#6b5900", "#444b54"), strict=True)
)
_ROLES = {color: role for role, color in _COLORS.items()}
_STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": _COLORS["line"],
    "axes.labelcolor": _COLORS["dim"],
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.titlecolor": _COLORS["ink"],
    "font.size": 10,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "legend.frameon": False,
    "legend.labelcolor": _COLORS["ink"],
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "grid.color": _COLORS["line"],
    "text.parse_math": False,  # a class may be called $x
    "text.color": _COLORS["ink"],
    "xtick.color": _COLORS["dim"],
    "ytick.color": _COLORS["dim"],
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "svg.fonttype": "none",
    "svg.hashsalt": "lightkit",
    "path.simplify_threshold": 0.5,
}
_MAX_LABELLED_CLASSES = 30  # beyond, names and numbers overlap
_MAX_CELLS = 200  # a side of the image of a matrix of more classes
_MAX_POINTS = 400  # of a line; more cannot be seen


def _text(name: object) -> str:
    """Return a name as a figure shows it: every text not lightkit's own goes through here."""
    return visible(str(name), in_line=True)


@contextmanager
def _figure(width: float, height: float) -> Iterator[Figure]:
    """Return a figure of that size in inches, in the style of the reports."""
    import matplotlib as mpl  # 0.4 s, which the start of a command need not wait for
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        yield Figure(figsize=(width, height), layout="constrained")


def _set_log_scale(axes: Axes, *, x: bool = False, y: bool = False) -> None:
    """Make an axis logarithmic, with numbers such as 0.001.

    Matplotlib's own are formulas, which are shown as text.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # 0.4 s, as above

    for is_wanted, name, axis in ((x, "x", axes.xaxis), (y, "y", axes.yaxis)):
        if not is_wanted:
            continue
        axes.set(**{f"{name}scale": "log"})
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        low, high = axis.get_view_interval()
        if high < 20 * low:  # less than two powers of ten, so that others are named too
            axis.set_minor_locator(LogLocator(subs=(2, 5)))
            axis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        else:
            axis.set_minor_formatter(NullFormatter())


def draw_curves(
    rows: Sequence[Mapping[str, float]],
    names: Sequence[str],
    *,
    best_epoch: int | None = None,
    resumed_at: Sequence[int] = (),
    skipped_at: Sequence[int] = (),
    with_learning_rate: bool = False,
    has_log_axis: bool = False,
    axis: str = "epoch",
    starts_at_zero: bool = False,
) -> Figure:
    """Draw metrics over the epochs, each as a line.

    Args:
        rows: Those of metrics.csv, or others with the column that ``axis`` names.
        names: Metrics of one unit, such as ``train/loss`` and ``val/loss``.
        best_epoch: Marked by a vertical line.
        resumed_at: Epochs in which the training was resumed, marked at the bottom.
        skipped_at: Epochs in which a batch was left out, marked at the bottom.
        with_learning_rate: Whether the learning rates are drawn below.
        has_log_axis: Whether the vertical axis is logarithmic.
        axis: Column of the horizontal axis, and its label.
        starts_at_zero: Whether the vertical axis begins at 0.
    """
    rates = sorted(
        {name for row in rows for name in row if name == "lr" or name.startswith("lr/")}
    )[: len(SERIES)]
    with _figure(4.6, 3.4 if with_learning_rate and rates else 2.6) as figure:
        if with_learning_rate and rates:
            axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
            _draw_lines(below, rows, rates, axis=axis, labels=False)
            below.set_ylabel("learning rate")
            below.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
            below.set_ylim(bottom=0)
        else:
            axes = below = figure.add_subplot()
        _draw_lines(axes, rows, names, axis=axis, labels=True)
        if has_log_axis:
            _set_log_scale(axes, y=True)
        if starts_at_zero:
            axes.set_ylim(bottom=0)
        below.set_xlabel(axis)
        if axis == "epoch":
            below.xaxis.get_major_locator().set_params(integer=True)
        _mark_epochs(axes, best_epoch, resumed_at=resumed_at, skipped_at=skipped_at)
        _add_legend(figure, axes)
    return figure


def _mark_epochs(
    axes: Axes, best_epoch: int | None, *, resumed_at: Sequence[int], skipped_at: Sequence[int]
) -> None:
    share = axes.get_xaxis_transform()  # of the height of the axes, at an epoch
    if best_epoch is not None:
        axes.axvline(best_epoch, color=_COLORS["dim"], linewidth=1, linestyle=(0, (2, 2)))
        axes.text(
            best_epoch, 1.01, "best", transform=share, ha="center", color=_COLORS["dim"], fontsize=9
        )
    for epochs, marker, role, label in (
        (resumed_at, "^", "c2", "resumed"),
        (skipped_at, "x", "c3", "skipped batch"),
    ):
        if epochs:
            style: Any = {"color": _COLORS[role], "markersize": 5, "label": label, "clip_on": False}
            axes.plot(epochs, [0.02] * len(epochs), marker, transform=share, **style)


def _add_legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper left", ncols=3, handlelength=1.4, columnspacing=1.2
    )


def _draw_lines(
    axes: Axes,
    rows: Sequence[Mapping[str, float]],
    names: Sequence[str],
    *,
    axis: str,
    labels: bool,
) -> None:
    axes.grid(axis="y", linewidth=0.8)
    stride = max(1, math.ceil(len(rows) / _MAX_POINTS))
    chosen = [*rows[::stride], *(rows[-1:] if (len(rows) - 1) % stride else [])]
    for position, name in enumerate(names):
        dashes, color = divmod(position, len(SERIES))
        points = [
            (row[axis], row[name]) for row in chosen if math.isfinite(row.get(name, math.nan))
        ]
        marker = "o" if len(points) < 30 else None
        (
            axes.plot(
                *zip(*points, strict=True),
                color=_COLORS[SERIES[color]],
                linestyle=("-", (0, (4, 1.5)), (0, (1, 1)), (0, (4, 1, 1, 1)))[dashes % 4],
                label=_text(name) if labels else None,
                linewidth=1.6,
                marker=marker,
                markersize=3,
            )
            if points
            else None
        )


def draw_confusion_matrix(counts: NDArray[np.integer], class_names: Sequence[str]) -> Figure:
    """Draw how often each class was taken for which, as a heat map whose rows add up to one.

    Args:
        counts: ``(num_classes, num_classes)``, rows are labels and columns predictions.
        class_names: In the order of the labels.
    """
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle

    num = len(counts)
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    is_labelled = num <= _MAX_LABELLED_CLASSES
    side = min(11.0, 2.4 + 0.42 * num) if is_labelled else 6.0
    with _figure(side, side) as figure:
        axes = figure.add_subplot(aspect="equal")
        axes.set(xlim=(0, num), ylim=(num, 0), xlabel="predicted", ylabel="label")
        axes.spines[:].set_visible(False)
        if not is_labelled:
            step = math.ceil(num / _MAX_CELLS)
            padded = np.zeros((math.ceil(num / step) * step,) * 2)
            padded[:num, :num] = share
            cells = padded.reshape(len(padded) // step, step, -1, step).max(axis=(1, 3))
            image = np.zeros((*cells.shape, 4))
            image[..., :3] = to_rgb(_COLORS["c0"])
            image[..., 3] = np.sqrt(cells)
            axes.imshow(image, extent=(0, len(padded), len(padded), 0), interpolation="nearest")
            axes.add_patch(Rectangle((0, 0), num, num, fill=False, edgecolor=_COLORS["line"]))
            return figure
        names = [name if len(name) <= 24 else f"{name[:23]}…" for name in map(_text, class_names)]
        axes.set_xticks(
            np.arange(num) + 0.5, names, rotation=90 if num > 4 or max(map(len, names)) > 9 else 0
        )
        axes.set_yticks(np.arange(num) + 0.5, names)
        size = 10 if num <= 15 else 7
        for row, column in np.ndindex(num, num):
            shades = {"line": 0.35}
            if counts[row, column]:
                shades["heat"] = round(0.1 + 0.9 * float(share[row, column]), 2)
                axes.text(
                    column + 0.5,
                    row + 0.5,
                    f"{counts[row, column]}",
                    ha="center",
                    va="center",
                    fontsize=size,
                )
            for role, alpha in shades.items():
                place = (column + 0.03, row + 0.03)
                axes.add_patch(
                    Rectangle(place, 0.94, 0.94, linewidth=0, facecolor=_COLORS[role], alpha=alpha)
                )
    return figure


def draw_reliability(calibration: Calibration) -> Figure:
    """Draw a reliability diagram: accuracy over confidence, with the number of samples below."""
    edges, counts, confidence, accuracy, _ = calibration
    with _figure(4.2, 3.8) as figure:
        axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
        widths = np.diff(edges) * 0.9
        centers = (edges[1:] + edges[:-1]) / 2
        axes.plot(
            [0, 1],
            [0, 1],
            color=_COLORS["dim"],
            linestyle=(0, (2, 2)),
            linewidth=1,
            label="calibrated",
        )
        axes.bar(centers, np.nan_to_num(accuracy), widths, color=_COLORS["c0"], alpha=0.3)
        axes.plot(
            confidence,
            accuracy,
            "o-",
            color=_COLORS["c0"],
            markersize=4,
            label="this model",
            clip_on=False,
        )
        axes.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy")
        axes.grid(axis="y", linewidth=0.8)
        _add_legend(figure, axes)
        below.bar(centers, counts, widths, color=_COLORS["dim"], alpha=0.5)
        below.set(xlabel="confidence", ylabel="samples")
    return figure


def draw_scatter(
    target: NDArray[Any], prediction: NDArray[Any], *, has_log_axes: bool = False
) -> Figure:
    """Draw the predictions of a regressor over its targets, both ``(samples,)``.

    Args:
        target: The targets.
        prediction: The predictions.
        has_log_axes: Whether both axes are logarithmic.
    """
    with _figure(4.2, 3.8) as figure:
        axes = figure.add_subplot()
        stride = math.ceil(len(target) / 1000) or 1
        axes.plot(
            target[::stride],
            prediction[::stride],
            "o",
            color=_COLORS["c0"],
            markersize=3,
            alpha=0.5,
        )
        ends = [np.nanmin(target), np.nanmax(target)] if len(target) else [0, 1]
        axes.plot(ends, ends, color=_COLORS["dim"], linestyle=(0, (2, 2)), linewidth=1)
        if has_log_axes:
            _set_log_scale(axes, x=True, y=True)
        axes.set(xlabel="target", ylabel="prediction")
        axes.grid(linewidth=0.8)
    return figure


def draw_residuals(
    target: NDArray[Any], prediction: NDArray[Any], *, has_log_axis: bool = False
) -> Figure:
    """Draw how far the predictions of a regressor are from its targets, and how often.

    Args:
        target: ``(samples,)``.
        prediction: Likewise.
        has_log_axis: Whether the axis of the targets is logarithmic.
    """
    residuals = np.asarray(prediction - target, dtype=np.float64)
    finite = residuals[np.isfinite(residuals)]
    with _figure(4.6, 3.8) as figure:
        axes, right = figure.subplots(1, 2, sharey=True, width_ratios=(4, 1))
        stride = math.ceil(len(target) / 1000) or 1
        axes.plot(
            target[::stride], residuals[::stride], "o", color=_COLORS["c0"], markersize=3, alpha=0.5
        )
        axes.axhline(0, color=_COLORS["dim"], linestyle=(0, (2, 2)), linewidth=1)
        if has_log_axis:
            _set_log_scale(axes, x=True)
        axes.set(xlabel="target", ylabel="prediction - target")
        axes.grid(linewidth=0.8)
        if len(finite):
            right.hist(finite, bins=20, orientation="horizontal", color=_COLORS["c0"], alpha=0.3)
        right.set_xlabel("samples")
    return figure


def draw_rates(lines: Sequence[RateLine]) -> Figure:
    """Draw rates over rates, each pair in axes of its own, with some points that are named."""
    with _figure(2.9 * len(lines), 3.0) as figure:
        for axes, line in zip(np.atleast_1d(figure.subplots(1, len(lines))), lines, strict=True):
            axes.plot(line.x, line.y, color=_COLORS["c0"], linewidth=1.6, clip_on=False)
            for label, x, y in line.points:
                axes.plot([x], [y], "o", color=_COLORS["c1"], markersize=4, clip_on=False)
                axes.annotate(
                    label, (x, y), textcoords="offset points", xytext=(4, -10), color=_COLORS["dim"]
                )
            axes.set(xlim=(0, 1), ylim=(0, 1), xlabel=line.labels[0], ylabel=line.labels[1])
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
        bars = axes.barh(range(len(seconds)), list(seconds.values()), 0.62, color=_COLORS["c0"])
        axes.bar_label(bars, [f"{value / total:.0%}" for value in seconds.values()], padding=4)
        axes.set_yticks(range(len(seconds)), list(map(_text, seconds)))
        axes.tick_params(axis="y", labelcolor=_COLORS["ink"])
        axes.invert_yaxis()
        axes.set_xlabel("seconds")
        axes.spines["left"].set_visible(False)
        axes.margins(x=0.15)
    return figure


# -- what becomes of a figure ----------------------------------------------------------------------

_DECIMALS = re.compile(r"-?\d+\.\d\d+")
_ID = re.compile(r"(?<=#)[\w-]+")


def to_svg(figure: Figure, *, name: str, label: str) -> str:
    """Render a figure as an ``<svg>`` element for a page with a strict Content-Security-Policy.

    Text stays text, and colours are the classes ``s-ROLE`` (stroke) and ``f-ROLE`` (fill) of the
    page's style sheet.

    Args:
        figure: A figure of this module.
        name: Prefix of the ids in it, unique in the page.
        label: Description for those who do not see it.
    """
    import matplotlib as mpl

    file = io.StringIO()
    with mpl.rc_context(_STYLE):
        _save(figure, file, format="svg", transparent=True)
    linked = {*_ID.findall(file.getvalue())}
    svg = ET.fromstring(file.getvalue())  # noqa: S314 - written above
    for element in svg.iter():
        for child in [*element]:
            tag = child.tag.rpartition("}")[2]
            if tag in ("metadata", "style") or (tag == "g" and not len(child)):
                element.remove(child)
        element.tag = element.tag.rpartition("}")[2]
        element.text, element.tail = (
            text if text and text.strip() else None for text in (element.text, element.tail)
        )
        given = element.attrib
        element.attrib = {}
        for key, value in given.items():
            if key == "style":
                _set_style(element, value)
            elif key == "id":
                element.attrib |= {"id": f"{name}-{value}"} if value in linked else {}
            else:
                short = _DECIMALS.sub(lambda number: f"{float(number[0]):.4g}", value)
                element.set(
                    key.rpartition("}")[2], _ID.sub(lambda link: f"{name}-{link[0]}", short)
                )
    view = svg.attrib["viewBox"]
    width = f"{float(view.split()[2]) * 4 / 3:.0f}"
    svg.attrib = {"viewBox": view, "width": width, "role": "img", "aria-label": _text(label)}
    return ET.tostring(svg, encoding="unicode")


def _save(figure: Figure, file: io.StringIO | io.BytesIO, **options: Any) -> None:
    """Render a figure, which keeps the layout of its first rendering.

    Letters that its font lacks are boxes in a picture, and the reader's font has them on a page.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(file, **options)
    # the layout takes a third of the time of a rendering, and most figures are rendered twice
    figure.set_layout_engine("none")


def _set_style(element: ET.Element, style: str) -> None:
    """Set declarations as presentation attributes, which the policy allows, colours as classes."""
    classes = []
    for declaration in filter(None, map(str.strip, style.split(";"))):
        key, value = (part.strip() for part in declaration.split(":", 1))
        if key in ("fill", "stroke") and value in _ROLES:
            classes.append(f"{key[0]}-{_ROLES[value]}")
        elif key == "font":
            element.set("font-size", re.findall(r"([\d.]+)px", value)[0])
        elif key != "font-family":
            element.set(key, value)
    if classes:
        element.set("class", " ".join(classes))


def to_png(figure: Figure, *, dpi: int = 144) -> bytes:
    """Render a figure as PNG on white."""
    file = io.BytesIO()
    _save(figure, file, format="png", dpi=dpi, facecolor=_COLORS["paper"])
    return file.getvalue()


def to_pixels(figure: Figure) -> NDArray[np.uint8]:
    """Render a figure as uint8 ``(height, width, 3)`` on white."""
    from PIL import Image

    return np.array(Image.open(io.BytesIO(to_png(figure, dpi=100))).convert("RGB"))


def draw_history(
    numbers: Sequence[int], values: Sequence[float], best: Sequence[tuple[int, float]], name: str
) -> Figure:
    """Draw the value of each trial of a sweep, and the best so far.

    Args:
        numbers: Numbers of the trials.
        values: Their values.
        best: The best value so far after a trial, by its number.
        name: Name of the metric.
    """
    with _figure(4.6, 2.8) as figure:
        axes = figure.add_subplot()
        axes.grid(axis="y", linewidth=0.8)
        axes.plot(
            numbers, values, "o", color=_COLORS["c0"], markersize=4, alpha=0.6, label="a trial"
        )
        axes.step(
            [number for number, _ in best],
            [value for _, value in best],
            where="post",
            color=_COLORS["c1"],
            label="best so far",
        )
        axes.set(xlabel="trial", ylabel=_text(name))
        axes.locator_params(axis="x", integer=True)
        _add_legend(figure, axes)
    return figure


def draw_slice(
    positions: Sequence[float],
    values: Sequence[float],
    *,
    key: str,
    name: str,
    labels: Sequence[str] = (),
    is_log: bool = False,
) -> Figure:
    """Draw the value of each trial of a sweep over one of the searched keys.

    Args:
        positions: Values of the key; of a choice its position.
        values: Values of the trials.
        key: The key.
        name: Name of the metric.
        labels: The choices; empty for a range.
        is_log: Whether the range is logarithmic.
    """
    with _figure(4.2, 2.8) as figure:
        axes = figure.add_subplot()
        axes.grid(axis="y", linewidth=0.8)
        axes.plot(positions, values, "o", color=_COLORS["c0"], markersize=4, alpha=0.6)
        if is_log:
            _set_log_scale(axes, x=True)
        if labels:
            axes.set_xticks(
                range(len(labels)), [_text(label)[:16] for label in labels], rotation=30, ha="right"
            )
            axes.set_xlim(-0.5, len(labels) - 0.5)
        axes.set(xlabel=_text(key), ylabel=_text(name))
    return figure
