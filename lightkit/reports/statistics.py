"""Intervals of a metric, tests of the difference of two models on the same samples.

Also calibration. No torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from lightkit.errors import format_count
from lightkit.reports.predictions import (
    UNKNOWN_SCORE,
    Predictions,
    gives_score,
    is_of_class,
    worst_errors,
)

Array = NDArray[Any]
Statistic = Callable[[Array], float]
MCNEMAR = "McNemar's exact test"
_NUM_RESAMPLES = 1000
_NUM_BINS = 15
_MAX_SAMPLES = 12  # of each kind
_MIN_SAMPLES_OF_MARGIN = 20
_POWER = 0.8  # share of equally good models that pass a suggested margin
# share of the samples on which two trainings of a network differ in being right, for a suggestion
_DISAGREEMENT = 0.1


def wilson_interval(
    num_successes: int, num_samples: int, *, confidence: float = 0.95
) -> tuple[float, float]:
    """Compute the score interval of a share, such as an accuracy.

    It is E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA
    22 (1927), without continuity correction: method 3 of R. G. Newcombe, Statistics in Medicine 17
    (1998), 857-872. Unlike the normal approximation it stays within 0 and 1, and has a width for 0
    and for all successes.

    Args:
        num_successes: Correct samples, 0 to ``num_samples``.
        num_samples: Samples, at least one.
        confidence: Coverage, between 0 and 1.

    Returns:
        The lower and the upper bound.
    """
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share = num_successes / num_samples
    scale = 1 + z**2 / num_samples
    center = (share + z**2 / (2 * num_samples)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / num_samples + z**2 / (4 * num_samples**2))
    low = max(0.0, center - half)
    high = min(1.0, center + half)
    return (0.0 if num_successes == 0 else low), (1.0 if num_successes == num_samples else high)


def bootstrap_interval(
    samples: Array, statistic: Statistic = np.mean, *, confidence: float
) -> tuple[float, float]:
    """Compute the percentile interval of a statistic over samples drawn with replacement.

    It is chapter 13.3 of B. Efron and R. J. Tibshirani, "An Introduction to the Bootstrap" (1993).
    It takes about 10 ms per million drawn values, of which there are a thousand times the samples.

    Args:
        samples: ``(samples, ...)``, at least one; whole rows are drawn, so that what belongs
            together stays together.
        statistic: Function of such an array.
        confidence: Coverage, between 0 and 1.

    Returns:
        The lower and the upper bound.
    """
    return _percentiles(_resample(samples, statistic), confidence)


def paired_bootstrap(
    first: Array, second: Array, statistic: Statistic, *, confidence: float
) -> dict[str, float]:
    """Test whether a statistic differs between two models, by drawing the same samples for both.

    The interval is that of `bootstrap_interval`; the p-value inverts it: twice the share of draws
    on the rarer side of 0, each counted with one more draw (A. C. Davison and D. V. Hinkley,
    "Bootstrap Methods and their Application" (1997), equation 4.11). It is therefore never below 2
    / 1001. Draws of which the statistic is not a number count for neither.

    Args:
        first: ``(samples, ...)`` values of the first model, such as its error on each sample.
        second: Same shape and order, of the second.
        statistic: Function of such an array.
        confidence: Coverage of the interval, between 0 and 1.

    Returns:
        The ``difference`` of the second to the first, the bounds ``low`` and ``high`` of its
        interval, and ``p_value``, the two-sided probability of such a difference if there is none.
    """

    def compare(pairs: Array) -> float:
        return float(statistic(pairs[:, 1]) - statistic(pairs[:, 0]))

    pairs = np.stack([first, second], axis=1)
    draws = _resample(pairs, compare)
    draws = draws[~np.isnan(draws)]  # of a draw without a sample of any label there is no mAP
    low, high = _percentiles(draws, confidence)
    rarer = min(int((draws <= 0).sum()), int((draws >= 0).sum()))
    p_value = min(1.0, 2 * (rarer + 1) / (len(draws) + 1))
    return {"difference": compare(pairs), "low": low, "high": high, "p_value": p_value}


def _resample(samples: Array, statistic: Statistic) -> Array:
    generator = np.random.default_rng(0)
    draws = (generator.integers(len(samples), size=len(samples)) for _ in range(_NUM_RESAMPLES))
    return np.array([statistic(samples[rows]) for rows in draws], dtype=float)


def _percentiles(values: Array, confidence: float) -> tuple[float, float]:
    # of a draw without a sample of any label there is no mAP
    low, high = np.nanquantile(values, [0.5 - confidence / 2, 0.5 + confidence / 2])
    return float(low), float(high)


def mcnemar_exact(num_only_first: int, num_only_second: int) -> float:
    """Test whether two classifiers differ in accuracy on the same samples.

    The test is that of Q. McNemar, Psychometrika 12 (1947), with exact probabilities: the samples
    that one classifier alone gets right are a fair coin if both are equally good. See the exact
    conditional test in M. W. Fagerland, S. Lydersen, P. Laake, BMC Medical Research Methodology 13
    (2013), 91.

    Args:
        num_only_first: Samples that the first alone gets right.
        num_only_second: Samples that the second alone gets right.

    Returns:
        The two-sided p-value; 1 where they disagree on none.
    """
    total = num_only_first + num_only_second
    fewer = min(num_only_first, num_only_second)
    k = np.arange(1, fewer + 1)
    # log of C(total, k) / 2^total for k = 0 to fewer; sums of logs, for the coefficients exceed a
    # float
    logs = np.concatenate([[0.0], np.cumsum(np.log((total - k + 1) / k))]) - total * math.log(2)
    return min(1.0, 2 * float(np.exp(logs).sum()))


def paired_score_interval(
    num_only_first: int, num_only_second: int, num_samples: int, *, confidence: float
) -> tuple[float, float]:
    """Compute the interval of the difference of two shares of the same samples, as two accuracies.

    It is the score interval of T. Tango, "Equivalence test and confidence interval for the
    difference in proportions for the paired-sample design", Statistics in Medicine 17 (1998),
    891-908: all differences that a score test does not reject. Unlike Wald's interval and the
    bootstrap it has a width where the two disagree on no sample, since few samples without a
    disagreement are no proof that there is none: ``z**2 / (num_samples + z**2)`` on each side.

    Args:
        num_only_first: Samples on which the first alone is right.
        num_only_second: Samples on which the second alone is right.
        num_samples: All samples, at least one.
        confidence: Coverage, between 0 and 1.

    Returns:
        The lower and the upper bound of the share of the first less that of the second.
    """
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    n = num_samples
    b = num_only_first
    c = num_only_second

    def score(difference: float) -> float:
        """Compute the score statistic.

        Its nuisance parameter is its most likely value under the difference.
        """
        linear = -b - c + (2 * n - b + c) * difference
        root = math.sqrt(max(0.0, linear**2 + 8 * n * c * difference * (1 - difference)))
        only_second = (root - linear) / (4 * n)
        variance = n * (2 * only_second + difference * (1 - difference))
        distance = b - c - n * difference
        if variance <= 0:
            return math.copysign(math.inf, distance) if distance else 0.0
        return distance / math.sqrt(variance)

    def solve(outside: float, target: float) -> float:
        """Find a score's difference between the estimate and the end of the scale, by bisection."""
        inside = (b - c) / n
        for _ in range(60):
            middle = (inside + outside) / 2
            if abs(score(middle)) < target:
                inside = middle
            else:
                outside = middle
        return inside

    return solve(-1.0, z), solve(1.0, z)


