"""Several labels: each of them is right or not for a sample, independently of the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightkit.task.arrays import Array, Statistic
from lightkit.task.interface import (
    Measure,
    PredictionForm,
    Recorded,
    Task,
    find_counted,
    register_form,
)

DEFAULT_THRESHOLD = 0.5
"""Probability from which on a label is predicted, where no threshold was chosen for it."""
LABELS_COLUMN = "labels"
"""Column of a table of predictions with the names of the labels that are predicted."""
SEPARATOR = "|"
"""Character between the names in that column."""


class LabelForm(PredictionForm):
    """The labels of each sample, with the probability of each label.

    The probability of what is right, ``label_probability``, is that of the label of a sample that
    is missed most.

    Args:
        thresholds: Of a model, by which a label is predicted; None where each is 0.5.
    """

    in_graph_kind = "multilabel_probabilities"
    has_probabilities = True
    class_metrics = frozenset({"map", "ap"})

    def __init__(self, thresholds: Sequence[float] | None = None) -> None:
        self.thresholds = None if thresholds is None else tuple(map(float, thresholds))

    def decide_by(self, thresholds: Sequence[float]) -> PredictionForm:
        """Return the form with the thresholds of a model."""
        return LabelForm(thresholds)

    def predict(self, probability: Array) -> NDArray[np.bool_]:
        """Return which labels are predicted.

        Bool, in the shape of the probabilities ``(..., labels)``.
        """
        thresholds = np.full(probability.shape[-1], DEFAULT_THRESHOLD, np.float32)
        if self.thresholds is not None:
            thresholds = np.array(self.thresholds, np.float32)
        return np.asarray(probability >= thresholds)

    def name_columns(self, names: Sequence[str], *, top_k: int) -> list[str]:
        """List ``labels``, and ``probability_NAME`` of each label.

        Thresholds say which labels are predicted.
        """
        first = [] if self.thresholds is None else [LABELS_COLUMN]
        return first + [f"probability_{name}" for name in names]

    def list_cells(self, values: Array, names: Sequence[str], *, top_k: int) -> list[Any]:
        """List the names of the labels that are predicted, and the probability of each.

        Thresholds say which are predicted.
        """
        first = (
            []
            if self.thresholds is None
            else [SEPARATOR.join(_list_names(names, self.predict(values)))]
        )
        return [*first, *values]

    def list_predicted(self, values: Array, names: Sequence[str]) -> list[str] | None:
        """List the names of the labels that the thresholds predict; None where there are none."""
        return None if self.thresholds is None else _list_names(names, self.predict(values))

    def rate_certainty(self, values: Array) -> float:
        """Return the probability of the least certain label, of its being there or not."""
        return float(np.maximum(values, 1 - values).min())

    def describe_targets(
        self, outputs: Sequence[int], targets: Sequence[int], *, are_whole: bool
    ) -> str | None:
        """Return the shape that is expected where the targets have another."""
        return (
            None
            if tuple(outputs) == tuple(targets)
            else f"0 or 1 for each label, of shape {tuple(outputs)}"
        )

    def reduce(self, tensors: Mapping[str, Any], task: Task) -> tuple[dict[str, Any], int] | None:
        """Reduce ``logits`` or ``probabilities``, and ``target``, all ``(batch, labels)``."""
        target = tensors["target"]
        given = tensors["probabilities"] if "probabilities" in tensors else tensors.get("logits")
        if given is None or given.ndim != 2 or given.shape != target.shape:
            return None
        probability = given.float() if "probabilities" in tensors else given.float().sigmoid()
        columns = {"target": target > DEFAULT_THRESHOLD, "probability": probability}
        return columns | {"counts": find_counted(tensors)}, probability.shape[1]

    def arrange(self, rows: Mapping[str, Array]) -> dict[str, Array]:
        """Return targets and predictions as 0 and 1, and the probability of each label."""
        probability = rows["probability"].clip(0, 1)
        target = rows["target"].astype(np.int64)
        return {
            "target": target,
            "prediction": self.predict(probability).astype(np.int64),
            "probability": probability,
            "label_probability": find_least_truth(target, probability),
        }

    def to_columns(self, predictions: Recorded) -> dict[str, Any]:
        """Return the columns ``labels`` and ``predicted`` with lists of names.

        Also return ``probability_NAME`` of each.
        """
        import pyarrow as pa  # 0.1 s, which a fit needs at its end alone

        names = predictions.class_names
        columns: dict[str, Any] = {}
        for name, marks in (("labels", predictions.target), ("predicted", predictions.prediction)):
            columns[name] = pa.array(
                [_list_names(names, row) for row in marks], pa.list_(pa.string())
            )
        for at, name in enumerate(names):
            columns[f"probability_{name}"] = pa.array(predictions.probability[:, at], pa.float32())
        return columns

    def from_columns(self, table: Any, names: Sequence[str]) -> dict[str, Array]:
        """Read the columns, and mark the labels by their names."""
        numbers = {name: number for number, name in enumerate(names)}
        columns = {}
        for name, column in (("target", "labels"), ("prediction", "predicted")):
            marks = np.zeros((len(table), len(names)), np.int64)
            for at, labels in enumerate(table[column].to_pylist()):
                marks[at, [numbers[label] for label in labels]] = 1
            columns[name] = marks
        probability = np.stack([table[f"probability_{name}"].to_numpy() for name in names], axis=1)
        least = find_least_truth(columns["target"], probability)
        return columns | {"probability": probability, "label_probability": least}

    def find_correct(self, predictions: Recorded) -> NDArray[np.bool_]:
        """Return whether all labels of a sample were predicted, and no other."""
        return np.asarray((predictions.prediction == predictions.target).all(axis=1))

    def list_labels(self, predictions: Recorded) -> list[Any]:
        """Return the names of the labels of each sample, sorted."""
        return [sorted(_list_names(predictions.class_names, row)) for row in predictions.target]

    def describe(self, predictions: Recorded, value: Any) -> str:
        """Write the names of the labels of a sample."""
        return ", ".join(_list_names(predictions.class_names, value)) or "no label"

    def describe_certainty(self, predictions: Recorded, at: int) -> str:
        """Write the probability of the label that is missed most."""
        truth = np.where(
            predictions.target[at] == 1,
            predictions.probability[at],
            1 - predictions.probability[at],
        )
        least = int(truth.argmin())
        return f"{predictions.class_names[least]} {predictions.probability[at, least]:.2f}"

    def measure_errors(self, predictions: Recorded) -> Array:
        """Return minus the probability of what is right of each wrong prediction.

        Minus infinity of right ones.
        """
        errors = -np.nan_to_num(predictions.label_probability, nan=2.0)
        return np.where(self.find_correct(predictions), -np.inf, errors)

    def measure_certainty(self, predictions: Recorded) -> Array:
        """Return the probability of the least certain label, of its being there or not."""
        return np.asarray(
            np.maximum(predictions.probability, 1 - predictions.probability).min(axis=1)
        )

    def list_statistics(
        self, predictions: Recorded, score: float
    ) -> dict[str, tuple[Array, Statistic]]:
        """List mAP, F1, the share of samples with all labels right, and the loss."""
        probability = predictions.probability.astype(float)
        target = predictions.target
        truth = np.maximum(np.where(target == 1, probability, 1 - probability), 1e-38)
        is_correct = self.find_correct(predictions).astype(float)
        return {
            "map": (
                np.stack([target.astype(float), probability], axis=1),
                _average_pairs(mean_average_precision),
            ),
            "f1": (np.stack([target, predictions.prediction], axis=1), _average_pairs(mean_f1)),
            "subset_accuracy": (is_correct, np.mean),
            "loss": (-np.log(truth).mean(axis=1), np.mean),
        }

    def measure(self, predictions: Recorded) -> Measure:
        """Compute mAP, against that of a random order: the share of the samples with a label."""
        values, statistic = self.list_statistics(predictions, 0.0)["map"]
        shares = predictions.target.mean(axis=0)
        chance = float(shares[shares > 0].mean()) if (shares > 0).any() else None
        return Measure(values, statistic, chance)

    def list_probabilities(self, predictions: Recorded) -> Array | None:
        """Return the probability of each label."""
        return predictions.probability

    def list_calibration(self, predictions: Recorded) -> tuple[Array, Array] | None:
        """Return the probability of each label of each sample, and whether it is there."""
        return predictions.probability.flatten(), predictions.target.flatten() == 1

    def find_samples(self, predictions: Recorded, number: int) -> NDArray[np.bool_]:
        """Return which samples have this label."""
        return np.asarray(predictions.target[:, number] == 1)

    def count_classes(self, predictions: Recorded) -> tuple[Array, Array, Array]:
        """Count the right predictions of each label, its predictions and its samples."""
        hits = predictions.target * predictions.prediction
        return hits.sum(axis=0), predictions.prediction.sum(axis=0), predictions.target.sum(axis=0)

    def score_class(self, predictions: Recorded, number: int, metric: str) -> float | None:
        """Return the average precision of a label."""
        return average_precision(predictions.target[:, number], predictions.probability[:, number])

    def list_class_statistic(self, predictions: Recorded, number: int) -> tuple[Array, Statistic]:
        """Return target and probability of a label in each sample, and the average precision.

        They are ``(samples, 2)``.
        """
        pairs = [
            predictions.target[:, number].astype(float),
            predictions.probability[:, number].astype(float),
        ]
        return np.stack(pairs, axis=1), _average_column

    def renumber(self, labels: Any, own: Sequence[str], known: Sequence[str]) -> Any:
        """Return the targets with their columns in the order of the model.

        A label that the data lacks is 0.
        """
        if labels.ndim != 2 or labels.shape[1] != len(own):
            return None
        renumbered = labels.new_zeros((len(labels), len(known)))
        for at, name in enumerate(own):
            renumbered[:, known.index(name)] = labels[:, at]
        return renumbered


def find_least_truth(target: Array, probability: Array) -> Array:
    """Return the least probability of what is right, over each sample's labels: ``(samples,)``."""
    least: Array = np.where(target == 1, probability, 1 - probability).min(axis=1)
    return least.astype(probability.dtype)


