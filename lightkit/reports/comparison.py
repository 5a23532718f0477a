"""The page that compares runs: what differs, curves over one another, and whether one is better beyond noise."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from string import ascii_uppercase
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightkit.reports import figures
from lightkit.reports.facts import (
    NO_METRICS,
    SPLITS,
    RunFacts,
    Score,
    Setting,
    find_score,
    list_scores,
    read_facts,
)
from lightkit.reports.pages import PageFigure, render_page, shorten
from lightkit.reports.predictions import Predictions, Split, class_scores, confusion_counts, read_thumbnail
from lightkit.reports.statistics import PairedDifference, bootstrap_interval, mcnemar_exact, paired_bootstrap
from lightkit.runs.files import write_text
from lightkit.runs.folder import Run
from lightkit.runs.index import flatten, list_differences

MAX_RUNS = len(ascii_uppercase)
_LEVEL = 0.05  # of the tests, together
_MAX_CURVES = 12
_MAX_POINTS = 20_000  # of all curves
_MAX_PICTURES = 24
_MAX_PICTURES_BYTES = 1_700_000  # a third more in the page, which is to stay below 3 MB
_RECORDS = {
    "Data": ("data",),
    "Code": ("git",),
    "Versions": ("lightkit", "python", "packages"),
    "Hardware": ("hardware",),
}
"""Keys of the manifest under each title."""


class PairedTest(NamedTuple):
    """A test of two models on the samples that both have predictions for.

    Args:
        split: Split of the samples.
        metric: ``accuracy``, or ``mae`` of regressors.
        rows: int64 ``(samples, 2)``: positions of each sample in the two predictions.
        difference: That of the second less that of the first, with its 95 % interval and the p-value.
        num_only: Samples that the first alone gets right, and the second alone; None of regressors.
    """

    split: Split
    metric: str
    rows: NDArray[np.int64]
    difference: PairedDifference
    num_only: tuple[int, int] | None


def match_samples(
    first: Predictions, second: Predictions, *, roots: tuple[str, str] = ("", "")
) -> NDArray[np.int64] | None:
    """Find the samples of which both have a prediction.

    Samples are the same if they have the same path and label; without paths, if they have the same position in a split
    of the same data, in which all labels are equal.

    Args:
        first: Predictions of a split.
        second: Those of another model.
        roots: Folder of the data of each, which their paths may begin with.

    Returns:
        int64 ``(samples, 2)``: positions in the two; None if it is unknown which samples are the same.
    """
    if first.is_classifier != second.is_classifier:
        return None
    both = (first, second)
    have_paths = all(None not in each.paths and len({*each.paths}) == len(each) for each in both)
    if not have_paths and (first.fingerprint is None or first.fingerprint != second.fingerprint):
        return None
    keys = [
        [name_sample(each, at, root) for at in range(len(each))] if have_paths else each.index.tolist()
        for each, root in zip(both, roots, strict=True)
    ]
    places = {key: at for at, key in enumerate(keys[1])}
    pairs = [(at, places[key]) for at, key in enumerate(keys[0]) if key in places]
    rows = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    targets = [name_labels(each, each.target)[rows[:, at]] for at, each in enumerate(both)]
    is_same = np.array([one == other for one, other in zip(*targets, strict=True)], dtype=bool)
    if not len(rows) or not (is_same.any() if have_paths else is_same.all()):
        return None
    same: NDArray[np.int64] = rows[is_same]
    return same


def name_sample(predictions: Predictions, at: int, root: str = "") -> str:
    """Give the path of a sample, relative to the folder of the data if it is inside."""
    path = predictions.paths[at]
    return f"sample {predictions.index[at]}" if path is None else path.removeprefix(f"{root.rstrip('/')}/")


def name_labels(predictions: Predictions, labels: NDArray[Any]) -> NDArray[Any]:
    """Give the names of a classifier's labels, for two models may number them differently; a regressor's values."""
    return np.array(predictions.class_names, dtype=object)[labels] if predictions.is_classifier else labels


def compare_predictions(first: RunFacts, second: RunFacts) -> PairedTest | None:
    """Test whether two models differ, on the test split if both have predictions of it, else on the validation split.

    Accuracies are compared by McNemar's exact test, mean absolute errors by the paired bootstrap. None if there are no
    predictions of the same samples.
    """
    for split in SPLITS:
        one, other = first.predictions.get(split), second.predictions.get(split)
        if one is None or other is None:
            continue
        rows = match_samples(one, other, roots=(_find_root(first), _find_root(second)))
        if rows is None:
            continue
        if not one.is_classifier:
            before, after = (np.abs(each.prediction - each.target)[rows[:, at]] for at, each in enumerate((one, other)))
            return PairedTest(split, "mae", rows, paired_bootstrap(before, after), None)
        right = [each.is_correct[rows[:, at]] for at, each in enumerate((one, other))]
        num_only = int((right[0] & ~right[1]).sum()), int((right[1] & ~right[0]).sum())
        found = paired_bootstrap(right[0].astype(float), right[1].astype(float))
        return PairedTest(split, "accuracy", rows, found._replace(p_value=mcnemar_exact(*num_only)), num_only)
    return None


def _find_root(facts: RunFacts) -> str:
    return str(facts.data.get("root") or "")


def describe_test(test: PairedTest, names: Sequence[str], *, level: float = _LEVEL) -> tuple[str, str]:
    """Write in words whether a test found a difference, and its numbers.

    Args:
        test: The test.
        names: Of the first model and of the second.
        level: p-value below which a difference counts.
    """
    value, low, high, p_value = test.difference
    if test.num_only is None:
        counts, unit, scale, method, is_better = "", "", 1.0, "the paired bootstrap", value < 0
    else:
        counts = f"{names[0]} alone gets {test.num_only[0]} right and {names[1]} alone {test.num_only[1]}; "
        unit, scale, method, is_better = " points", 100.0, "McNemar's exact test", value > 0
    detail = (
        f"On the {len(test.rows)} {test.split} samples that both have, {counts}the {test.metric} of {names[1]} is "
        f"{abs(value) * scale:.3g}{unit} {'lower' if value < 0 else 'higher'} "
        f"(95 % interval {low * scale:+.3g} to {high * scale:+.3g}); p = {p_value:.2g} by {method}."
    )
    if p_value >= level:
        return f"No difference beyond noise between {names[0]} and {names[1]}.", detail
    return f"{names[1]} is {'better' if is_better else 'worse'} than {names[0]}.", detail


def write_comparison(runs: Sequence[Run], path: Path | None = None) -> Path:
    """Write the page that compares runs, and return its path.

    Args:
        runs: 2 to `MAX_RUNS`; the others are tested against the first.
        path: Of the page; ``comparison.html`` in the first run's folder if None.
    """
    path = path or runs[0].folder / "comparison.html"
    write_text(path, render_comparison([read_facts(run) for run in runs]), durable=False)
    return path


def render_comparison(compared: Sequence[RunFacts]) -> str:
    """Render the page that compares runs, which are called A, B, ... in it."""
    names = ascii_uppercase[: len(compared)]
    tests = {name: compare_predictions(compared[0], each) for name, each in zip(names[1:], compared[1:], strict=True)}
    level = _LEVEL / len(tests)  # Bonferroni: of many equal models, one would look better
    known = {name: test for name, test in tests.items() if test is not None}
    manifests = [dict(_name_records(each.manifest)) for each in compared]
    settings = [{each.key: each for each in facts.settings} for facts in compared]
    keys = list_differences([{key: each.value for key, each in found.items()} for found in settings])
    keys.sort(key=lambda key: all(found[key].place is None for found in settings if key in found))
    differences = {"Config": [(key, [found.get(key) for found in settings]) for key in keys]} | {
        title: [
            (key, [Setting(key, each[key], None) if key in each else None for each in manifests])
            for key in list_differences(manifests)
            if key.partition(".")[0] in sections
        ]
        for title, sections in _RECORDS.items()
    }
    left_bytes = _MAX_PICTURES_BYTES // max(1, len(known))
    return render_page(
        "comparison.html",
        title=f"{', '.join(each.name for each in compared)}: comparison",
        names=names,
        runs=[(name, each, find_score(each)) for name, each in zip(names, compared, strict=True)],
        verdicts=[describe_test(test, (names[0], name), level=level) for name, test in known.items()],
        untested=[name for name, test in tests.items() if test is None],
        level=level,
        fingerprints=[each.data.get("fingerprint") for each in compared],
        differences={title: rows for title, rows in differences.items() if rows},
        scores=_list_scores(compared),
        curves=_draw_curves(compared, names),
        disagreements={
            name: _list_disagreements(compared[0], facts, known[name], left_bytes)
            for name, facts in zip(names[1:], compared[1:], strict=True)
            if name in known
        },
    )


def _name_records(manifest: Mapping[str, Any]) -> list[tuple[str, Any]]:
    sections = {key: manifest.get(key) for keys in _RECORDS.values() for key in keys}
    return [(".".join(map(str, path)), value) for path, value in flatten(sections) if value not in (None, {})]


_MEANS: Mapping[str, Callable[[NDArray[np.int64]], float]] = {
    name: lambda counts, name=name: float(getattr(class_scores(counts), name).mean())  # type: ignore[misc]
    for name in ("precision", "recall", "f1")
}
"""Means over classes, by the name under which `ImageClassifier` logs them, from the confusion counts."""


def _list_scores(compared: Sequence[RunFacts]) -> dict[str, list[Score | None]]:
    """List each run's metrics by their name, with intervals where the predictions give them; those of training last."""
    found = []
    for facts in compared:
        scores = list_scores(facts)
        for split, prefix in SPLITS.items():
            predictions = facts.predictions.get(split)
            if predictions is None or not predictions.is_classifier or not len(predictions):
                continue
            for name, mean in _MEANS.items():
                score = scores.get(f"{prefix}/{name}")
                if score is not None and abs(score.value - mean(confusion_counts(predictions))) < 1e-3:
                    low, high = _bootstrap_counts(predictions, mean)
                    scores[score.metric] = score._replace(low=low, high=high, num_samples=len(predictions))
        found.append(scores)
    prefixes = (*SPLITS.values(), "", "train")
    keys = dict.fromkeys(key for scores in found for key in scores)
    order = {key: prefixes.index(first) if (first := key.partition("/")[0]) in prefixes else 2 for key in keys}
    return {key: [scores.get(key) for scores in found] for key in sorted(keys, key=lambda key: order[key])}