def smallest_drop(num_samples: int, *, confidence: float = 0.95) -> float | None:
    """Compute the smallest drop of an accuracy that so many samples can show.

    A drop shows best where the new model is wrong on samples that the old one predicts right, and
    right on no other. By the exact test of McNemar (see `mcnemar_exact`), one-sided, k such samples
    have the p-value ``2**-k``. So it takes ``k = ceil(log2(1 / (1 - confidence)))`` of them, 5 for
    95 %, and the smallest drop is ``k / num_samples``: 0.17 of 30 images. Where the two models
    disagree on other samples too, it takes more.

    Args:
        num_samples: Samples of the split.
        confidence: Of the one-sided test, between 0 and 1.

    Returns:
        The drop; None where no drop shows with so few samples.
    """
    needed = math.ceil(math.log2(1 / (1 - confidence)) - 1e-9)
    return needed / num_samples if 0 < needed <= num_samples else None


def smallest_margin(num_samples: int, *, confidence: float = 0.95) -> float:
    """Compute the margin of non-inferiority that so many samples can show of an accuracy at all.

    It is minus the lower end of `paired_score_interval` of two models without a disagreement,
    one-sided: ``z**2 / (num_samples + z**2)``, 0.083 of 30 images.
    """
    z = NormalDist().inv_cdf(confidence)
    return z**2 / (num_samples + z**2)


