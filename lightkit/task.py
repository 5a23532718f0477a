"""The task of a model: what its outputs are, and how predictions, metrics, reports, gates and exports treat them.

No torch: a report and the prediction by an exported file ask it too.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

OutputKind = Literal[
    "logits",
    "binary_logit",
    "multilabel_logits",
    "probabilities",
    "multilabel_probabilities",
    "values",
    "other",
]
"""Kind of a model's first output.

``logits`` and ``probabilities`` are ``(batch, classes)`` of classes of which one is right, ``binary_logit`` is
``(batch,)`` or ``(batch, 1)`` of the second of two classes, those of ``multilabel`` are ``(batch, labels)`` of labels
that are right or not independently, ``values`` are numbers in the units of the target. ``other`` is unknown.
"""
Activation = Literal["softmax", "sigmoid", "identity"]
"""Function that turns outputs into probabilities; the softmax is over the second dimension."""
ReportBlock = Literal["classes", "confusions", "calibration", "uncertain", "scatter"]
"""Part of a report that not every task has: scores of each class, their confusions, the reliability diagram, the
samples of least probability, and predictions over targets."""
Array = NDArray[Any]

TOLERANCE = 0.01
"""How far half precision may move a probability out of 0 to 1, and the sum of those of all classes from 1."""
_log = logging.getLogger("lightkit")


@dataclass(frozen=True)
class Task:
    """The task of a model, which is the attribute ``task`` of the model.

    Args:
        output_kind: Kind of the first output of ``forward``.
        loss: Function of `torch.nn.functional` that the model is trained with; None where it has its own.
        metrics: Logged metrics by the last part of their name, each with the direction that is better.
        gate_metric: The one of them that a model is judged by; None where it is unknown.
        report_blocks: Parts of a report.
    """

    output_kind: OutputKind
    loss: str | None = None
    metrics: Mapping[str, Literal["min", "max"]] = field(default_factory=dict)
    gate_metric: str | None = None
    report_blocks: frozenset[ReportBlock] = frozenset()

    # -- outputs -------------------------------------------------------------------------------------------------------

    @property
    def has_classes(self) -> bool:
        """Return whether the outputs are probabilities, or become some, of classes of which one is right."""
        return self.output_kind in ("logits", "binary_logit", "probabilities")

    @property
    def has_labels(self) -> bool:
        """Return whether the outputs are, or become, probabilities of labels that are independent."""
        return self.output_kind in ("multilabel_logits", "multilabel_probabilities")

    @property
    def has_probabilities(self) -> bool:
        """Return whether the outputs are probabilities, or become some."""
        return self.has_classes or self.has_labels

    def activation(self, shape: Sequence[int | None]) -> Activation:
        """Return the function that turns outputs of ``forward`` into probabilities.

        A softmax over one number is 1 for every sample, so that a single logit is one of two classes, however it is
        declared.

        Args:
            shape: Of the outputs, with the batch.
        """
        is_single = len(shape) < 2 or shape[1] == 1
        if self.output_kind in ("binary_logit", "multilabel_logits"):
            return "sigmoid"
        if self.output_kind == "logits":
            return "sigmoid" if is_single else "softmax"
        return "identity"

    def is_pair(self, shape: Sequence[int | None], num_classes: int) -> bool:
        """Return whether one number a sample is the probability of the second of two classes."""
        is_single = all(size == 1 for size in shape[1:])
        return self.has_classes and is_single and num_classes == 2

    def probabilities(self, outputs: Array, *, num_classes: int = 0) -> Array:
        """Compute the probabilities of outputs of ``forward``; what is none, or is unknown, stays as it is.

        Args:
            outputs: ``(batch, ...)``.
            num_classes: Number of classes that have names. Of two, the probability of the second alone becomes that
                of both.

        Returns:
            ``(batch, ...)`` of the same shape, or ``(batch, 2)``; float64 where the outputs are, else float32.
        """
        outputs = as_floats(outputs)
        activation = self.activation(outputs.shape)
        if activation == "sigmoid":
            outputs = sigmoid(outputs)
        elif activation == "softmax":
            exponentials = np.exp(outputs - outputs.max(axis=1, keepdims=True))
            outputs = exponentials / exponentials.sum(axis=1, keepdims=True)
        return self.expand(outputs, num_classes=num_classes)

    def expand(self, probabilities: Array, *, num_classes: int) -> Array:
        """Add the probability of the first of two classes where only that of the second is given."""
        if not self.is_pair(probabilities.shape, num_classes):
            return probabilities
        second = probabilities.reshape(len(probabilities), 1)
        return np.concatenate([1 - second, second], axis=1)

    # -- columns of a prediction ---------------------------------------------------------------------------------------

    def choose_names(self, shape: Sequence[int | None], names: Sequence[str] | None) -> tuple[str, ...] | None:
        """Return the names of classes or labels if each output is known to be a probability, or to become one.

        This one rule holds for checkpoints and exported files: numbers of unknown meaning are no probabilities.

        Args:
            shape: Of the outputs, with the batch, before or after `expand`.
            names: Those of the model or its data.
        """
        if names is None or not self.has_probabilities:
            return None
        is_row = len(shape) > 1 and shape[1] == len(names) and all(size == 1 for size in shape[2:])
        return tuple(map(str, names)) if is_row or self.is_pair(shape, len(names)) else None

    def name_columns(self, names: Sequence[str] | None, *, num_values: int, top_k: int) -> list[str]:
        """List the columns of a prediction.

        Args:
            names: Of the classes or labels, as from `choose_names`; None where a prediction is numbers.
            num_values: Numbers of a prediction.
            top_k: Number of classes, the likeliest.

        Returns:
            ``label`` and ``probability`` of the likeliest class, ``label_2`` and ``probability_2`` of the next, and so
            on; ``probability_NAME`` of each label that is independent of the others; else ``prediction_0``,
            ``prediction_1``, ...
        """
        if names is None:
            return [f"prediction_{at}" for at in range(num_values)]
        if self.has_labels:
            return [f"probability_{name}" for name in names]
        suffixes = [f"_{rank + 1}" if rank else "" for rank in range(top_k)]
        return [f"{name}{suffix}" for suffix in suffixes for name in ("label", "probability")]


CLASSIFICATION = Task(
    output_kind="logits",
    loss="cross_entropy",
    metrics={"loss": "min", "accuracy": "max", "f1": "max", "precision": "max", "recall": "max"},
    gate_metric="accuracy",
    report_blocks=frozenset({"classes", "confusions", "calibration", "uncertain"}),
)
"""One of several classes, from logits."""
REGRESSION = Task(
    output_kind="values",
    loss="mse_loss",
    metrics={"loss": "min", "mae": "min", "mse": "min"},
    gate_metric="mae",
    report_blocks=frozenset({"scatter"}),
)
"""Numbers."""
UNDECLARED = Task(output_kind="other")
"""Task of a model that declares nothing."""

_TASKS: dict[OutputKind, Task] = {
    "logits": CLASSIFICATION,
    "binary_logit": Task(
        output_kind="binary_logit",
        loss="binary_cross_entropy_with_logits",
        metrics=CLASSIFICATION.metrics,
        gate_metric=CLASSIFICATION.gate_metric,
        report_blocks=CLASSIFICATION.report_blocks,
    ),
    "multilabel_logits": Task(output_kind="multilabel_logits", loss="binary_cross_entropy_with_logits"),
    "probabilities": Task(
        output_kind="probabilities",
        metrics=CLASSIFICATION.metrics,
        gate_metric=CLASSIFICATION.gate_metric,
        report_blocks=CLASSIFICATION.report_blocks,
    ),
    "multilabel_probabilities": Task(output_kind="multilabel_probabilities"),
    "values": REGRESSION,
    "other": UNDECLARED,
}
_has_warned: set[str] = set()


def task_of_kind(kind: object) -> Task:
    """Return the task of an output kind; that of ``other`` if there is no such kind."""
    known: dict[Any, Task] = dict(_TASKS)
    return known.get(kind, UNDECLARED) if isinstance(kind, str) else UNDECLARED


def task_of(model: object) -> Task:
    """Return the task of a model: its ``task``, or the one that its ``output_kind`` declares.

    An ``output_kind`` that is another than the task's is that of a subclass, whose ``forward`` gives something else.
    One that does not exist is a warning, once for each, and the outputs are of unknown meaning.
    """
    own = getattr(model, "task", None)
    kind = getattr(model, "output_kind", None)
    if isinstance(own, Task) and kind in (None, own.output_kind):
        return own
    if kind is not None and kind not in get_args(OutputKind):
        text = f"{type(model).__name__}.output_kind: expected one of {', '.join(get_args(OutputKind))}, got {kind!r}"
        if text not in _has_warned:
            _has_warned.add(text)
            _log.warning("%s; its outputs are taken for numbers of unknown meaning", text)
    return task_of_kind(kind)


def find_class_names(model: object, data: object) -> Any:
    """Return the names of a model's classes: its own, else those of the data; None if neither has any."""
    own = getattr(model, "class_names", None)
    return own if own is not None and len(own) else getattr(data, "class_names", None) or None


def as_floats(values: Array) -> Array:
    """Convert numbers to float32; float64 and whole numbers, which float32 would round, to float64."""
    is_wide = values.dtype == np.float64 or values.dtype.kind in "iu"
    return values.astype(np.float64 if is_wide else np.float32, copy=False)


def sigmoid(values: Array) -> Array:
    """Compute the logistic function, without an overflow for large values."""
    with np.errstate(over="ignore"):
        small = np.exp(-np.abs(values))
    return np.where(values >= 0, 1 / (1 + small), small / (1 + small)).astype(values.dtype, copy=False)


def find_improbable(values: Array) -> NDArray[np.bool_]:
    """Find the rows with a number that is no probability: below 0, above 1, NaN or infinite.

    Args:
        values: ``(rows, numbers)``.

    Returns:
        Bool ``(rows,)``.
    """
    is_probability = (values >= -TOLERANCE) & (values <= 1 + TOLERANCE)  # NaN is neither
    return np.asarray(~is_probability.all(axis=1))
