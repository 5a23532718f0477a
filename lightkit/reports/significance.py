"""Whether two models differ beyond the noise of the samples that both predict, and intervals of a metric. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightkit.reports.predictions import Predictions, worst_errors
from lightkit.reports.statistics import bootstrap_interval, mcnemar_exact, paired_bootstrap, wilson_interval

_Array = NDArray[Any]
_MAX_SAMPLES = 12  # of each kind
_TOLERANCE = 1e-3  # relative: scores are sums of float32, probabilities are rounded


def _macro(precision_weight: float, recall_weight: float) -> Callable[[_Array], float]:
    """Mean over the classes that occur of hits by a weighted mean of predictions and labels, as torchmetrics' macro."""

    def compute(pairs: _Array) -> float:
        targets, predictions = pairs[:, 0], pairs[:, 1]
        num = int(pairs.max(initial=0)) + 1
        hits = np.bincount(targets[targets == predictions], minlength=num)
        support, predicted = (np.bincount(each, minlength=num) for each in (targets, predictions))
        scores = hits / np.maximum(precision_weight * predicted + recall_weight * support, 1e-9)
        return float(scores[support + predicted > 0].mean())

    return compute


def _is_correct(predictions: Predictions) -> _Array:
    return np.asarray(predictions.is_correct, dtype=float)


def _pairs(predictions: Predictions) -> _Array:
    return np.stack([predictions.target, predictions.prediction], axis=1)


def _losses(predictions: Predictions) -> _Array:
    return np.asarray(-np.log(np.maximum(predictions.label_probability.astype(float), 1e-38)))


def _errors(predictions: Predictions) -> _Array:
    return np.asarray(np.abs(predictions.prediction.astype(float) - predictions.target))


_CLASSIFICATION: Mapping[str, tuple[Callable[[Predictions], _Array], Callable[[_Array], float]]] = {
    "accuracy": (_is_correct, np.mean),
    "error": (lambda predictions: 1 - _is_correct(predictions), np.mean),
    "loss": (_losses, np.mean),
    "precision": (_pairs, _macro(1, 0)),
    "recall": (_pairs, _macro(0, 1)),
    "f1": (_pairs, _macro(0.5, 0.5)),
}
_REGRESSION: Mapping[str, tuple[Callable[[Predictions], _Array], Callable[[_Array], float]]] = {
    "mae": (_errors, np.mean),
    "mse": (lambda predictions: _errors(predictions) ** 2, np.mean),
}
"""Last part of a metric's name -> values of each sample, and the metric of some of these."""


def _recompute(
    metric: str, score: float | None, predictions: Predictions | None
) -> tuple[_Array, Callable[[_Array], float]] | None:
    """Return the values of each sample and the metric of them; None where they do not give the logged score."""
    if predictions is None or not len(predictions) or score is None or not math.isfinite(score):
        return None
    known = _CLASSIFICATION if predictions.is_classifier else _REGRESSION
    found = known.get(metric.replace("_", "/").rpartition("/")[2])
    if found is None:
        return None
    values, statistic = found[0](predictions), found[1]
    is_same = math.isclose(statistic(values), score, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE / 10)
    return (values, statistic) if is_same else None


def compute_interval(
    metric: str, score: float | None, predictions: Predictions | None, *, confidence: float = 0.95
) -> list[float] | None:
    """Compute the interval of a score: Wilson's for accuracy, else by the bootstrap.

    Args:
        metric: Name of the metric, such as ``test/accuracy``.
        score: Its value as it was logged.
        predictions: For the samples of the score.
        confidence: Coverage.

    Returns:
        Lower and upper bound; None where the predictions do not give the score.
    """
    found = _recompute(metric, score, predictions)
    if found is None:
        return None
    values, statistic = found
    if metric.endswith(("accuracy", "error")):
        return [*wilson_interval(round(values.sum()), len(values), confidence=confidence)]
    return [*bootstrap_interval(values, statistic, confidence=confidence)]


def select_class(predictions: Predictions | None, name: str) -> Predictions | None:
    """Return the predictions for the samples of a class, by its name or number; None where there are none."""
    if predictions is None or not predictions.is_classifier:
        return None
    names = predictions.class_names
    number = names.index(name) if name in names else int(name) if name.isdecimal() else -1
    return predictions.take(np.flatnonzero(predictions.target == number))