def suggest_margin(num_samples: int, *, confidence: float = 0.95) -> float | None:
    """Suggest the margin of non-inferiority for an accuracy, with two digits.

    It is the larger of two numbers. The first is `smallest_drop`: a smaller margin asks for what
    the samples cannot show. The second lets an equally good model pass in 80 of 100 cases:
    ``(z(confidence) + z(0.8)) * sqrt(0.1 / n)``, the sample size of J. Nam, "Establishing
    equivalence of two treatments and sample size requirements in matched-pairs design", Biometrics
    53 (1997), 1422-1430, solved for the margin, for two trainings that disagree on a tenth of the
    samples.

    Args:
        num_samples: Samples of the split.
        confidence: Of the one-sided test.

    Returns:
        The margin; None below 20 samples, where it would be a quarter and more.
    """
    drop = smallest_drop(num_samples, confidence=confidence)
    if drop is None or num_samples < _MIN_SAMPLES_OF_MARGIN:
        return None
    quantiles = NormalDist().inv_cdf(confidence) + NormalDist().inv_cdf(_POWER)
    return _round_up(max(drop, quantiles * math.sqrt(_DISAGREEMENT / num_samples)))


def suggest_mean_margin(
    num_samples: int, *, deviation: float, confidence: float = 0.95
) -> float | None:
    """Suggest the margin of non-inferiority for a mean over the samples, as an IoU, in two digits.

    It lets an equally good model pass in 80 of 100 cases:
    ``(z(confidence) + z(0.8)) * deviation / sqrt(n)``, as for `suggest_margin`.

    Args:
        num_samples: Samples of the split.
        deviation: Standard deviation of the difference of two equally good models on a sample.
        confidence: Of the one-sided test.

    Returns:
        The margin; None below 20 samples, of which a bootstrap shows nothing.
    """
    if num_samples < _MIN_SAMPLES_OF_MARGIN:
        return None
    quantiles = NormalDist().inv_cdf(confidence) + NormalDist().inv_cdf(_POWER)
    return _round_up(quantiles * deviation / math.sqrt(num_samples))