def average_precision(target: Array, probability: Array) -> float | None:
    """Compute the average precision of one label, as scikit-learn's `average_precision_score`.

    It is the sum over the distinct probabilities, the largest first, of the precision at that
    probability times the part of the positive samples that have it.

    Args:
        target: 0 or 1, ``(samples,)``.
        probability: ``(samples,)``.

    Returns:
        None where no sample is positive: torchmetrics (1.9) has -0.0 there, and counts it in the
        mean.
    """
    num_positive = target.sum()
    if not num_positive:
        return None
    order = np.argsort(-probability, kind="stable")
    hits = np.cumsum(target[order])
    ordered = probability[order]
    is_last = np.append(ordered[1:] != ordered[:-1], True)  # of those with the same probability
    found = hits[is_last]
    precision = found / (np.flatnonzero(is_last) + 1)
    return float((np.diff(found, prepend=0) * precision).sum() / num_positive)


def mean_average_precision(target: Array, probability: Array) -> float:
    """Compute the mean over the labels of their average precision, without labels of no sample.

    Args:
        target: 0 or 1, ``(samples, labels)``.
        probability: Of the same shape.

    Returns:
        NaN where no sample has any label.
    """
    each = [average_precision(target[:, at], probability[:, at]) for at in range(target.shape[1])]
    known = [value for value in each if value is not None]
    return float(np.mean(known)) if known else float("nan")


