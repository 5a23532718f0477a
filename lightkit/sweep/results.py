"""Result of a sweep: the best trial, its distance from the config itself, and its evidence."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightkit.config.identity import can_change_data
from lightkit.runs.files import write_text
from lightkit.runs.metric_mode import rank_value
from lightkit.sweep.record import Trial
from lightkit.sweep.settings import Plan
from lightkit.sweep.space import Params, Space, identify_point

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Mean:
    """The mean of some values.

    Args:
        values: The values.
        mean: Their mean.
        deviation: Their standard deviation, with one degree of freedom less; 0 for one value.
        low: Lower end of the 95 % interval of the mean, by Student's t.
        high: Its upper end.
    """

    values: tuple[float, ...]
    mean: float
    deviation: float
    low: float
    high: float

    def describe(self) -> str:
        """Write the mean with its interval."""
        if len(self.values) < 2:
            return f"{self.mean:.4g} (one run)"
        return f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}]"


def compute_mean(values: Sequence[float]) -> Mean:
    """Compute a mean, its standard deviation, and the 95 % interval by Student's t."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Mean(tuple(values), mean, 0.0, -math.inf, math.inf)
    from scipy.stats import t  # here: it takes half a second

    deviation = statistics.stdev(values)
    half = float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * deviation / math.sqrt(len(values))
    return Mean(tuple(values), mean, deviation, mean - half, mean + half)


def find_data(trials: Sequence[Trial], trial: Trial, space: Space) -> str | None:
    """Find the fingerprint of the data that a trial must have: that of the first trial on them.

    Trials compare where they have the same values of the keys that may name other data, as in a
    search for a table or a split.

    Args:
        trials: Trials of the sweep.
        trial: One that is about to be trained.
        space: What is searched.

    Returns:
        None where no earlier trial tells it.
    """

    def select(params: Params) -> dict[str, Any]:
        return {
            each.key: params[each.key]
            for each in space.dimensions
            if each.key in params
            and (each.kind == "layers" or can_change_data(tuple(each.key.split("."))))
        }

    wanted = identify_point(select(trial.params))
    for each in trials:
        if each.data is not None and identify_point(select(each.params)) == wanted:
            return each.data
    return None


@dataclass(frozen=True)
class Confirmation:
    """One point that was trained again with fresh seeds.

    Args:
        number: Number of the trial whose values it has.
        mean: Of the fresh runs within all bounds; None where there is none.
        num_outside: Number of fresh runs that break a bound, which are in no mean.
        gain: How much better than the config itself, by seed; None for the config itself.
    """

    number: int
    mean: Mean | None
    num_outside: int
    gain: Mean | None

    @property
    def num_runs(self) -> int:
        """Number of fresh runs in the mean."""
        return 0 if self.mean is None else len(self.mean.values)


def rank_trials(trials: Sequence[Trial], plan: Plan, mode: str) -> list[Trial]:
    """List the complete trials of the search that are within all bounds, the best first."""
    found = [
        each for each in trials if each.kind == "search" and each.is_feasible(plan.constraints)
    ]
    return sorted(found, key=lambda each: (rank_value(each.value, mode), each.number))


def list_confirmations(trials: Sequence[Trial], plan: Plan, mode: str) -> list[Confirmation]:
    """List the points that were trained again, those of most seeds first, then the best mean.

    The mean of the seeds that a point has survived says nothing of the others. A run that breaks a
    bound counts as one that has failed.
    """
    fresh = [each for each in trials if each.kind == "confirm" and each.state == "complete"]
    numbers = dict.fromkeys(int(each.of or 0) for each in fresh)
    values = {number: _values_by_seed(fresh, plan, number) for number in numbers}
    found = []
    for number in numbers:
        num_runs = sum(int(each.of or 0) == number for each in fresh)
        gains = _list_gains(values[number], values.get(0, {}), mode) if number else []
        found.append(
            Confirmation(
                number,
                compute_mean(list(values[number].values())) if values[number] else None,
                num_outside=num_runs - len(values[number]),
                gain=compute_mean(gains) if gains else None,
            )
        )

    def rank(each: Confirmation) -> tuple[Any, ...]:
        return (-each.num_runs, rank_value(None if each.mean is None else each.mean.mean, mode))

    return sorted(found, key=rank)


def _values_by_seed(fresh: Sequence[Trial], plan: Plan, number: int) -> dict[int, float]:
    """Return the values of a point's fresh runs within all bounds, by their seeds."""
    return {
        int(each.seed or 0): each.value
        for each in fresh
        if int(each.of or 0) == number
        and each.value is not None
        and each.is_feasible(plan.constraints)
    }