def _round_up(value: float) -> float:
    """Round a positive number up to two digits."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return round(math.ceil(value / step - 1e-9) * step, 6)


class Calibration(NamedTuple):
    """Points of a reliability diagram; each array has one value per bin, NaN where a bin is empty.

    Args:
        edges: ``(bins + 1,)`` bounds of the bins, 0 to 1; a bin includes its upper bound.
        counts: ``(bins,)`` samples.
        confidence: ``(bins,)`` mean confidence.
        accuracy: ``(bins,)`` share of correct samples.
        error: Expected calibration error: the mean gap between confidence and accuracy of the bins,
            weighted by their samples.
    """

    edges: Array
    counts: Array
    confidence: Array
    accuracy: Array
    error: float


def compute_calibration(predictions: Predictions | None) -> Calibration | None:
    """Group the samples of a classifier by confidence into bins of equal width.

    Bins and error are those of section 2 and equation 3 of C. Guo et al., "On Calibration of Modern
    Neural Networks", ICML 2017 (arXiv:1706.04599): bin m of M = 15 holds the confidences above
    (m - 1) / M and up to m / M; the first bin holds 0, too.

    Returns:
        The points; None of a regressor, without samples, or where a probability is not finite.
    """
    pairs = None if predictions is None else predictions.task.form.list_calibration(predictions)
    if pairs is None or not len(pairs[0]) or not np.isfinite(pairs[0]).all():
        return None
    confidence = np.clip(pairs[0].astype(float), 0, 1)
    edges = np.linspace(0, 1, _NUM_BINS + 1)
    index = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, _NUM_BINS - 1)
    counts = np.bincount(index, minlength=_NUM_BINS)
    share = np.where(counts > 0, counts, math.nan)
    mean, accuracy = (
        np.bincount(index, weights=each, minlength=_NUM_BINS) / share
        for each in (confidence, pairs[1])
    )
    error = float(np.nansum(np.abs(accuracy - mean) * counts) / counts.sum())
    return Calibration(edges, counts, mean, accuracy, error)


# -- metrics of predictions ------------------------------------------------------------------------


def _recompute(
    metric: str, score: float | None, predictions: Predictions | None
) -> tuple[Array, Statistic] | None:
    """Return the values of each sample and the metric of them.

    None where they do not give the logged score.
    """
    if predictions is None or not len(predictions) or score is None or not math.isfinite(score):
        return None
    known = predictions.task.form.list_statistics(predictions, score)
    found = known.get(metric.rpartition("/")[2]) or known.get(
        metric.replace("_", "/").rpartition("/")[2]
    )
    return None if found is None or not gives_score(found[1](found[0]), score) else found


def _recompute_both(
    metric: str,
    scores: Sequence[float | None],
    candidate: Predictions | None,
    baseline: Predictions | None,
) -> tuple[Array, Array, Statistic] | None:
    """Return the values of each sample of both models, and the metric of them.

    None where one gives no such score.
    """
    mine = _recompute(metric, scores[0], candidate)
    theirs = _recompute(metric, scores[1], baseline)
    return None if mine is None or theirs is None else (mine[0], theirs[0], mine[1])


def _count_exclusive(candidate: Predictions, baseline: Predictions) -> tuple[int, int] | None:
    """Count the samples that one of two models alone predicts right.

    None where nothing is right or wrong.
    """
    mine = candidate.is_correct
    theirs = baseline.is_correct
    if mine is None or theirs is None:
        return None
    return int((mine & ~theirs).sum()), int((theirs & ~mine).sum())


def compute_interval(
    metric: str, score: float | None, predictions: Predictions | None, *, confidence: float
) -> list[float] | None:
    """Compute the interval of a score: Wilson's for accuracy, else by the bootstrap.

    Args:
        metric: Name of the metric, such as ``test/accuracy``.
        score: Its value as it was logged.
        predictions: For the samples of the score.
        confidence: Coverage.

    Returns:
        Lower and upper bound; None where the predictions have no such score.
    """
    found = _recompute(metric, score, predictions)
    if found is None:
        return None
    values, statistic = found
    if metric.endswith(("accuracy", "error")) and values.ndim == 1:
        return [*wilson_interval(round(values.sum()), len(values), confidence=confidence)]
    return [*bootstrap_interval(values, statistic, confidence=confidence)]


def score_slice(
    metric: str, name: str, score: float, predictions: Predictions | None
) -> float | None:
    """Compute a metric of the samples of a slice by a column.

    By the statistic that gives the score of all samples: they tell whether a loss is a mean of
    absolute or of squared errors.

    Args:
        metric: Name of the metric, such as ``test/mae``.
        name: The slice, such as ``sex=f``.
        score: Value of the metric over all samples, as it was logged.
        predictions: For all samples, with their slices.

    Returns:
        None where the slice has no samples, and `UNKNOWN_SCORE` where the predictions do not give
        the score.
    """
    found = _recompute(metric, score, predictions)
    if predictions is None or found is None:
        return cast("float | None", UNKNOWN_SCORE)
    values, statistic = found
    own = values[predictions.slices[name]]
    return float(statistic(own)) if len(own) else None


def select_class(predictions: Predictions | None, name: str) -> Predictions | None:
    """Return the predictions for the samples of a class, by its name or number, or of a slice.

    None where unknown.
    """
    if predictions is not None and name in predictions.slices:
        return predictions.take(np.flatnonzero(predictions.slices[name]))
    if predictions is None or predictions.task.form.count_classes(predictions) is None:
        return None
    names = predictions.class_names
    number = names.index(name) if name in names else int(name) if name.isdecimal() else -1
    if number not in range(len(names)):
        return predictions.take(np.empty(0, np.int64))
    is_label = predictions.task.form.find_samples(predictions, number)
    return None if is_label is None else predictions.take(np.flatnonzero(is_label))


def compute_class_interval(
    metric: str,
    name: str,
    score: float | None,
    predictions: Predictions | None,
    *,
    confidence: float,
) -> list[float] | None:
    """Compute the interval of the score of a class, or of a slice by a column: `compute_interval`.

    A metric that a class has of the samples of all classes, such as the IoU of masks, is drawn from
    all of them.

    Args:
        metric: Name of the metric, such as ``test/iou``.
        name: The class by its name or number, or the slice.
        score: Its value.
        predictions: For all samples.
        confidence: Coverage.

    Returns:
        Lower and upper bound; None where the predictions have no such score.
    """
    found = select_class(predictions, name)
    if (
        predictions is None
        or name in predictions.slices
        or not is_of_class(predictions.task.form, metric)
    ):
        return compute_interval(metric, score, found, confidence=confidence)
    number = predictions.class_names.index(name) if name in predictions.class_names else int(name)
    known = predictions.task.form.list_class_statistic(predictions, number)
    if known is None or score is None or not math.isfinite(score):
        return None
    values, statistic = known
    if not gives_score(statistic(values), score):
        return None
    return [*bootstrap_interval(values, statistic, confidence=confidence)]


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
        For ``gate.json``: ``confidence``, ``test``, ``p_value``, ``counts`` whether the difference
        does, ``difference`` of the candidate to the baseline with ``low`` and ``high``,
        ``num_samples``, and of a classifier the samples that one alone predicted right. Where
        nothing can be tested, ``test`` is None, ``reason`` says why, and the difference counts.
    """
    result: dict[str, Any] = {
        "confidence": confidence,
        "test": None,
        "p_value": None,
        "counts": True,
    }
    found = _recompute_both(metric, scores, candidate, baseline)
    if candidate is None or baseline is None or found is None:
        return result | {
            "reason": f"the predictions of each sample are not there, or do not give {metric}"
        }
    if candidate.labels != baseline.labels:
        return result | {"reason": "the predictions are not for the same samples"}
    values, others, statistic = found
    result |= paired_bootstrap(others, values, statistic, confidence=confidence)
    result |= {"test": "paired bootstrap", "num_samples": len(candidate)}
    exclusive = _count_exclusive(candidate, baseline)
    if exclusive is not None:
        result |= {"only_challenger": exclusive[0], "only_baseline": exclusive[1]}
        if metric.endswith(("accuracy", "error")):
            result |= {"test": MCNEMAR, "p_value": mcnemar_exact(*exclusive)}
    return result | {"counts": result["p_value"] <= 1 - confidence}


