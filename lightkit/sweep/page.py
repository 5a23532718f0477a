"""The page of a sweep: history of the best, slices of each key, importance, and confirmation.

No torch.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit.reports.figures import draw_history, draw_slice
from lightkit.reports.pages import PageFigure, render_page, shorten
from lightkit.runs.files import write_text
from lightkit.sweep.record import Trial
from lightkit.sweep.results import (
    build_history,
    choose_best,
    count_states,
    describe_result,
    list_confirmations,
    rank_trials,
)
from lightkit.sweep.search import compute_importance
from lightkit.sweep.settings import Plan
from lightkit.sweep.space import Dimension, find_choice

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_ROWS = 200
_MOST_SLICES = 24


def try_sweep_page(
    path: Path, name: str, trials: Sequence[Trial], plan: Plan, metric: str, mode: str
) -> Path | None:
    """Write the page; where that fails, warn: no sweep fails by its page."""
    try:
        write_text(path, render_sweep(name, trials, plan, metric, mode), durable=False)
    except Exception as error:  # noqa: BLE001
        text = " ".join(f"{type(error).__name__}: {error}".split())
        logging.getLogger("lightkit").warning("%s was not written: %s", path.name, text)
        return None
    return path


def render_sweep(name: str, trials: Sequence[Trial], plan: Plan, metric: str, mode: str) -> str:
    """Render the page.

    Args:
        name: Name of the sweep.
        trials: Its trials.
        plan: The sweep.
        metric: What is searched.
        mode: ``min`` or ``max``.
    """
    importance, num_trials = compute_importance(plan, mode, trials)
    best = choose_best(trials, plan, mode)
    return render_page(
        "sweep.html",
        title=f"sweep {name}",
        name=name,
        metric=metric,
        mode=mode,
        best=best,
        result=describe_result(trials, plan, metric, mode),
        counts=count_states(trials),
        figures=_draw_figures(trials, plan, metric, mode),
        importance=[(key, share) for key, share in importance.items()],
        num_trials=num_trials,
        confirmations=list_confirmations(trials, plan, mode),
        rows=[_describe_row(each) for each in _sort_rows(trials, plan, mode)[:_MOST_ROWS]],
        num_rows=len(trials),
    )


def _sort_rows(trials: Sequence[Trial], plan: Plan, mode: str) -> list[Trial]:
    """List the trials, the best first, and those without a rank after them."""
    ranked = rank_trials(trials, plan, mode)
    return [*ranked, *(each for each in trials if each not in ranked)]


def _describe_row(trial: Trial) -> dict[str, Any]:
    params = {key: shorten(_write(value), 60) for key, value in trial.params.items()}
    return {
        "number": trial.number,
        "kind": trial.kind if trial.of is None else f"confirms {trial.of}",
        "state": trial.state,
        "value": trial.value,
        "params": ", ".join(f"{key}={value}" for key, value in params.items()),
        "note": shorten(trial.reason or "", 200),
        "run": trial.run,
    }


def _write(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, str):
        return Path(value).name if value.startswith("/") else value
    return json.dumps(value, default=str)


def _draw_figures(trials: Sequence[Trial], plan: Plan, metric: str, mode: str) -> list[PageFigure]:
    complete = [each for each in trials if each.kind == "search" and each.state == "complete"]
    if len(complete) < 2:
        return []
    history = build_history(trials, plan, mode)
    drawn = [
        PageFigure(
            "history",
            draw_history(
                [each.number for each in complete], list_values(complete), history, metric
            ),
            f"{metric} of each complete trial, and the best so far",
            f"{metric} by number of the trial",
        )
    ]
    for number, dimension in enumerate(plan.space.dimensions[:_MOST_SLICES]):
        points = [each for each in complete if dimension.key in each.params]
        if len(points) > 1:
            drawing = _draw_slice(points, dimension, metric)
            caption = f"{metric} by {dimension.key}"
            drawn.append(PageFigure(f"slice-{number}", drawing, caption, f"Scatter of {caption}"))
    return drawn


def list_values(trials: Sequence[Trial]) -> list[float]:
    """List the values of complete trials."""
    return [float(each.value or 0.0) for each in trials]


def _draw_slice(trials: Sequence[Trial], dimension: Dimension, metric: str) -> Figure:
    values = list_values(trials)
    found = [each.params[dimension.key] for each in trials]
    if dimension.is_range:
        return draw_slice(found, values, key=dimension.key, name=metric, is_log=dimension.is_log)
    positions = [find_choice(dimension.choices, each) for each in found]
    known = [(at, value) for at, value in zip(positions, values, strict=True) if at is not None]
    labels = [_write(each) for each in dimension.choices]
    return draw_slice(
        [at for at, _ in known],
        [value for _, value in known],
        key=dimension.key,
        name=metric,
        labels=labels,
    )
