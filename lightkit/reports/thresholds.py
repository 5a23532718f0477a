"""Precision, recall and false positive rate of a classifier at each threshold.

From its recorded predictions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from lightkit.errors import visible
from lightkit.reports import figures
from lightkit.reports.curves import dump_json
from lightkit.reports.figures import RateLine
from lightkit.reports.predictions import Predictions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
_NAMED = (0.5, 0.9)
_MAX_POINTS = 400
_MAX_POINTS_OF_PAGE = 4000
"""Points of the curves of all classes of a page, of about 17 bytes each."""
_FEWEST_POINTS = 40  # of one class; a curve is about 230 pixels wide
_MOST_POINTS = 120  # likewise
_LONGEST_NAME = 60
Rates = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Thresholds:
    """Numbers of samples that are accepted at each threshold, the highest first.

    At the first nothing is accepted.

    Args:
        name: What is searched for, in two words.
        subject: What is accepted, in words.
        threshold: Smallest probability that is accepted.
        right: Accepted samples that are searched for.
        wrong: The other accepted ones.
    """

    name: str
    subject: str
    threshold: Rates
    right: Counts
    wrong: Counts

    @property
    def num_positive(self) -> int:
        """Samples that are searched for."""
        return int(self.right[-1])

    @property
    def num_negative(self) -> int:
        """The other samples."""
        return int(self.wrong[-1])

    @property
    def accepted(self) -> Rates:
        """Share of the samples that is accepted."""
        return (self.right + self.wrong) / (self.num_positive + self.num_negative)

    @property
    def precision(self) -> Rates:
        """Share of the accepted that are right; 1 where nothing is accepted."""
        return np.where(
            self.right + self.wrong > 0, self.right / np.maximum(self.right + self.wrong, 1), 1.0
        )

    @property
    def recall(self) -> Rates:
        """Share of the right that is accepted."""
        return self.right / self.num_positive

    @property
    def false_positive_rate(self) -> Rates:
        """Share of the wrong that is accepted."""
        return self.wrong / self.num_negative

    @property
    def average_precision(self) -> float:
        """Sum of the precisions, each by the step of the recall."""
        return float((np.diff(self.recall) * self.precision[1:]).sum())

    @property
    def area(self) -> float:
        """Area under the curve of recall over false positive rate."""
        recall = self.recall
        return float((np.diff(self.false_positive_rate) * (recall[1:] + recall[:-1]) / 2).sum())

    def find(self, threshold: float) -> int:
        """Return the position of the smallest recorded threshold that is not below this one."""
        return max(int(np.searchsorted(-self.threshold, -threshold, side="right")) - 1, 0)

    def at(self, threshold: float) -> tuple[float, float, float, float]:
        """Return accepted, precision, recall and false positive rate at a threshold."""
        place = self.find(threshold)
        columns = (self.accepted, self.precision, self.recall, self.false_positive_rate)
        accepted, precision, recall, false_rate = (float(column[place]) for column in columns)
        return accepted, precision, recall, false_rate

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Rows of a table: threshold, accepted, precision, recall, false positive rate."""
        return [(f"{each:g}", *(f"{value:.3f}" for value in self.at(each))) for each in _SHOWN]

    def choose_points(self, most: int) -> Counts:
        """Choose positions that lie evenly on both curves, with both ends.

        Also choose those of the rows of the table.

        A precision falls from one right sample to the next. So both are chosen: the first position
        that reaches a recall, and the one before it.

        Args:
            most: Positions, about; all where there are no more.
        """
        num_points = len(self.threshold)
        if num_points <= most:
            return np.arange(num_points)
        steps = np.linspace(0, 1, max(2, most // 3))
        reached = np.searchsorted(self.recall, steps)
        passed = np.searchsorted(self.false_positive_rate, steps)
        named = [self.find(each) for each in _SHOWN]
        chosen = np.concatenate([reached, reached - 1, passed, named, [0, num_points - 1]])
        return np.unique(chosen.clip(0, num_points - 1))


def compute_thresholds(found: Predictions) -> Thresholds | None:
    """Compute the rates of a model with probabilities.

    None without any, or where all samples are of one kind.

    Of independent labels all pairs of a sample and a label count alike. Of two classes the second
    is what is searched for. Of more classes a prediction is accepted or left to a person: right
    predictions are searched for.
    """
    if not found.class_names or not found.probability.size:
        return None
    if found.probability.ndim == 2:
        scores = found.probability.astype(np.float64).ravel()
        subject = "labels, where their probability is above a threshold"
        return compute_rates(scores, found.target.ravel() == 1, name="all labels", subject=subject)
    if len(found.class_names) == 2:
        return compute_class_thresholds(found).get(found.class_names[1])
    if found.is_correct is None:
        return None
    subject = "predictions that are accepted where their probability is above a threshold"
    scores = found.probability.astype(np.float64)
    return compute_rates(scores, found.is_correct, name="right predictions", subject=subject)


def compute_class_thresholds(found: Predictions) -> dict[str, Thresholds]:
    """Compute the rates of each class against all others, by its name.

    Without classes that no sample has, or each.
    """
    form = found.task.form
    probabilities = form.list_probabilities(found)
    if probabilities is None:
        return {}
    computed = {}
    for number, name in enumerate(found.class_names):
        is_of_class = form.find_samples(found, number)
        if is_of_class is None:
            continue
        shown = visible(name, in_line=True)[:_LONGEST_NAME]
        subject = f"{shown}, where its probability is above a threshold"
        scores = probabilities[:, number].astype(np.float64)
        rates = compute_rates(scores, is_of_class, name=shown, subject=subject)
        if rates is not None:
            computed[name] = rates
    return computed


def compute_rates(
    scores: Rates, is_positive: NDArray[np.bool_], *, name: str, subject: str
) -> Thresholds | None:
    """Count what is accepted by a score of at least each of the scores.

    None without both kinds of samples.
    """
    if is_positive.all() or not is_positive.any():
        return None
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    # of each group of equal scores
    last = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)
    right = np.cumsum(is_positive[order])[last]
    return Thresholds(
        name=name,
        subject=subject,
        threshold=np.append(np.inf, ranked[last]),
        right=np.append(0, right).astype(np.int64),
        wrong=np.append(0, last + 1 - right).astype(np.int64),
    )


def draw_thresholds(found: Thresholds) -> Figure:
    """Draw precision over recall, and recall over false positive rate, and mark two thresholds."""
    chosen = found.choose_points(_MAX_POINTS)
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


def dump_thresholds(choices: Sequence[Thresholds]) -> Markup:
    """Write what the script of a page draws, as JSON for a script element; empty without a choice.

    Args:
        choices: Of which one is shown, the first at the start.
    """
    if len(choices) < 2:
        return Markup("")
    most = min(_MOST_POINTS, max(_FEWEST_POINTS, _MAX_POINTS_OF_PAGE // len(choices)))
    return dump_json([_describe(each, most) for each in choices])


def _describe(found: Thresholds, most: int) -> dict[str, Any]:
    """Describe curves by the counts of which each rate is made.

    ``rows`` are the positions of the table's rows.
    """
    chosen = found.choose_points(most)
    rows = np.searchsorted(chosen, [found.find(each) for each in _SHOWN])
    thresholds = [
        float(f"{each:.4g}") if math.isfinite(each) else None for each in found.threshold[chosen]
    ]
    return {
        "name": found.name,
        "subject": found.subject,
        "ap": round(found.average_precision, 6),
        "area": round(found.area, 6),
        "threshold": thresholds,
        "right": found.right[chosen].tolist(),
        "wrong": found.wrong[chosen].tolist(),
        "rows": rows.tolist(),
    }