def compare_on_same_samples(
    metric: str,
    scores: Sequence[float | None],
    candidate: Predictions | None,
    baseline: Predictions | None,
    *,
    confidence: float,
) -> dict[str, Any]:
    """Test whether a metric differs between two models on the same samples.

    Accuracy is tested by McNemar's exact test, other metrics by a paired bootstrap.

    Args:
        metric: Name of the metric.
        scores: Its values for the candidate and the baseline, as they were logged.
        candidate: Predictions of the candidate.
        baseline: Those of the baseline, for the same samples in the same order.
        confidence: The difference counts if the p-value is at most 1 less this.

    Returns:
        For ``gate.json``: ``confidence``, ``test``, ``p_value``, ``counts`` whether the difference does,
        ``difference`` of the candidate to the baseline with ``low`` and ``high``, ``num_samples``, and of a classifier
        the samples that one alone predicted right. Where nothing can be tested, ``test`` is None, ``reason`` says why,
        and the difference counts.
    """
    result: dict[str, Any] = {"confidence": confidence, "test": None, "p_value": None, "counts": True}
    mine, theirs = (_recompute(metric, score, each) for score, each in zip(scores, (candidate, baseline), strict=True))
    if candidate is None or baseline is None or mine is None or theirs is None:
        return result | {"reason": f"the predictions of each sample are not there, or do not give {metric}"}
    if not are_of_same_samples(candidate, baseline):
        return result | {"reason": "the predictions are not for the same samples"}
    (values, statistic), (others, _) = mine, theirs
    found = paired_bootstrap(others, values, statistic, confidence=confidence)
    test, p_value = "paired bootstrap", found.p_value
    if candidate.is_classifier:
        only_mine = int((candidate.is_correct & ~baseline.is_correct).sum())
        only_theirs = int((baseline.is_correct & ~candidate.is_correct).sum())
        result |= {"only_challenger": only_mine, "only_baseline": only_theirs}
        if metric.endswith(("accuracy", "error")):
            test, p_value = "McNemar's exact test", mcnemar_exact(only_mine, only_theirs)
    return result | {
        "test": test,
        "p_value": p_value,
        "counts": p_value <= 1 - confidence,
        "difference": found.difference,
        "low": found.low,
        "high": found.high,
        "num_samples": len(candidate),
    }


def describe_significance(
    found: Mapping[str, Any], metric: str, baseline: str | None, *, model: str = "this model"
) -> str:
    """Write whether a model differs from the baseline beyond the noise of the samples; empty without a baseline.

    Args:
        found: As from `compare_on_same_samples`.
        metric: Name of the metric.
        baseline: Name of the baseline.
        model: Name of the model.
    """
    if baseline is None or not found:
        return ""
    if found.get("test") is None:
        return f"Whether the difference to {baseline} is noise is unknown: {found.get('reason', 'nothing was tested')}."
    text = (
        f"{metric} differs by {found['difference']:+.4g} ({found['low']:+.3g} to {found['high']:+.3g}) from {baseline}."
    )
    if "only_challenger" in found:
        text += (
            f" Of {found['num_samples']} samples, {model} alone is right on {found['only_challenger']} and "
            f"{baseline} alone on {found['only_baseline']}."
        )
    noise = "beyond the noise of the samples" if found["counts"] else "no difference beyond the noise of the samples"
    return f"{text} That is {noise} ({found['test']}, p = {found['p_value']:.2g})."


def are_of_same_samples(candidate: Predictions, baseline: Predictions) -> bool:
    """Return whether the labels of two predictions are the same, by name, in the same order."""
    return candidate.labels == baseline.labels


def choose_deciding_samples(
    candidate: Predictions | None, baseline: Predictions | None, slices: Sequence[str]
) -> list[dict[str, Any]]:
    """Choose the samples to look at before a decision, for ``gate.json``.

    With a baseline they are those that it alone predicts right (``lost``) and those that the candidate alone does
    (``won``), of a regressor the largest changes of the error; without one the worst errors (``wrong``). Then come
    those of each class in ``slices``.

    Returns:
        For each: its ``kind``, ``index`` and ``path``, and the ``label``, ``challenger`` and ``baseline`` in words.
    """
    if candidate is None or not len(candidate):
        return []
    chosen: list[tuple[str, int]] = []
    if baseline is not None and not are_of_same_samples(candidate, baseline):
        baseline = None
    if baseline is None:
        chosen += [("wrong", int(at)) for at in worst_errors(candidate, _MAX_SAMPLES)]
    else:
        gains, is_relevant = _errors(baseline) - _errors(candidate), np.ones(len(candidate), dtype=bool)
        if candidate.is_classifier:  # of the samples on which one alone is right, those of the largest change
            gains = candidate.label_probability.astype(float) - baseline.label_probability
            is_relevant = candidate.is_correct != baseline.is_correct
        for kind, sign, is_won in (("lost", 1, False), ("won", -1, True)):
            matches = is_relevant & (candidate.is_correct == is_won if candidate.is_classifier else -sign * gains > 0)
            order = np.argsort(sign * gains, kind="stable")
            chosen += [(kind, int(at)) for at in order[matches[order]][:_MAX_SAMPLES]]
    for name in slices:
        of_class = select_class(candidate, name)
        known = {at for _, at in chosen}
        if of_class is not None:
            worst = of_class.index[worst_errors(of_class, _MAX_SAMPLES // 2)]
            positions = np.searchsorted(candidate.index, worst).tolist()
            chosen += [("wrong", at) for at in positions if at not in known]
    return [
        {
            "kind": kind,
            "index": int(candidate.index[at]),
            "path": candidate.paths[at],
            "label": candidate.describe(candidate.target[at]),
            "challenger": candidate.describe(candidate.prediction[at]),
            "baseline": None if baseline is None else baseline.describe(baseline.prediction[at]),
        }
        for kind, at in chosen
    ]