def mean_f1(target: Array, prediction: Array) -> float:
    """Compute the mean over the labels of their F1.

    Without labels that neither a sample nor a prediction has.

    Args:
        target: 0 or 1, ``(samples, labels)``.
        prediction: Likewise.

    Returns:
        NaN where there is no label at all.
    """
    hits = (target * prediction).sum(axis=0)
    both = target.sum(axis=0) + prediction.sum(axis=0)
    occurs = both > 0
    return float((2 * hits[occurs] / both[occurs]).mean()) if occurs.any() else float("nan")


def choose_threshold(target: Array, probability: Array) -> float:
    """Choose the probability from which on a label is predicted, so that its F1 is largest.

    It is in the middle between the least probability that is predicted and the largest that is not;
    of equal F1, the threshold that is nearest to 0.5.

    Args:
        target: 0 or 1, ``(samples,)``.
        probability: float32 ``(samples,)``.

    Returns:
        0.5 where no sample is positive, or all are.
    """
    num_positive = int(target.sum())
    if num_positive in (0, len(target)):
        return DEFAULT_THRESHOLD
    order = np.argsort(-probability, kind="stable")
    ordered = probability[order].astype(np.float64)
    is_last = np.append(ordered[1:] != ordered[:-1], True)
    places = np.flatnonzero(is_last)
    hits = np.cumsum(target[order])[places]
    f1 = 2 * hits / (places + 1 + num_positive)
    following = np.append(ordered, 0.0)[places + 1]
    middles = (ordered[places] + following) / 2
    # rounding to float32 may reach the following one, which would be predicted too
    middles = np.where(
        middles.astype(np.float32) > following.astype(np.float32), middles, ordered[places]
    )
    best = np.flatnonzero(f1 >= f1.max() - 1e-12)
    return float(middles[best[np.abs(middles[best] - DEFAULT_THRESHOLD).argmin()]])


def _average_pairs(function: Callable[[Array, Array], float]) -> Statistic:
    """Return a function of ``(samples, 2, labels)`` that splits it."""
    return lambda pairs: function(pairs[:, 0], pairs[:, 1])


def _average_column(pairs: Array) -> float:
    """Compute the average precision of ``(samples, 2)``.

    NaN without a sample that has the label.
    """
    found = average_precision(pairs[:, 0], pairs[:, 1])
    return float("nan") if found is None else found


def _list_names(names: Sequence[str], marks: Array) -> list[str]:
    return [name for name, is_marked in zip(names, marks, strict=True) if is_marked]


register_form(LabelForm(), "multilabel_logits", "multilabel_probabilities")
MULTILABEL = Task(
    output_kind="multilabel_logits",
    loss="binary_cross_entropy_with_logits",
    metrics={"loss": "min", "map": "max", "f1": "max", "subset_accuracy": "max"},
    gate_metric="map",
    report_blocks=frozenset({"classes", "calibration", "uncertain"}),
    metric_classes={"labels": ("lightkit.models.label_scores.LabelScores", {"num_labels": None})},
)
"""Several labels, from the logit of each."""
MULTILABEL_PROBABILITIES = Task(
    output_kind="multilabel_probabilities",
    metrics=MULTILABEL.metrics,
    gate_metric=MULTILABEL.gate_metric,
    report_blocks=MULTILABEL.report_blocks,
)
"""Several labels, from their probabilities."""
