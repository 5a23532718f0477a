"""Classification: one of several classes, from logits or probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

MAX_RECORDED_CLASSES = 100
"""Most classes of which each has its probability in the recorded predictions."""


class ClassForm(PredictionForm):
    """The class of each sample.

    With the probabilities of the class that is predicted and of the one that is right.

    Of at most 100 classes the probabilities of all are recorded, too.
    """

    in_graph_kind = "probabilities"
    has_probabilities = True

    def describe_targets(
        self, outputs: Sequence[int], targets: Sequence[int], *, are_whole: bool
    ) -> str | None:
        """Return what is expected in place of targets of another form.

        Such targets are neither a class nor a share of each class a sample.
        """
        if len(outputs) != 2:
            return None
        if are_whole and len(targets) == 1:
            return None
        if not are_whole and tuple(targets) == tuple(outputs):
            return None
        return f"a class a sample, whole numbers of shape ({outputs[0]},)"

    def reduce(self, tensors: Mapping[str, Any], task: Task) -> tuple[dict[str, Any], int] | None:
        """Reduce ``logits`` or ``probabilities`` ``(batch, classes)``, and ``target`` ``(batch,)``.

        One logit or probability a sample, ``(batch,)`` or ``(batch, 1)``, is of the second of two
        classes where that is declared.
        """
        target = tensors["target"]
        scores = self._compute_scores(tensors, task)
        is_whole = not target.is_floating_point() and target.ndim == 1
        if (
            scores is None
            or scores.ndim != 2
            or len(scores) != len(target)
            or scores.shape[1] < 2
            or not is_whole
        ):
            return None
        num_classes = scores.shape[1]
        probability, predicted = scores.max(dim=1)
        is_class = (target >= 0) & (target < num_classes)  # an ignored label counts for nothing
        of_label = scores.gather(1, target.long().clamp(0, num_classes - 1)[:, None]).squeeze(1)
        columns = {"target": target, "prediction": predicted, "probability": probability}
        columns |= {"label_probability": of_label, "counts": find_counted(tensors) & is_class}
        if num_classes <= MAX_RECORDED_CLASSES:
            columns["class_probability"] = scores.clone()  # it may be the tensor of the step itself
        return columns, num_classes

    def _compute_scores(self, tensors: Mapping[str, Any], task: Task) -> Any:
        """Compute the probabilities ``(batch, classes)``; None if there are none."""
        given = tensors["probabilities"] if "probabilities" in tensors else tensors.get("logits")
        if given is None or given.ndim == 0:
            return None
        scores = given.float()
        is_pair = task.is_pair(scores.shape, 2)
        if "probabilities" not in tensors:
            if is_pair:
                scores = scores.sigmoid()
            elif scores.ndim == 2:
                scores = scores.softmax(dim=1)
        if is_pair:
            scores = scores.reshape(-1, 1).repeat(1, 2)
            scores[:, 0] = 1 - scores[:, 0]
        return scores

    def arrange(self, rows: Mapping[str, Array]) -> dict[str, Array]:
        """Return the numbers of the classes, and the probabilities within 0 and 1."""
        arrays = {
            "target": rows["target"].astype(np.int64),
            "prediction": rows["prediction"].astype(np.int64),
            "probability": rows["probability"].clip(0, 1),
            "label_probability": rows["label_probability"].clip(0, 1),
        }
        if "class_probability" in rows:
            arrays["class_probability"] = rows["class_probability"].astype(np.float32).clip(0, 1)
        return arrays

    def to_columns(self, predictions: Recorded) -> dict[str, Any]:
        """Return the columns ``label`` and ``predicted`` with the names of the classes.

        Also return their probabilities.

        These are ``probability``, ``label_probability``, and ``probability_NAME`` of each class,
        where they are recorded and no two classes have one name.
        """
        import pyarrow as pa  # 0.1 s, which a fit needs at its end alone

        names = pa.array(predictions.class_names, pa.string())
        columns: dict[str, Any] = {}
        for name, numbers in (("label", predictions.target), ("predicted", predictions.prediction)):
            encoded = pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int32()), names)
            columns[name] = encoded.cast(pa.string())
        columns["probability"] = pa.array(predictions.probability, pa.float32())
        columns["label_probability"] = pa.array(predictions.label_probability, pa.float32())
        has_own_names = len(set(predictions.class_names)) == len(predictions.class_names)
        if predictions.class_probability.size and has_own_names:
            for at, name in enumerate(predictions.class_names):
                columns[f"probability_{name}"] = pa.array(
                    predictions.class_probability[:, at], pa.float32()
                )
        return columns

    def from_columns(self, table: Any, names: Sequence[str]) -> dict[str, Array]:
        """Read the columns, and number the classes by their names."""
        import pyarrow as pa  # 0.1 s
        import pyarrow.compute as pc

        known = pa.array(names, pa.string())
        columns = {}
        for name, column in (("target", "label"), ("prediction", "predicted")):
            columns[name] = pc.index_in(table[column], value_set=known).cast(pa.int64()).to_numpy()
        for name in ("probability", "label_probability"):
            columns[name] = table[name].to_numpy()
        own = [f"probability_{name}" for name in names]
        if own and set(own) <= set(table.column_names):  # an earlier version has not written them
            columns["class_probability"] = np.stack(
                [table[name].to_numpy() for name in own], axis=1
            )
        return columns

    def name_columns(self, names: Sequence[str], *, top_k: int) -> list[str]:
        """List ``label`` and ``probability`` of the likeliest class.

        Then ``label_2`` and ``probability_2``, and so on.
        """
        suffixes = [f"_{rank + 1}" if rank else "" for rank in range(top_k)]
        return [f"{name}{suffix}" for suffix in suffixes for name in ("label", "probability")]

    def list_cells(self, values: Array, names: Sequence[str], *, top_k: int) -> list[Any]:
        """List the likeliest classes with their probabilities, likeliest first.

        Of equals, the first class first.
        """
        order = np.argsort(-values, kind="stable")[:top_k]
        return [cell for at in order for cell in (names[at], values[at])]

    def condense(self, values: Array) -> Array:
        """Return the number of the likeliest class, its probability, NaN if one is not finite."""
        is_finite = np.isfinite(values).all(axis=1)
        best = np.where(is_finite, values.max(axis=1), np.nan)
        return np.stack([values.argmax(axis=1), best], axis=1)

    def list_condensed(self, row: Array, names: Sequence[str]) -> list[Any]:
        """Return the name of the class, and its probability."""
        return [names[int(row[0])], row[1]]

    def rate_certainty(self, values: Array) -> float:
        """Return the probability of the likeliest class."""
        return float(values.max())

    def find_correct(self, predictions: Recorded) -> NDArray[np.bool_]:
        """Return whether the label was predicted."""
        return np.asarray(predictions.prediction == predictions.target)

    def list_labels(self, predictions: Recorded) -> list[Any]:
        """Return the names of the labels."""
        return [predictions.class_names[each] for each in predictions.target]

    def describe(self, predictions: Recorded, value: Any) -> str:
        """Return the name of a class."""
        return predictions.class_names[int(value)]

    def describe_certainty(self, predictions: Recorded, at: int) -> str:
        """Write the probabilities of the prediction and of the label."""
        return f"{predictions.probability[at]:.2f}, label {predictions.label_probability[at]:.2f}"

    def measure_errors(self, predictions: Recorded) -> Array:
        """Return minus the probability of what is right of each wrong prediction.

        Minus infinity of right ones.
        """
        errors = -np.nan_to_num(predictions.label_probability, nan=2.0)
        return np.where(self.find_correct(predictions), -np.inf, errors)

    def measure_certainty(self, predictions: Recorded) -> Array:
        """Return the probability of the prediction."""
        return predictions.probability

    def list_statistics(
        self, predictions: Recorded, score: float
    ) -> dict[str, tuple[Array, Statistic]]:
        """List accuracy, error, loss, and the means over the classes that occur."""
        is_correct = self.find_correct(predictions).astype(float)
        losses = -np.log(np.maximum(predictions.label_probability.astype(float), 1e-38))
        pairs = np.stack([predictions.target, predictions.prediction], axis=1)
        return {
            "accuracy": (is_correct, np.mean),
            "error": (1 - is_correct, np.mean),
            "loss": (losses, np.mean),
            "precision": (pairs, _macro(1, 0)),
            "recall": (pairs, _macro(0, 1)),
            "f1": (pairs, _macro(0.5, 0.5)),
        }

    def measure(self, predictions: Recorded) -> Measure:
        """Compute the accuracy, against that of the most frequent class.

        That is the "no information rate" of R's caret.
        """
        is_correct = self.find_correct(predictions).astype(float)
        chance = float(np.bincount(predictions.target).max() / len(is_correct))
        return Measure(is_correct, np.mean, chance, is_share=True)

    def list_probabilities(self, predictions: Recorded) -> Array | None:
        """Return the recorded probability of each class.

        Of two classes that of the prediction says both.
        """
        if predictions.class_probability.size:
            return predictions.class_probability
        if len(predictions.class_names) != 2 or not predictions.probability.size:
            return None
        probability = predictions.probability.astype(np.float64)
        of_second = np.where(predictions.prediction == 1, probability, 1 - probability)
        return np.stack([1 - of_second, of_second], axis=1)

    def list_calibration(self, predictions: Recorded) -> tuple[Array, Array] | None:
        """Return the probability of each prediction, and whether it is right."""
        return predictions.probability, self.find_correct(predictions)

    def find_samples(self, predictions: Recorded, number: int) -> NDArray[np.bool_]:
        """Return which samples have this label."""
        return np.asarray(predictions.target == number)

    def count_classes(self, predictions: Recorded) -> tuple[Array, Array, Array]:
        """Count the right predictions of each class, its predictions and its samples."""
        targets = predictions.target
        num = len(predictions.class_names)
        hits = targets[self.find_correct(predictions)]
        return tuple(  # type: ignore[return-value]
            np.bincount(each, minlength=num) for each in (hits, predictions.prediction, targets)
        )


def _macro(precision_weight: float, recall_weight: float) -> Statistic:
    """Mean over occurring classes of hits by a weighted mean of predictions and labels.

    As torchmetrics' macro.
    """

    def compute(pairs: Array) -> float:
        targets = pairs[:, 0]
        predictions = pairs[:, 1]
        num = int(pairs.max(initial=0)) + 1
        hits = np.bincount(targets[targets == predictions], minlength=num)
        support, predicted = (np.bincount(each, minlength=num) for each in (targets, predictions))
        scores = hits / np.maximum(precision_weight * predicted + recall_weight * support, 1e-9)
        return float(scores[support + predicted > 0].mean())

    return compute


register_form(ClassForm(), "logits", "binary_logit", "probabilities")
_MACRO = {"num_classes": None, "average": "macro", "validate_args": False}
CLASSIFICATION = Task(
    output_kind="logits",
    loss="cross_entropy",
    metrics={"loss": "min", "accuracy": "max", "f1": "max", "precision": "max", "recall": "max"},
    gate_metric="accuracy",
    report_blocks=frozenset({"classes", "confusions", "calibration", "uncertain"}),
    metric_classes={
        "accuracy": (
            "torchmetrics.classification.MulticlassAccuracy",
            {"num_classes": None, "average": "micro", "validate_args": False},
        ),
        "f1": ("torchmetrics.classification.MulticlassF1Score", _MACRO),
        "precision": ("torchmetrics.classification.MulticlassPrecision", _MACRO),
        "recall": ("torchmetrics.classification.MulticlassRecall", _MACRO),
    },
    # one count of hits and misses serves three; said here, because a guess from the first batch may
    # be wrong
    metric_groups=(("loss",), ("accuracy",), ("f1", "precision", "recall")),
)
"""One of several classes, from logits."""
BINARY = Task(
    output_kind="binary_logit",
    loss="binary_cross_entropy_with_logits",
    metrics=CLASSIFICATION.metrics,
    gate_metric=CLASSIFICATION.gate_metric,
    report_blocks=CLASSIFICATION.report_blocks,
)
"""One of two classes, from the logit of the second."""
PROBABILITIES = Task(
    output_kind="probabilities",
    metrics=CLASSIFICATION.metrics,
    gate_metric=CLASSIFICATION.gate_metric,
    report_blocks=CLASSIFICATION.report_blocks,
)
"""One of several classes, from their probabilities."""
