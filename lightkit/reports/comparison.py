"""The page that compares runs.

What differs, curves over one another, and whether one is better beyond noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from string import ascii_uppercase
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from lightkit.reports import figures
from lightkit.reports.curves import Chart, Curve, choose_log_axis
from lightkit.reports.facts import (
    SPLITS,
    RunFacts,
    Score,
    Setting,
    find_contradiction,
    find_score,
    is_metric,
    list_scores,
    score_predictions,
    split_order,
)
from lightkit.reports.pages import (
    PageFigure,
    PageSample,
    Thumbnails,
    name_file,
    render_page,
    shorten,
)
from lightkit.reports.predictions import Predictions
from lightkit.reports.statistics import (
    choose_deciding_samples,
    compare_on_same_samples,
    describe_significance,
    mark_differences,
)
from lightkit.runs.index import flatten, list_differences

T = TypeVar("T")
_LEVEL = 0.05  # of the tests, together
_MAX_CURVES = 12
_MAX_POINTS = 20_000  # of all curves
_FIRST = ("val/loss", "train/loss", "val/accuracy", "train/accuracy", "val/mae", "train/mae")
_ORDER = {metric: position for position, metric in enumerate(_FIRST)}
"""Positions of the metrics whose curves come first."""
_RECORDS = {
    "Data": ("data",),
    "Code": ("git",),
    "Versions": ("lightkit", "python", "packages"),
    "Hardware": ("hardware",),
}
"""Keys of the manifest under each title."""


def match_samples(
    first: Predictions, second: Predictions, *, roots: tuple[str, str] = ("", "")
) -> NDArray[np.int64] | None:
    """Find the samples of which both have a prediction.

    Samples are the same if they have the same path and label; without paths, if they have the same
    position in a split of the same data, in which all labels are equal.

    Args:
        first: Predictions of a split.
        second: Those of another model.
        roots: Folder of the data of each, which their paths may begin with.

    Returns:
        int64 ``(samples, 2)``: positions in the two; None if it is unknown which samples are the
        same.
    """
    if first.task != second.task:
        return None
    keys: list[Any] | None = _list_paths(first, roots[0])
    others: list[Any] | None = _list_paths(second, roots[1])
    have_paths = keys is not None and others is not None
    if keys is None or others is None:
        if first.fingerprint is None or first.fingerprint != second.fingerprint:
            return None
        keys = first.index.tolist()
        others = second.index.tolist()
    rows = _pair_equal(keys, others)
    labels = zip(first.take(rows[:, 0]).labels, second.take(rows[:, 1]).labels, strict=True)
    is_same = np.array([one == other for one, other in labels], dtype=bool)
    if not is_same.any() or not (have_paths or is_same.all()):
        return None
    same: NDArray[np.int64] = rows[is_same]
    return same


def _list_paths(predictions: Predictions, root: str) -> list[str] | None:
    """List the path of each sample below the folder of the data.

    None where not each sample has a path of its own.
    """
    if None in predictions.paths or len({*predictions.paths}) != len(predictions):
        return None
    return [predictions.name_sample(at, root) for at in range(len(predictions))]


def _pair_equal(first: Sequence[Any], second: Sequence[Any]) -> NDArray[np.int64]:
    """Return the positions of equal values in two lists, ``(pairs, 2)``, in the first's order."""
    places = {value: at for at, value in enumerate(second)}
    pairs = [(at, places[value]) for at, value in enumerate(first) if value in places]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def pair_predictions(first: RunFacts, second: RunFacts) -> tuple[Predictions, Predictions] | None:
    """Select the predictions of two models for the same samples, in the same order.

    They are of the test split if both have predictions of it, else of the validation split. None if
    there are none, or none that give the logged scores.
    """
    for split in SPLITS:
        one = first.predictions.get(split)
        other = second.predictions.get(split)
        is_contradicted = any(find_contradiction(each, split) for each in (first, second))
        if one is not None and other is not None and not is_contradicted:
            roots = (str(first.data.get("root") or ""), str(second.data.get("root") or ""))
            rows = match_samples(one, other, roots=roots)
            if rows is not None:
                return one.take(rows[:, 0]), other.take(rows[:, 1])
    return None