def _bootstrap_counts(predictions: Predictions, statistic: Callable[[NDArray[np.int64]], float]) -> tuple[float, float]:
    num = len(predictions.class_names)
    cells = predictions.target * num + predictions.prediction
    return bootstrap_interval(
        cells, lambda drawn: statistic(np.bincount(drawn, minlength=num * num).reshape(num, num)), num_resamples=400
    )


def _draw_curves(compared: Sequence[RunFacts], names: Sequence[str]) -> list[PageFigure]:
    """Draw each metric that at least one run logged, one line a run."""
    metrics = dict.fromkeys(key for facts in compared for row in facts.rows for key in row if key not in NO_METRICS)
    shown = [key for key in metrics if not key.startswith("lr/")]
    order = [f"{prefix}/{name}" for name, prefix in product(("loss", "accuracy", "mae"), ("val", "train"))]
    shown = sorted(shown, key=lambda key: order.index(key) if key in order else len(order))[:_MAX_CURVES]
    epochs = sorted({int(row["epoch"]) for facts in compared for row in facts.rows})
    stride = 1 + len(epochs) * len(compared) * len(shown) // _MAX_POINTS
    drawn = []
    for number, key in enumerate(shown):
        by_epoch = [{int(row["epoch"]): row[key] for row in facts.rows if key in row} for facts in compared]
        lines = {name: values for name, values in zip(names, by_epoch, strict=True) if values}
        rows = [
            {"epoch": epoch, **{name: values[epoch] for name, values in lines.items() if epoch in values}}
            for epoch in epochs
            if epoch % stride == 0 or epoch == epochs[-1]
        ]
        label = f"{key}; at the end: {', '.join(f'{name} {each[max(each)]:.4g}' for name, each in lines.items())}"
        name = f"curve-{number}-{re.sub('[^a-z0-9]+', '-', key.lower()).strip('-')[:40]}"
        drawn.append(PageFigure(name, figures.draw_curves(rows, names), key, label))
    return drawn


