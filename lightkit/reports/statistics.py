"""Intervals and tests for the metrics of a test set, on numpy alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]
Statistic = Callable[[Floats], float]


def wilson_interval(num_successes: int, num_samples: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Compute the score interval of a share, such as an accuracy.

    It is E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927), without
    continuity correction: method 3 of R. G. Newcombe, Statistics in Medicine 17 (1998), 857-872. Unlike the normal
    approximation it stays within 0 and 1, and has a width for 0 and for all successes.

    Args:
        num_successes: Correct samples, 0 to ``num_samples``.
        num_samples: Samples; without any, the interval is 0 to 1.
        confidence: Coverage, between 0 and 1.

    Returns:
        The lower and the upper bound.
    """
    if num_samples == 0:
        return 0.0, 1.0
    if not 0 <= num_successes <= num_samples:
        raise ValueError(f"expected 0 to {num_samples} successes, got {num_successes}")
    z, share = NormalDist().inv_cdf(0.5 + confidence / 2), num_successes / num_samples
    scale = 1 + z**2 / num_samples
    center = (share + z**2 / (2 * num_samples)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / num_samples + z**2 / (4 * num_samples**2))
    low, high = max(0.0, center - half), min(1.0, center + half)
    return (0.0 if num_successes == 0 else low), (1.0 if num_successes == num_samples else high)


def bootstrap_interval(
    samples: npt.ArrayLike,
    statistic: Statistic = np.mean,
    *,
    confidence: float = 0.95,
    num_resamples: int = 1000,
    seed: int = 0,
) -> tuple[float, float]:
    """Compute the percentile interval of a statistic over samples drawn with replacement.

    It is chapter 13.3 of B. Efron and R. J. Tibshirani, "An Introduction to the Bootstrap" (1993). It takes about
    10 ms per million drawn values, of which there are ``num_resamples`` times the samples.

    Args:
        samples: ``(samples, ...)``; whole rows are drawn, so that what belongs together stays together.
        statistic: Function of such an array; the mean by default.
        confidence: Coverage, between 0 and 1.
        num_resamples: Draws.
        seed: Seed of the draws; the same seed gives the same interval.

    Returns:
        The lower and the upper bound; NaN without samples.
    """
    values = _draw(np.asarray(samples), statistic, num_resamples, seed)
    return _percentiles(values, confidence)


class PairedDifference(NamedTuple):
    """Difference of a statistic between two models on the same samples.

    Args:
        difference: That of the second less that of the first.
        low: Lower bound of its interval.
        high: Upper bound.
        p_value: Two-sided probability of such a difference if there is none.
    """

    difference: float
    low: float
    high: float
    p_value: float


def paired_bootstrap(
    first: npt.ArrayLike,
    second: npt.ArrayLike,
    statistic: Statistic = np.mean,
    *,
    confidence: float = 0.95,
    num_resamples: int = 1000,
    seed: int = 0,
) -> PairedDifference:
    """Test whether a statistic differs between two models, by drawing the same samples for both.

    The interval is that of `bootstrap_interval`; the p-value inverts it: twice the share of draws on the rarer side of
    0, each counted with one more draw (A. C. Davison and D. V. Hinkley, "Bootstrap Methods and their Application"
    (1997), equation 4.11). It is therefore never below ``2 / (num_resamples + 1)``.

    Args:
        first: ``(samples, ...)`` values of the first model, such as its error on each sample.
        second: Same shape and order, of the second.
        statistic: Function of such an array; the mean by default.
        confidence: Coverage of the interval, between 0 and 1.
        num_resamples: Draws.
        seed: Seed of the draws.
    """
    one, other = np.asarray(first), np.asarray(second)
    if one.shape != other.shape:
        raise ValueError(f"expected values of the same samples, got the shapes {one.shape} and {other.shape}")

    def compare(pairs: Floats) -> float:
        return float(statistic(pairs[:, 1]) - statistic(pairs[:, 0]))

    pairs = np.stack([one, other], axis=1)
    values = _draw(pairs, compare, num_resamples, seed)
    if not len(pairs):
        return PairedDifference(math.nan, math.nan, math.nan, 1.0)
    rarer = min(int((values <= 0).sum()), int((values >= 0).sum()))
    return PairedDifference(
        compare(pairs), *_percentiles(values, confidence), min(1.0, 2 * (rarer + 1) / (num_resamples + 1))
    )


def _draw(samples: Floats, statistic: Statistic, num_resamples: int, seed: int) -> Floats:
    if not len(samples):
        return np.full(num_resamples, math.nan)
    generator = np.random.default_rng(seed)
    draws = (generator.integers(len(samples), size=len(samples)) for _ in range(num_resamples))
    return np.array([statistic(samples[rows]) for rows in draws], dtype=float)