def describe_difference(
    first: Predictions,
    second: Predictions,
    names: Sequence[str],
    *,
    level: float = _LEVEL,
    logged: Sequence[Mapping[str, Score]] = ({}, {}),
) -> tuple[str, str]:
    """Write in words whether two models differ on the same samples.

    Also write the numbers of the tests, a line a metric.

    Accuracies are compared by McNemar's exact test, all other metrics by the paired bootstrap. The
    metrics are the one that the task is judged by, and those others of the task that both models
    have logged for these very samples.

    Args:
        first: Predictions of a model.
        second: Those of another, for the same samples in the same order.
        names: Of the first model and of the second.
        level: Probability that equal models are said to differ in any of the metrics.
        logged: Scores of the first model and of the second, by their names.
    """
    pairs = _pair_scores(first, second, logged)
    main = next(iter(pairs))
    tests: dict[str, dict[str, Any]] = {}
    for metric, scores in pairs.items():
        values = [score.value for score in scores]
        found = compare_on_same_samples(metric, values, second, first, confidence=1 - level)
        if found["test"] is not None or metric == main:
            tests[metric] = found
    tested = {metric: found for metric, found in tests.items() if found["test"] is not None}
    mark_differences([*tested.values()], level=level)

    lines = []
    for metric, found in tests.items():
        mode = "min" if pairs[metric][0].is_loss else "max"
        name = f"{metric} of {names[1]}"
        lines.append(describe_significance(found, name, names[0], mode=mode, model=names[1]))
    detail = "\n".join(lines)
    if not tested:
        return f"Whether {names[0]} and {names[1]} differ is unknown.", detail
    is_better = {
        metric: (found["difference"] < 0) == pairs[metric][0].is_loss
        for metric, found in tested.items()
        if found["counts"]
    }
    return _summarize_differences(is_better, names, main=main), detail


def _pair_scores(
    first: Predictions, second: Predictions, logged: Sequence[Mapping[str, Score]]
) -> dict[str, tuple[Score, Score]]:
    """Return the scores of the second model and of the first by metric.

    The one that the task is judged by first.

    Args:
        first: Predictions of a model.
        second: Those of another.
        logged: Scores of the first model and of the second, by their names.
    """
    prefix = SPLITS[first.split]
    mine = score_predictions(prefix, second)
    pairs = {mine.metric: (mine, score_predictions(prefix, first))}
    for name in first.task.metrics:
        metric = f"{prefix}/{name}"
        one = logged[1].get(metric)
        other = logged[0].get(metric)
        # what each model counts in a unit of its own cannot be compared
        if one is not None and other is not None and name not in first.task.form.own_units:
            pairs.setdefault(metric, (one, other))
    return pairs


def _summarize_differences(
    is_better: Mapping[str, bool], names: Sequence[str], *, main: str
) -> str:
    """Write in one sentence in which metrics the second model is better, and in which it is worse.

    Args:
        is_better: Whether it is better, by each metric in which it differs beyond noise.
        names: Of the first model and of the second.
        main: The metric that the task is judged by, which needs no name if no other contradicts it.
    """
    better = [metric for metric, is_gain in is_better.items() if is_gain]
    worse = [metric for metric, is_gain in is_better.items() if not is_gain]
    if not better and not worse:
        return f"No difference beyond noise between {names[0]} and {names[1]}."
    if better and worse:
        return (
            f"{names[1]} is better than {names[0]} in {', '.join(better)}, and worse in"
            f" {', '.join(worse)}."
        )
    word, metrics = ("better", better) if better else ("worse", worse)
    if main in metrics:
        return f"{names[1]} is {word} than {names[0]}."
    return (
        f"{names[1]} is {word} than {names[0]} in {', '.join(metrics)}; no"
        f" difference beyond noise in {main}."
    )


def list_verdicts(compared: Sequence[RunFacts]) -> list[tuple[str, str]]:
    """List for each run but the first whether it differs from the first.

    As `describe_difference` writes it.

    A run without predictions of the same samples has none.
    """
    first = compared[0]
    others = compared[1:]
    level = _LEVEL / len(others)  # Bonferroni: of many equal models, one would look better
    verdicts = []
    for name, each in zip(ascii_uppercase[1:], others, strict=False):
        pair = pair_predictions(first, each)
        if pair is not None:
            logged = [list_scores(facts) for facts in (first, each)]
            verdicts.append(
                describe_difference(*pair, (ascii_uppercase[0], name), level=level, logged=logged)
            )
    return verdicts


def render_comparison(compared: Sequence[RunFacts]) -> str:
    """Render the page that compares runs, which are called A, B, ... in it."""
    names = ascii_uppercase[: len(compared)]
    first = compared[0]
    others = dict(zip(names[1:], compared[1:], strict=True))
    pairs = {name: pair_predictions(first, each) for name, each in others.items()}
    thumbnails = Thumbnails()
    curves = _draw_curves(compared, names)
    scores = [list_scores(facts) for facts in compared]
    metrics = sorted(dict.fromkeys(chain.from_iterable(scores)), key=split_order)
    return render_page(
        "comparison.html",
        title=f"{', '.join(each.name for each in compared)}: comparison",
        names=names,
        runs=[(name, each, find_score(each)) for name, each in zip(names, compared, strict=True)],
        verdicts=list_verdicts(compared),
        untested=[name for name, pair in pairs.items() if pair is None],
        level=_LEVEL / len(others),
        fingerprints=[each.data.get("fingerprint") for each in compared],
        differences=_list_differences(compared),
        scores=dict(_line_up(metrics, scores)),
        curves=curves,
        charts=[each.chart for each in curves if each.chart is not None],
        disagreements={
            name: _list_disagreements((first, others[name]), pair, (names[0], name), thumbnails)
            for name, pair in pairs.items()
            if pair is not None
        },
    )