def reproduces_score(metric: str, score: float | None, predictions: Predictions | None) -> bool:
    """Return whether the predictions of each sample are there and give the logged score."""
    return _recompute(metric, score, predictions) is not None


def bound_difference(
    metric: str,
    scores: Sequence[float | None],
    candidate: Predictions | None,
    baseline: Predictions | None,
    *,
    mode: str,
    confidence: float,
) -> dict[str, Any] | None:
    """Compute how much worse than the baseline a candidate may be.

    By the paired interval of their difference.

    Each end is one-sided: the true difference is above the lower one with this confidence. They are
    those of `paired_score_interval` of accuracy, and of a paired bootstrap of other metrics;
    infinite below 20 samples, of which a bootstrap shows nothing.

    Args:
        metric: Name of the metric.
        scores: Its values for the candidate and the baseline, as they were logged.
        candidate: Predictions of the candidate.
        baseline: Those of the baseline, for the same samples in the same order.
        mode: Whether large (``max``) or small (``min``) values are good.
        confidence: One-sided, above 0.5.

    Returns:
        The ``difference``, positive where the candidate is better, the ends ``low`` and ``high`` of
        its interval, the ``method`` and ``num_samples``; None where the predictions have no such
        scores, or are not for the same samples.
    """
    recomputed = _recompute_both(metric, scores, candidate, baseline)
    if (
        candidate is None
        or baseline is None
        or recomputed is None
        or candidate.labels != baseline.labels
    ):
        return None

    two_sided = 2 * confidence - 1
    exclusive = _count_exclusive(candidate, baseline)
    if exclusive is not None and metric.endswith(("accuracy", "error")):
        only_mine, only_theirs = exclusive
        if metric.endswith("accuracy") != (mode == "max"):  # where it is good to be wrong
            only_mine, only_theirs = only_theirs, only_mine
        low, high = paired_score_interval(
            only_mine, only_theirs, len(candidate), confidence=two_sided
        )
        difference = (only_mine - only_theirs) / len(candidate)
        method = "paired score interval"
    else:
        values, others, statistic = recomputed
        found = paired_bootstrap(others, values, statistic, confidence=two_sided)
        difference = found["difference"]
        low = found["low"]
        high = found["high"]
        if mode == "min":
            difference, low, high = 0.0 - difference, 0.0 - high, 0.0 - low
        # drawn again and again, a few samples seem to differ too little
        if len(candidate) < _MIN_SAMPLES_OF_MARGIN:
            low = -math.inf
            high = math.inf
        method = "paired bootstrap"
    return {
        "difference": difference,
        "low": low,
        "high": high,
        "method": method,
        "num_samples": len(candidate),
    }


