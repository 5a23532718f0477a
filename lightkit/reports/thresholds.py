"""Precision, recall and false positive rate of a classifier at each threshold, from its recorded predictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lightkit.errors import visible
from lightkit.reports import figures
from lightkit.reports.figures import RateLine
from lightkit.reports.predictions import Predictions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
_NAMED = (0.5, 0.9)
_MAX_POINTS = 400
Rates = NDArray[np.float64]


@dataclass(frozen=True)
class Thresholds:
    """Rates at each threshold, the highest first; at the first nothing is accepted.

    Args:
        subject: What is accepted, in words.
        threshold: Smallest probability that is accepted.
        accepted: Share of the samples.
        precision: Share of the accepted that are right; 1 where nothing is accepted.
        recall: Share of the right that are accepted.
        false_positive_rate: Share of the wrong that are accepted.
        average_precision: Sum of the precisions, each by the step of the recall.
        area: Under the curve of recall over false positive rate.
    """

    subject: str
    threshold: Rates
    accepted: Rates
    precision: Rates
    recall: Rates
    false_positive_rate: Rates
    average_precision: float
    area: float

    def at(self, threshold: float) -> tuple[float, float, float, float]:
        """Return accepted, precision, recall and false positive rate at a threshold."""
        place = int(np.searchsorted(-self.threshold, -threshold, side="right")) - 1
        columns = (self.accepted, self.precision, self.recall, self.false_positive_rate)
        accepted, precision, recall, false_rate = (float(column[max(place, 0)]) for column in columns)
        return accepted, precision, recall, false_rate

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Rows of a table: threshold, accepted, precision, recall, false positive rate."""
        return [(f"{each:g}", *(f"{value:.3f}" for value in self.at(each))) for each in _SHOWN]


def compute_thresholds(found: Predictions) -> Thresholds | None:
    """Compute the rates of a model with probabilities; None without any, or where all samples are of one kind.

    Of independent labels all pairs of a sample and a label count alike. Of two classes the second is what is searched
    for. Of more classes, of which the likeliest alone is recorded with its probability, a prediction is accepted or
    left to a person: right predictions are searched for.
    """
    if not found.class_names or not found.probability.size:
        return None
    scores = found.probability.astype(np.float64)
    if scores.ndim == 2:
        subject = "labels, where their probability is above a threshold"
        return compute_rates(scores.ravel(), found.target.ravel() == 1, subject=subject)
    if len(found.class_names) == 2:
        name = visible(found.class_names[1], in_line=True)[:60]
        subject = f"{name}, where its probability is above a threshold"
        of_second = np.where(found.prediction == 1, scores, 1 - scores)
        return compute_rates(of_second, found.target == 1, subject=subject)
    if found.is_correct is None:
        return None
    subject = "predictions that are accepted where their probability is above a threshold"
    return compute_rates(scores, found.is_correct, subject=subject)


def compute_rates(scores: Rates, is_positive: NDArray[np.bool_], *, subject: str) -> Thresholds | None:
    """Compute the rates of accepting what has a score of at least each of the scores; None without both kinds."""
    num_positive = int(is_positive.sum())
    num_negative = len(scores) - num_positive
    if not num_positive or not num_negative:
        return None
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    last = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)  # of each group of equal scores
    right = np.cumsum(is_positive[order])[last].astype(np.float64)
    accepted = last + 1.0
    precision = np.append(1.0, right / accepted)
    recall = np.append(0.0, right / num_positive)
    false_rate = np.append(0.0, (accepted - right) / num_negative)
    return Thresholds(
        subject=subject,
        threshold=np.append(np.inf, ranked[last]),
        accepted=np.append(0.0, accepted / len(scores)),
        precision=precision,
        recall=recall,
        false_positive_rate=false_rate,
        average_precision=float((np.diff(recall) * precision[1:]).sum()),
        area=float((np.diff(false_rate) * (recall[1:] + recall[:-1]) / 2).sum()),
    )


def draw_thresholds(found: Thresholds) -> Figure:
    """Draw precision over recall, and recall over false positive rate, with two thresholds marked."""
    stride = max(1, len(found.threshold) // _MAX_POINTS)
    chosen = np.unique(np.append(np.arange(0, len(found.threshold), stride), len(found.threshold) - 1))
    named = [(f"{each:g}", found.at(each)) for each in _NAMED]
    return figures.draw_rates(
        [
            RateLine(
                found.recall[chosen],
                found.precision[chosen],
                ("recall", "precision"),
                [(label, rates[2], rates[1]) for label, rates in named],
            ),
            RateLine(
                found.false_positive_rate[chosen],
                found.recall[chosen],
                ("false positive rate", "true positive rate"),
                [(label, rates[3], rates[2]) for label, rates in named],
            ),
        ]
    )