def _list_gains(values: Mapping[int, float], own: Mapping[int, float], mode: str) -> list[float]:
    """List how much better a point is than the config itself, for each seed that both have."""
    sign = 1.0 if mode == "max" else -1.0
    return [sign * (value - own[seed]) for seed, value in values.items() if seed in own]


def choose_best(trials: Sequence[Trial], plan: Plan, mode: str | None) -> Trial | None:
    """Return the trial whose values are best: by the means of fresh seeds, where there are any.

    None where no trial of a search is within all bounds, as in a sweep of seeds, or none of their
    fresh seeds, or the mode is not known yet.
    """
    if mode is None:
        return None
    ranked = rank_trials(trials, plan, mode)
    allowed = {each.number for each in ranked}
    confirmed = [each for each in list_confirmations(trials, plan, mode) if each.number in allowed]
    if confirmed:
        return trials[confirmed[0].number] if confirmed[0].num_runs else None
    return ranked[0] if ranked else None


def describe_result(trials: Sequence[Trial], plan: Plan, metric: str, mode: str) -> list[str]:
    """Write what was found, in sentences.

    The best values, the gain over the config itself, and what it is worth.
    """
    if plan.sampler == "seeds":
        return _describe_seeds(trials, metric)
    best = choose_best(trials, plan, mode)
    if best is None:
        return [_describe_none(trials, plan)]
    confirmed = list_confirmations(trials, plan, mode)
    lines = [f"best  trial {best.number}: {metric} {best.value:.4g}{_describe_params(best)}"]
    lines += [_describe_confirmation(each) for each in confirmed]
    gain = _describe_gain(best, trials[0], confirmed, plan)
    return lines if gain is None else [*lines, f"gain  {gain}"]


def _describe_confirmation(confirmation: Confirmation) -> str:
    name = "the config itself" if confirmation.number == 0 else f"trial {confirmation.number}"
    gain = "" if confirmation.gain is None else f"; gain {confirmation.gain.describe()}"
    mean = confirmation.mean
    outside = confirmation.num_outside
    if mean is None:
        return f"again {name}: none of {outside} fresh seeds is within all bounds"
    text = f"again {name}: mean {mean.describe()} of {confirmation.num_runs} fresh seeds"
    left_out = f"; without {outside} that broke a bound" if outside else ""
    return f"{text}{left_out}{gain}"


def _describe_gain(
    best: Trial, own: Trial, confirmed: Sequence[Confirmation], plan: Plan
) -> str | None:
    """Write the gain over the config itself; None where that failed.

    Args:
        best: The best trial.
        own: Trial of the config itself.
        confirmed: The points that were trained again.
        plan: The sweep.
    """
    if own.state == "complete" and not own.is_feasible(plan.constraints):
        return "unknown: the config itself is not within all bounds of sweep.constraints"
    if best.number == 0:
        again = "with fresh seeds " if confirmed else ""
        return f"none: {again}no trial beat the config itself"
    gain = next((each.gain for each in confirmed if each.number == best.number), None)
    if gain is not None and gain.low <= 0:
        return "none that is shown: its 95 % interval over the config itself includes 0"
    if gain is not None:
        return f"{gain.describe()} over the config itself, with fresh seeds"
    if own.value is None or best.value is None:
        return None
    if confirmed:  # by which the best was chosen, and not by the one run of each
        return (
            "unknown: no run of the config itself with the same fresh seeds is complete and within"
            " all bounds"
        )
    return (
        f"{abs(best.value - own.value):.4g} over the config itself ({own.value:.4g}), in one run"
        " each, of which the best was chosen: it may be chance. sweep.confirm trains the best"
        " again with fresh seeds"
    )


def _describe_params(trial: Trial) -> str:
    shown = ", ".join(f"{key}={_shorten(value)}" for key, value in trial.params.items())
    return f" with {shown}" if shown else ""