def format_difference(
    difference: float, low: float, high: float | None, *, mode: str | None
) -> str:
    """Write how much better or worse a value is than another, and the interval of their difference.

    Screen, gate.html, messages, JUnit and comparisons all have these words, so that the sign of a
    difference never says which of two losses is better.

    Args:
        difference: The value less the other.
        low: Lower end of the interval; minus infinity where too few samples have none.
        high: Upper end; None where it is unknown, so that no interval is written.
        mode: Whether large (``max``) or small (``min``) values are good; None where unknown.

    Returns:
        Such as ``worse by 0.475 (0.336 to 0.614)``, and where the interval holds 0
        ``worse by 0.014 (0.042 worse to 0.013 better)``.
    """
    words = ("larger", "smaller") if mode is None else ("better", "worse")
    if mode == "min":
        words = ("worse", "better")

    def name(value: float) -> str:
        return words[0] if value > 0 else words[1]

    text = f"{name(difference)} by {abs(difference):.3g}" if difference else "equal"
    if high is None:
        return text
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"{text} (no interval: too few samples)"

    # sizes where the whole interval lies on the side of the difference, else the side of each end,
    # the worse one first
    if (difference >= 0 and low >= 0) or (difference <= 0 and high <= 0):
        least, most = sorted((abs(low), abs(high)))
        return f"{text} ({least:.3g} to {most:.3g})"
    first, last = (high, low) if mode == "min" else (low, high)
    return f"{text} ({abs(first):.3g} {name(first)} to {abs(last):.3g} {name(last)})"


def describe_significance(
    found: Mapping[str, Any],
    metric: str,
    baseline: str | None,
    *,
    mode: str | None,
    model: str = "this model",
) -> str:
    """Write whether a model differs from the baseline beyond the noise of the samples.

    Empty without a baseline.

    Args:
        found: As from `compare_on_same_samples`.
        metric: Name of the metric.
        baseline: Name of the baseline.
        mode: Whether large (``max``) or small (``min``) values are good; None where unknown.
        model: Name of the model.
    """
    if baseline is None or not found:
        return ""
    if found.get("test") is None:
        return (
            f"Whether the difference to {baseline} is noise is unknown:"
            f" {found.get('reason', 'nothing was tested')}."
        )
    words = format_difference(found["difference"], found["low"], found["high"], mode=mode)
    text = f"{metric} against {baseline}: {words}."
    # of another test these counts are no evidence
    if "only_challenger" in found and found["test"] == MCNEMAR:
        text += (
            f" Of {format_count(found['num_samples'], 'sample')}, {model} alone is right on "
            f"{found['only_challenger']} and {baseline} alone on {found['only_baseline']}."
        )
    noise = (
        "beyond the noise of the samples"
        if found["counts"]
        else "no difference beyond the noise of the samples"
    )
    return f"{text} That is {noise} ({found['test']}, p = {found['p_value']:.2g})."


