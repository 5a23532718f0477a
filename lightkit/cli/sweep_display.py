"""How a sweep stands, on the screen: a live table on a terminal, one line a trial in a pipe."""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lightkit.cli.console import OutputMode, print_line
from lightkit.errors import visible
from lightkit.reports.text_table import format_table
from lightkit.runs.deadline import format_duration
from lightkit.runs.files import finite
from lightkit.sweep.record import Trial
from lightkit.sweep.results import choose_best, count_states
from lightkit.sweep.settings import Plan

_EVERY_S = 0.5
_MOST_ROWS = 12
_MOST_LETTERS = 60


class Display:
    """Shows the trials; a context manager.

    Args:
        mode: What the screen shows.
        name: Name of the sweep.
        plan: The sweep.
    """

    def __init__(self, mode: OutputMode, name: str, plan: Plan) -> None:
        self._mode = mode
        self._name = name
        self._plan = plan
        self._live: Any = None
        self._shown_s = 0.0

    def __enter__(self) -> Display:
        if self._mode not in ("json", "quiet") and sys.stdout.isatty():
            from rich.live import Live  # here: a pipe needs none of it

            self._live = Live(auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def update(self, trials: Sequence[Trial], metric: str | None, mode: str | None) -> None:
        """Show the present state, where it is a terminal."""
        now_s = time.monotonic()
        if self._live is None or now_s - self._shown_s < _EVERY_S:
            return
        self._shown_s = now_s
        from rich.text import Text  # here: a pipe needs none of it

        status = visible(self.format_status(trials, metric, mode))
        # a text with brackets, as in a list, is no markup
        self._live.update(Text(status), refresh=True)

    def finish(
        self, trial: Trial, trials: Sequence[Trial], metric: str | None, mode: str | None
    ) -> None:
        """Show the end of a trial: a line in a pipe, an object in JSON, on a terminal the table."""
        if self._mode == "json":
            print(
                json.dumps(
                    finite({"event": "trial", "metric": metric, **asdict(trial)}), default=str
                ),
                flush=True,
            )
        elif self._live is None:
            print_line(
                f"{self._describe(trial, metric)}{self._describe_best(trials, metric, mode)}",
                self._mode,
            )
            sys.stdout.flush()
        else:
            self._shown_s = -math.inf  # the next state is shown at once

    def _describe(self, trial: Trial, metric: str | None) -> str:
        params = ", ".join(f"{key}={_shorten(value)}" for key, value in trial.params.items())
        again = "" if trial.kind == "search" else f" (seed {trial.seed})"
        of = (
            ""
            if trial.of is None
            else f" again {'the config itself' if trial.of == 0 else f'trial {trial.of}'}"
        )
        text = f"trial {trial.number}{of}{again}: {trial.state}"
        if trial.state == "failed":
            text += f": {trial.reason}"
        elif trial.value is not None:
            text += f", {metric} {trial.value:.4g}"
        return f"{text} in {format_duration(trial.seconds)}{f' with {params}' if params else ''}"

    def _describe_best(self, trials: Sequence[Trial], metric: str | None, mode: str | None) -> str:
        best = choose_best(trials, self._plan, mode)
        return "" if best is None else f"; best {best.value:.4g} of trial {best.number}"

    def format_status(self, trials: Sequence[Trial], metric: str | None, mode: str | None) -> str:
        """Write the state: counts, the time that is left, the best trial.

        Write the newest trials in a table.
        """
        lines = [self._count(trials)]
        best = choose_best(trials, self._plan, mode)
        if best is not None:
            lines.append(f"best: {self._describe(best, metric)}")
        # the running ones, then the finished ones, both from the newest
        newest = sorted(trials, key=lambda each: (each.is_finished, -each.number))
        if newest:
            name = metric or "value"
            rows = [_list_columns(each) for each in newest[:_MOST_ROWS]]
            lines.append(format_table(["trial", "state", name, ""], rows, right={name}))
        return "\n".join(lines)

    def _count(self, trials: Sequence[Trial]) -> str:
        """Count the trials by their state, and estimate by the median trial the time that is left.

        The runs of a confirmation are none of those that the plan counts.
        """
        counts = ", ".join(f"{number} {state}" for state, number in count_states(trials).items())
        finished = [each for each in trials if each.is_finished]
        done = sum(each.kind != "confirm" for each in finished)
        text = f"{self._name}: {done} of {self._plan.num_trials} trials ({counts or 'none yet'})"
        left = self._plan.num_trials - done
        if not finished or left <= 0:
            return text
        parallel = self._plan.parallel if isinstance(self._plan.parallel, int) else 1
        median_s = statistics.median(each.seconds for each in finished)
        left_s = median_s * math.ceil(left / parallel)
        return f"{text}, about {format_duration(left_s)} left"


def _list_columns(trial: Trial) -> list[str]:
    """Return the row of a trial: number, state, value, and parameters or why it has failed."""
    params = ", ".join(f"{key}={_shorten(value)}" for key, value in trial.params.items())
    value = "" if trial.value is None else f"{trial.value:.4g}"
    text = str(trial.reason) if trial.state == "failed" else params
    return [str(trial.number), trial.state, value, text[:_MOST_LETTERS]]


def _shorten(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    return text.rpartition("/")[2] if text.startswith("/") else text