def _shorten(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return Path(value).name if isinstance(value, str) and value.startswith("/") else str(value)


def describe_without_effect(trials: Sequence[Trial], metric: str) -> list[str]:
    """Write which searched keys changed nothing.

    Trials that differ in them have equal values, to the last digit.

    The values of all epochs are compared. A share of few samples is equal by chance, too: it counts
    where it had three different values.
    """
    found: dict[str, tuple[int, int]] = {}  # the first two trials that show it
    for group in _group_equal(trials, least=3 if is_share(metric) else 1):
        for key in sorted({key for each in group for key in each.params}):
            pair = _find_differing(group, key)
            if pair is not None:
                found.setdefault(key, pair)
    lines = []
    for key, (one, two) in found.items():
        lines.append(
            f"equal {metric} of trials {one} and {two}, to the last digit: {key} seems to have no"
            " effect here"
        )
    return lines


def _group_equal(trials: Sequence[Trial], *, least: int) -> list[list[Trial]]:
    """Group the complete trials of the search by the values of all their epochs.

    Args:
        trials: The trials.
        least: Fewest different values of a trial that is taken.
    """
    groups: dict[tuple[tuple[int, float], ...], list[Trial]] = {}
    for each in trials:
        is_complete = each.kind == "search" and each.state == "complete"
        if is_complete and len(set(each.values.values())) >= least:
            groups.setdefault(tuple(sorted(each.values.items())), []).append(each)
    return list(groups.values())


def _find_differing(group: Sequence[Trial], key: str) -> tuple[int, int] | None:
    """Return the numbers of the first two trials that set a key to two values.

    The config itself sets none: it may have the default of a class, which may be the value of
    another trial.
    """
    known = [each for each in group if key in each.params]
    for each in known:
        if each.params[key] != known[0].params[key]:
            return known[0].number, each.number
    return None


def is_share(metric: str) -> bool:
    """Return whether a metric is the share of samples that are right."""
    return metric.replace("_", "/").rpartition("/")[2] in ("accuracy", "acc")


def _describe_seeds(trials: Sequence[Trial], metric: str) -> list[str]:
    values = [each.value for each in trials if each.state == "complete" and each.value is not None]
    if not values:
        return ["no seed has a value"]
    mean = compute_mean(values)
    shown = "none for one seed" if len(values) < 2 else f"{mean.low:.4g} to {mean.high:.4g}"
    found = f"{metric}: mean {mean.mean:.6g}, standard deviation {mean.deviation:.4g}"
    return [f"{found}, 95 % interval {shown}, n={len(values)}"]


def _describe_none(trials: Sequence[Trial], plan: Plan) -> str:
    """Say why no trial is the best."""
    complete = [each for each in trials if each.kind == "search" and each.state == "complete"]
    if not complete:
        return f"no trial is complete; {len(trials)} failed or were stopped early"
    # where points of the search are within all bounds, it is their fresh seeds that are not
    fresh = [each for each in trials if each.kind == "confirm" and each.state == "complete"]
    again = " with fresh seeds" if fresh else ""
    parts = []
    for name, limits in plan.constraints.items():
        values = [each.constraints[name] for each in fresh or complete]
        bounds = " and ".join(f"{key} {limit:g}" for key, limit in limits.items())
        parts.append(f"{name} is to have {bounds}, and is {min(values):.4g} to {max(values):.4g}")
    return f"no trial is within all bounds of sweep.constraints{again}: {'; '.join(parts)}"


# -- files -----------------------------------------------------------------------------------------


def write_table(path: Path, trials: Sequence[Trial], plan: Plan, metric: str) -> None:
    """Write ``trials.csv``, a line a trial."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    bounded = [name for name in plan.constraints if name != "params"]  # which each trial has
    head = [
        "trial",
        "kind",
        "of",
        "seed",
        "state",
        metric,
        "epoch",
        *plan.space.keys,
        *bounded,
        "params",
    ]
    table.writerow([*head, "seconds", "run", "reason"])
    for each in trials:
        params = [each.params.get(key) for key in plan.space.keys]
        bounds = [each.constraints.get(name) for name in bounded]
        row = [
            each.number,
            each.kind,
            each.of,
            each.seed,
            each.state,
            each.value,
            each.epoch,
            *params,
            *bounds,
        ]
        table.writerow([*row, each.num_params, each.seconds, each.run, each.reason])
    write_text(path, text.getvalue(), durable=False)


def build_history(trials: Sequence[Trial], plan: Plan, mode: str) -> list[tuple[int, float]]:
    """Return the best value so far after each complete trial of the search."""
    history: list[tuple[int, float]] = []
    best: float | None = None
    for each in trials:
        if each.kind == "search" and each.is_feasible(plan.constraints) and each.value is not None:
            if best is None or rank_value(each.value, mode) < rank_value(best, mode):
                best = each.value
            history.append((each.number, best))
    return history


def count_states(trials: Sequence[Trial]) -> Mapping[str, int]:
    """Count trials by their state."""
    counts: dict[str, int] = {}
    for each in trials:
        counts[each.state] = counts.get(each.state, 0) + 1
    return counts