def _list_disagreements(
    first: RunFacts, second: RunFacts, test: PairedTest, left_bytes: int
) -> tuple[int, list[dict[str, Any]]]:
    """Count the samples on which two models disagree, and list those with the largest difference.

    Those come first that have a thumbnail in one of the run folders.
    """
    both = [(facts, facts.predictions[test.split]) for facts in (first, second)]
    values = [name_labels(found, found.prediction)[test.rows[:, at]] for at, (_, found) in enumerate(both)]
    if test.num_only is None:
        weight = np.abs(values[0] - values[1])
        num, chosen = len(weight), np.argsort(-weight, kind="stable")
    else:
        certain = [found.label_probability[test.rows[:, at]] for at, (_, found) in enumerate(both)]
        weight = np.abs(certain[0] - certain[1])
        differing = np.flatnonzero(values[0] != values[1])
        num, chosen = len(differing), differing[np.argsort(-weight[differing], kind="stable")]
    samples: list[dict[str, Any]] = []
    for row in chosen[:1000].tolist():
        places = test.rows[row]
        is_full = sum(bool(each["image"]) for each in samples) >= _MAX_PICTURES
        images = (
            read_thumbnail(facts.run.folder, test.split, int(found.index[at]), max_bytes=left_bytes)
            for (facts, found), at in zip(both, places, strict=True)
        )
        image = b"" if is_full else next(filter(None, images), b"")
        left_bytes -= len(image)
        found, at = both[0][1], places[0]
        target = name_labels(found, found.target)[at]
        samples.append(
            {
                "path": shorten(name_sample(found, at, _find_root(first)), 120),
                "label": _describe_label(target),
                "predicted": [_describe_label(each[row]) for each in values],
                "is_wrong": [test.num_only is not None and bool(each[row] != target) for each in values],
                "is_number": test.num_only is None,
                "image": base64.b64encode(image).decode(),
            }
        )
    samples.sort(key=lambda each: not each["image"])
    return num, samples[:_MAX_PICTURES]


def _describe_label(value: Any) -> str:
    return shorten(value, 60) if isinstance(value, str) else f"{value:.4g}"