def _list_differences(
    compared: Sequence[RunFacts],
) -> dict[str, list[tuple[str, list[Setting | None]]]]:
    """List what differs between runs by title, each with the setting of every run.

    Those of no file last.
    """
    settings = [{each.key: each for each in facts.settings} for facts in compared]
    keys = list_differences(
        [{key: each.value for key, each in found.items()} for found in settings]
    )
    keys.sort(key=lambda key: all(found[key].place is None for found in settings if key in found))
    differences = {"Config": _line_up(keys, settings)}
    manifests = [_list_records(each.manifest) for each in compared]
    keys = list_differences(manifests)
    for title, sections in _RECORDS.items():
        of_title = [key for key in keys if key.partition(".")[0] in sections]
        differences[title] = _line_up(of_title, manifests)
    return {title: rows for title, rows in differences.items() if rows}


def _line_up(
    keys: Sequence[str], of_runs: Sequence[Mapping[str, T]]
) -> list[tuple[str, list[T | None]]]:
    """List the value that each run has under each key."""
    return [(key, [each.get(key) for each in of_runs]) for key in keys]


def _list_records(manifest: Mapping[str, Any]) -> dict[str, Setting]:
    sections = {key: manifest.get(key) for keys in _RECORDS.values() for key in keys}
    found = {
        ".".join(map(str, path)): value
        for path, value in flatten(sections)
        if value not in (None, {})
    }
    return {key: Setting(key, value, None) for key, value in found.items()}


def _draw_curves(compared: Sequence[RunFacts], names: Sequence[str]) -> list[PageFigure]:
    """Draw each metric that at least one run logged, one line a run."""
    runs = dict(zip(names, compared, strict=True))
    logged = [*chain.from_iterable(facts.rows for facts in compared)]
    metrics = dict.fromkeys(filter(is_metric, chain.from_iterable(logged)))
    shown = sorted(metrics, key=lambda key: _ORDER.get(key, len(_ORDER)))[:_MAX_CURVES]

    # of long runs each so many epochs, and the last
    epochs = sorted({int(row["epoch"]) for row in logged})
    stride = 1 + len(epochs) * len(compared) * len(shown) // _MAX_POINTS
    epochs = [epoch for epoch in epochs if epoch % stride == 0 or epoch == epochs[-1]]

    drawn = []
    for number, key in enumerate(shown):
        lines = _list_values(runs, key)
        values = [*chain.from_iterable(each.values() for each in lines.values())]
        drawing = figures.draw_curves(
            _join_lines(lines, epochs), names, has_log_axis=choose_log_axis(values)
        )
        ends = ", ".join(f"{name} {each[max(each)]:.4g}" for name, each in lines.items())
        file = f"curve-{number}-{name_file(key)}"
        chart = _make_chart(file, key, compared, names)
        drawn.append(PageFigure(file, drawing, key, f"{key}; at the end: {ends}", chart))
    return drawn


def _list_values(runs: Mapping[str, RunFacts], key: str) -> dict[str, dict[int, float]]:
    """Return the values of a metric by epoch, of each run that logged it."""
    lines = {}
    for name, facts in runs.items():
        values = {int(row["epoch"]): row[key] for row in facts.rows if key in row}
        if values:
            lines[name] = values
    return lines


def _join_lines(
    lines: Mapping[str, Mapping[int, float]], epochs: Sequence[int]
) -> list[dict[str, float]]:
    """Return a row for each epoch, with the value of each run that has one."""
    rows = []
    for epoch in epochs:
        values = {name: each[epoch] for name, each in lines.items() if epoch in each}
        rows.append({"epoch": epoch, **values})
    return rows


def _make_chart(name: str, key: str, compared: Sequence[RunFacts], names: Sequence[str]) -> Chart:
    """Make a chart of a metric, with a line for each run that logged it, in its figure's colour."""
    curves = [
        Curve(
            f"{letter} {shorten(facts.name, 60)}",
            facts.rows,
            key,
            color=position % len(figures.SERIES),
            dash=position // len(figures.SERIES),
        )
        for position, (letter, facts) in enumerate(zip(names, compared, strict=True))
        if any(key in row for row in facts.rows)
    ]
    return Chart(name, curves)


def _list_disagreements(
    compared: tuple[RunFacts, RunFacts],
    pair: tuple[Predictions, Predictions],
    names: tuple[str, str],
    thumbnails: Thumbnails,
) -> list[PageSample]:
    """List the samples that decide which of two models is better.

    Each with a thumbnail of either run folder.
    """
    first = pair[0]
    positions = {index: at for at, index in enumerate(first.index.tolist())}
    samples = []
    for each in choose_deciding_samples(*pair, ()):
        at = positions[each["index"]]
        images = (
            thumbnails.read(facts.run.folder, predictions.split, int(predictions.index[at]))
            for facts, predictions in zip(compared, pair, strict=True)
        )
        samples.append(
            PageSample(
                path=shorten(first.name_sample(at, compared[0].data.get("root")), 120),
                label=shorten(each["label"], 60),
                predicted={
                    names[0]: shorten(each["challenger"], 60),
                    names[1]: shorten(each["baseline"], 60),
                },
                image=next(filter(None, images), ""),
            )
        )
    return samples
