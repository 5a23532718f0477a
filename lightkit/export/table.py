"""The proof of an export as a table: each file beside the eager model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lightkit.export.record import Artefact, Report

__all__ = ["show", "table_of"]

_WIDTH = 110  # columns, in a pipe
_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def show(report: Report, file: TextIO, *, width: int | None = None) -> None:
    """Print the table, and below it what it cannot hold.

    Args:
        report: What was exported.
        file: Standard output. Where it is no terminal, the text has neither colours nor control codes.
        width: In columns; the terminal's if None, or 110 in a pipe.
    """
    is_terminal = file.isatty()
    console = Console(
        file=file,
        width=width or (None if is_terminal else _WIDTH),
        no_color=not is_terminal,
        force_terminal=is_terminal,
        highlight=False,
        emoji=False,
    )
    console.print(table_of(report, is_plain=not is_terminal))
    for note in _notes(report):
        console.print(Text(note), soft_wrap=True)


def table_of(report: Report, *, is_plain: bool = False) -> Table:
    """Lay the files out as rows, after one for the eager model.

    Args:
        report: What was exported.
        is_plain: Without lines of other than ASCII.
    """
    table = Table(box=box.ASCII2 if is_plain else box.SIMPLE_HEAD, pad_edge=False, title=None)
    table.add_column("file", no_wrap=True)
    for head in ("size", "max gap", _metric_of(report) or "metric", "batch 1, ms", "batch 32, ms", "samples/s"):
        table.add_column(head, justify="right")
    for name, artefact in _eager(report):
        table.add_row(name, "", "", _told(artefact.proof.score.eager, _metric_of(report)), *_latency(artefact.eager))
    for artefact in report.artefacts:
        table.add_row(
            artefact.path.name,
            _size(artefact.size_bytes),
            f"{artefact.max_abs:.1e}" if artefact.max_abs else "0",
            _told(artefact.proof.score.exported, _metric_of(report)),
            *_latency(artefact.proof.latency),
        )
    return table


def _notes(report: Report) -> list[str]:
    notes = [
        f"Proved in a fresh process on {artefact.proof.num_samples} samples at batch 1, 7 and 32. "
        f"Latency: median (95th percentile), {artefact.threads} thread{'s'[: artefact.threads > 1]}."
        for artefact in report.artefacts[:1]
    ]
    reasons: dict[str, list[str]] = {}
    for artefact in report.artefacts:
        if artefact.proof.score.reason is not None:
            reasons.setdefault(artefact.proof.score.reason, []).append(artefact.path.name)
    for reason, names in reasons.items():
        which = "" if len(names) == len(report.artefacts) else f"{', '.join(names)}: "
        notes.append(f"{which}{'not' if which else 'Not'} scored: {reason}.")
    notes += [f"{item.path.name}: by {item.metadata.how}" for item in report.artefacts if item.metadata.how]
    return notes


def _eager(report: Report) -> list[tuple[str, Artefact]]:
    """The eager model under its name, once for each way of giving it input, with a file that takes the same."""
    ways = {artefact.metadata.in_graph: artefact for artefact in reversed(report.artefacts)}
    if len(ways) < 2:
        return [("eager model", artefact) for artefact in ways.values()]
    return [("eager, from images" if way else "eager, from tensors", ways[way]) for way in (True, False)]


def _metric_of(report: Report) -> str | None:
    """The metric that has a column: an accuracy if there is one, else the first."""
    names = [name for artefact in report.artefacts for name in artefact.proof.score.eager]
    return next((name for name in names if "acc" in name), names[0] if names else None)


def _told(metrics: Mapping[str, float], name: str | None) -> str:
    value = None if name is None else metrics.get(name)
    return "" if value is None else f"{value:.4f}"


def _latency(latency: Mapping[int, Mapping[str, float]]) -> list[str]:
    cells = [f"{_ms(figures['median_s'])} ({_ms(figures['p95_s'])})" for _, figures in sorted(latency.items())]
    size, figures = max(latency.items())
    return [*cells, f"{size / figures['median_s']:.0f}"]


def _ms(time_s: float) -> str:
    """Milliseconds with a digit after the point; below one of them two digits that count, as in 0.038."""
    time_ms = time_s * 1e3
    return f"{time_ms:.1f}" if time_ms >= 1 else f"{time_ms:.2g}"


def _size(size_bytes: int) -> str:
    for unit, factor in _UNITS:
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes} B"