def mark_differences(tests: Sequence[dict[str, Any]], *, level: float) -> None:
    """Decide which of several differences of two models count, by Holm's step-down procedure.

    S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of
    Statistics 6 (1979).

    Args:
        tests: As from `compare_on_same_samples`; each gets its ``counts``.
        level: Probability that equal models differ in any of them.
    """
    is_significant = True
    for at, found in enumerate(sorted(tests, key=lambda each: each["p_value"])):
        is_significant = is_significant and found["p_value"] <= level / (len(tests) - at)
        found["counts"] = is_significant


def _compare_each(candidate: Predictions, baseline: Predictions) -> tuple[Array, Array, Array]:
    """Return how much better a model is than another on each sample.

    With where it has lost, and where it has won.

    Of the samples that are right or wrong it has lost those that the other alone has right, of
    others, such as numbers and masks, those on which its error is larger.
    """
    mine = candidate.is_correct
    theirs = baseline.is_correct
    if mine is None or theirs is None:
        errors = [each.task.form.measure_errors(each) for each in (candidate, baseline)]
        errors = [np.where(each == -np.inf, 0.0, each) for each in errors]  # of what is right
        with np.errstate(invalid="ignore"):  # neither is a number
            gains = errors[1] - errors[0]
        return gains, gains < 0, gains > 0
    gains = candidate.label_probability.astype(float) - baseline.label_probability
    return gains, theirs & ~mine, mine & ~theirs


def _list_changes(candidate: Predictions, baseline: Predictions) -> list[tuple[str, int]]:
    """List the samples that a model has lost against another, and those that it has won.

    The largest changes first.
    """
    gains, is_lost, is_won = _compare_each(candidate, baseline)
    chosen: list[tuple[str, int]] = []
    for kind, sign, matches in (("lost", 1, is_lost), ("won", -1, is_won)):
        order = np.argsort(sign * gains, kind="stable")
        chosen += [(kind, at) for at in order[matches[order]][:_MAX_SAMPLES].tolist()]
    return chosen


def choose_deciding_samples(
    candidate: Predictions | None, baseline: Predictions | None, slices: Sequence[str]
) -> list[dict[str, Any]]:
    """Choose the samples to look at before a decision, for ``gate.json``.

    With a baseline they are those that it alone predicts right (``lost``) and those that the
    candidate alone does (``won``), of a regressor the largest changes of the error; without one the
    worst errors (``wrong``). Then come those of each class in ``slices``.

    Returns:
        For each: its ``kind``, ``index`` and ``path``, and the ``label``, ``challenger`` and
        ``baseline`` in words.
    """
    if candidate is None or not len(candidate):
        return []
    if baseline is not None and candidate.labels != baseline.labels:  # not of the same samples
        baseline = None
    return [
        {
            "kind": kind,
            "index": int(candidate.index[at]),
            "path": candidate.paths[at],
            "label": candidate.describe(candidate.target[at]),
            "challenger": candidate.describe(candidate.prediction[at]),
            "baseline": None if baseline is None else baseline.describe(baseline.prediction[at]),
        }
        for kind, at in _list_deciding(candidate, baseline, slices)
    ]


def _list_deciding(
    candidate: Predictions, baseline: Predictions | None, slices: Sequence[str]
) -> list[tuple[str, int]]:
    """List the kinds and positions of the samples to look at: of all classes, then of slices."""
    chosen: list[tuple[str, int]]
    if baseline is None:
        chosen = [("wrong", at) for at in worst_errors(candidate, _MAX_SAMPLES).tolist()]
    else:
        chosen = _list_changes(candidate, baseline)
    for name in slices:
        of_class = select_class(candidate, name)
        known = {at for _, at in chosen}
        if of_class is not None:
            worst = of_class.index[worst_errors(of_class, _MAX_SAMPLES // 2)]
            positions = np.searchsorted(candidate.index, worst).tolist()
            chosen += [("wrong", at) for at in positions if at not in known]
    return chosen