def _percentiles(values: Floats, confidence: float) -> tuple[float, float]:
    low, high = np.quantile(values, [0.5 - confidence / 2, 0.5 + confidence / 2])
    return float(low), float(high)


def mcnemar_exact(num_only_first: int, num_only_second: int) -> float:
    """Test whether two classifiers differ in accuracy on the same samples.

    The test is that of Q. McNemar, Psychometrika 12 (1947), with exact probabilities: the samples that one classifier
    alone gets right are a fair coin if both are equally good. See the exact conditional test in M. W. Fagerland,
    S. Lydersen, P. Laake, BMC Medical Research Methodology 13 (2013), 91.

    Args:
        num_only_first: Samples that the first alone gets right.
        num_only_second: Samples that the second alone gets right.

    Returns:
        The two-sided p-value; 1 where they disagree on none.
    """
    total, fewer = num_only_first + num_only_second, min(num_only_first, num_only_second)
    k = np.arange(1, fewer + 1)
    # log of C(total, k) / 2^total for k = 0 to fewer; sums of logs, for the coefficients exceed a float
    logs = np.concatenate([[0.0], np.cumsum(np.log((total - k + 1) / k))]) - total * math.log(2)
    return min(1.0, 2 * float(np.exp(logs).sum()))


def compute_chance_level(label_counts: Sequence[int], *, balanced: bool = False) -> float:
    """Compute the accuracy of the best classifier that does not look at its input.

    That is the share of the most frequent class, which always predicting this class reaches: the "no information rate"
    of R's caret, and scikit-learn's ``DummyClassifier(strategy="most_frequent")``. It is never below 1/k, the accuracy
    of guessing one of k classes at random, and equals it where all classes are equally frequent. So 1/k is too low a
    bar for accuracy; but it is exact for the mean of the accuracies of the classes.

    Args:
        label_counts: Samples of each class.
        balanced: Whether the metric is the mean over classes (balanced accuracy, macro recall), for which the level is
            1/k, k being the number of classes with samples.

    Returns:
        The level; NaN without samples.
    """
    counts = [count for count in label_counts if count > 0]
    if not counts:
        return math.nan
    return 1 / len(counts) if balanced else max(counts) / sum(counts)


class CalibrationBins(NamedTuple):
    """Points of a reliability diagram; each array has one value per bin, NaN where a bin is empty.

    Args:
        edges: ``(bins + 1,)`` bounds of the bins, 0 to 1; a bin includes its upper bound.
        counts: ``(bins,)`` samples.
        confidence: ``(bins,)`` mean confidence.
        accuracy: ``(bins,)`` share of correct samples.
    """

    edges: Floats
    counts: npt.NDArray[np.int64]
    confidence: Floats
    accuracy: Floats


def reliability_bins(confidence: npt.ArrayLike, is_correct: npt.ArrayLike, *, num_bins: int = 15) -> CalibrationBins:
    """Group samples by confidence into bins of equal width, for a reliability diagram.

    The bins are those of section 2 of C. Guo et al., "On Calibration of Modern Neural Networks", ICML 2017
    (arXiv:1706.04599): bin m holds the confidences above (m - 1) / M and up to m / M; the first bin holds 0, too.

    Args:
        confidence: ``(samples,)`` probability of the predicted class, 0 to 1.
        is_correct: ``(samples,)`` whether the predicted class is the label.
        num_bins: M; 15 in the paper.
    """
    values, correct = np.asarray(confidence, dtype=float), np.asarray(is_correct, dtype=float)
    if values.size and not (values.min() >= 0 and values.max() <= 1):  # NaN fails, too
        raise ValueError(f"expected confidences from 0 to 1, got {values.min()} to {values.max()}")
    edges = np.linspace(0, 1, num_bins + 1)
    index = np.clip(np.searchsorted(edges, values, side="left") - 1, 0, num_bins - 1)
    counts = np.bincount(index, minlength=num_bins)
    share = np.where(counts > 0, counts, math.nan)
    sums = (np.bincount(index, weights=each, minlength=num_bins) for each in (values, correct))
    return CalibrationBins(edges, counts, *(each / share for each in sums))


def expected_calibration_error(bins: CalibrationBins) -> float:
    """Compute the ECE: the mean gap between confidence and accuracy of the bins, weighted by their samples.

    It is equation 3 of Guo et al. (see `reliability_bins`), 0 for a calibrated model, at most 1; NaN without samples.
    """
    if not bins.counts.sum():
        return math.nan
    gaps = np.abs(bins.accuracy - bins.confidence) * bins.counts
    return float(np.nansum(gaps) / bins.counts.sum())
