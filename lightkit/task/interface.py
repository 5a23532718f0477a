"""Interface of a task.

`Task`, and the form in which predictions of its kind are recorded, scored and shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lightkit.task.arrays import Array, Statistic, as_floats, sigmoid

OutputKind = Literal[
    "logits",
    "binary_logit",
    "multilabel_logits",
    "probabilities",
    "multilabel_probabilities",
    "mask_logits",
    "masks",
    "values",
    "other",
]
"""Kind of a model's first output.

``logits`` and ``probabilities`` are ``(batch, classes)`` of classes of which one is right,
``binary_logit`` is ``(batch,)`` or ``(batch, 1)`` of the second of two classes, those of
``multilabel`` are ``(batch, labels)`` of labels that are right or not independently,
``mask_logits`` are ``(batch, classes, height, width)`` of the classes of each pixel, ``masks`` are
the numbers of these, ``(batch, height, width)``, ``values`` are numbers in the units of the target.
``other`` is unknown.
"""
Activation = Literal["softmax", "sigmoid", "argmax", "identity"]
"""Function that turns outputs into probabilities, or into the number of a class; it is over the
second dimension."""
ReportBlock = Literal["classes", "confusions", "calibration", "uncertain", "scatter"]
"""Part of a report that not every task has: scores of each class, their confusions, the reliability
diagram, the samples of least probability, and predictions over targets."""
MetricMode = Literal["min", "max"]


class Recorded(Protocol):
    """Predictions for a split's samples, as `lightkit.reports.predictions.Predictions` has them."""

    @property
    def target(self) -> Array:
        """``(samples, ...)``."""

    @property
    def prediction(self) -> Array:
        """``(samples, ...)``."""

    @property
    def probability(self) -> Array:
        """``(samples, ...)``; empty where there are no probabilities."""

    @property
    def label_probability(self) -> Array:
        """``(samples,)``, of what is right; empty where there are no probabilities."""

    @property
    def class_probability(self) -> Array:
        """``(samples, classes)``; empty where the probabilities of all classes are not recorded."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes or labels."""


class Measure(NamedTuple):
    """The metric that a task is judged by, computed from predictions.

    Args:
        values: ``(samples, ...)``.
        statistic: The metric of such values.
        chance: Value of the best constant prediction; None where unknown.
        is_share: Whether it is a share of the samples.
    """

    values: Array
    statistic: Statistic
    chance: float | None = None
    is_share: bool = False


class PredictionForm:
    """Form of the predictions of one kind: how they are recorded, written, scored and shown.

    This one is of outputs of unknown meaning, of which nothing is recorded. A subclass says what
    differs. Tensors come in and go out without a transfer from their device; the rest is NumPy.
    """

    in_graph_kind: OutputKind = "other"
    """Kind of the outputs of an export that has the activation in its graph."""
    has_probabilities: bool = False
    has_masks: bool = False
    """Whether a prediction is a mask of a picture, or the probabilities of each pixel."""
    has_decisions: bool = False
    """Whether an export with the activation in its graph returns numbers of classes, of which near
    ties fall to either side."""
    hub_task: tuple[str, str] = ("image-classification", "Image Classification")
    """Task of a model of pictures on the Hub of Hugging Face: its tag and its name."""
    own_units: frozenset[str] = frozenset()
    """Metrics that each run may log in units of its own data."""
    class_metrics: frozenset[str] = frozenset()
    """Metrics that one class has too, and that are no counts of right predictions."""
    thresholds: tuple[float, ...] | None = None
    """Probabilities of a model from which on its labels are predicted; None where it has none."""

    def describe_targets(
        self, outputs: Sequence[int], targets: Sequence[int], *, are_whole: bool
    ) -> str | None:
        """Return the targets that are expected where a batch has others; None where they fit.

        Args:
            outputs: Shape of the outputs.
            targets: Shape of the targets.
            are_whole: Whether the targets are whole numbers.
        """
        return None

    def reduce(self, tensors: Mapping[str, Any], task: Task) -> tuple[dict[str, Any], int] | None:
        """Reduce the outputs of a step to what is recorded, without waiting for the device.

        Args:
            tensors: Outputs of `test_step` or `validation_step` by name, with a ``target``
                ``(batch, ...)``.
            task: Of the model.

        Returns:
            Tensors ``(batch, ...)`` by the name of a column, among them ``counts``, whether a
            sample counts; and the number of classes. None where the outputs cannot be recorded.
        """
        return None

    def arrange(self, rows: Mapping[str, Array]) -> dict[str, Array]:
        """Convert the columns of `reduce`, of all counted samples, to the arrays of `Recorded`."""
        raise NotImplementedError

    def to_columns(self, predictions: Recorded) -> dict[str, Any]:
        """Return the columns of a file of predictions, as pyarrow takes them."""
        raise NotImplementedError

    def from_columns(self, table: Any, names: Sequence[str]) -> dict[str, Array]:
        """Convert the columns of a file, a `pyarrow.Table`, to the arrays of `Recorded`."""
        raise NotImplementedError

    def to_rows(self, values: Array) -> Array:
        """Return the predictions of a batch in the form in which they are written.

        As ``(batch, numbers)``.
        """
        return values.reshape(len(values), -1)

    def reduce_pictures(self, tensors: Mapping[str, Any]) -> tuple[Any, Any] | None:
        """Reduce the outputs of a step to pictures of the worst predictions.

        None where they are no pictures.

        Args:
            tensors: As for `reduce`.

        Returns:
            How wrong each prediction is, ``(batch,)``; and target and prediction, uint8
            ``(batch, 2, rows, columns)``.
        """
        return None

    def name_columns(self, names: Sequence[str], *, top_k: int) -> list[str]:
        """List the columns of a prediction in a table, see `Task.name_columns`."""
        return [f"probability_{name}" for name in names]

    def list_cells(self, values: Array, names: Sequence[str], *, top_k: int) -> list[Any]:
        """List the cells of a prediction in the order of those columns.

        Args:
            values: Probabilities ``(classes,)``.
            names: Of the classes or labels.
            top_k: Number of classes, the likeliest.
        """
        return list(values)

    def list_predicted(self, values: Array, names: Sequence[str]) -> list[str] | None:
        """List the names of the labels that thresholds of the model predict.

        None where it has none.

        Args:
            values: Probabilities ``(labels,)``.
            names: Of the labels.
        """
        return None

    def condense(self, values: Array) -> Array:
        """Return what is kept of the predictions of a batch until a table is written.

        As ``(batch, numbers)``.

        Args:
            values: Probabilities ``(batch, classes)``.
        """
        return values.copy()

    def list_condensed(self, row: Array, names: Sequence[str]) -> list[Any]:
        """List the cells of a prediction of which `condense` has kept this, with one class."""
        return self.list_cells(row, names, top_k=1)

    def rate_certainty(self, values: Array) -> float:
        """Return how certain a prediction is, from its probabilities ``(classes,)``.

        0 where that is unknown.
        """
        return 0.0

    def decide_by(self, thresholds: Sequence[float]) -> PredictionForm:
        """Return the form with the thresholds of a model."""
        return self

    def find_correct(self, predictions: Recorded) -> NDArray[np.bool_] | None:
        """Return which predictions are right, bool ``(samples,)``.

        None where they are more or less near.
        """
        return None

    def list_labels(self, predictions: Recorded) -> list[Any]:
        """Return the targets in a form that does not depend on the order of the classes."""
        return list(predictions.target.tolist())

    def describe(self, predictions: Recorded, value: Any) -> str:
        """Write a target or a prediction."""
        return f"{value:.4g}"

    def describe_certainty(self, predictions: Recorded, at: int) -> str:
        """Write how certain a prediction is; empty where there are no probabilities."""
        return ""

    def measure_errors(self, predictions: Recorded) -> Array:
        """Return how wrong each prediction is, ``(samples,)``; minus infinity where it is right."""
        raise NotImplementedError

    def measure_certainty(self, predictions: Recorded) -> Array:
        """Return how certain each prediction is, ``(samples,)``."""
        return np.zeros(len(predictions.target))

    def list_statistics(
        self, predictions: Recorded, score: float
    ) -> dict[str, tuple[Array, Statistic]]:
        """List what a gate may test.

        By the last part of a metric's name its values of the samples, and the statistic.

        Args:
            predictions: At least one.
            score: Value of the metric as it was logged.
        """
        return {}

    def measure(self, predictions: Recorded) -> Measure:
        """Compute the metric that the task is judged by."""
        raise NotImplementedError

    def list_probabilities(self, predictions: Recorded) -> Array | None:
        """Return the probability of each class, ``(samples, classes)``.

        None where it is not recorded.
        """
        return None

    def list_calibration(self, predictions: Recorded) -> tuple[Array, Array] | None:
        """Return confidences, and whether each was right; None where there are no probabilities."""
        return None

    def find_samples(self, predictions: Recorded, number: int) -> NDArray[np.bool_] | None:
        """Return which samples are of a class, bool ``(samples,)``.

        None where there are no classes.
        """
        return None

    def count_classes(self, predictions: Recorded) -> tuple[Array, Array, Array] | None:
        """Count the right predictions of each class, its predictions and its samples.

        None where there are no classes.

        Returns:
            Three of int64 ``(classes,)``.
        """
        return None

    def score_class(self, predictions: Recorded, number: int, metric: str) -> float | None:
        """Return the value that one class has of one of the `class_metrics`.

        None where it has none.
        """
        raise NotImplementedError

    def list_class_statistic(
        self, predictions: Recorded, number: int
    ) -> tuple[Array, Statistic] | None:
        """Return what `score_class` is computed from.

        A class's values of all samples, and the statistic of them.

        None where its interval is not known.
        """
        return None

    def renumber(self, labels: Any, own: Sequence[str], known: Sequence[str]) -> Any:
        """Return a batch's targets in the order of a model's classes; None where they cannot be.

        Args:
            labels: Tensor of targets.
            own: Names of the classes of the data, in the order of the targets.
            known: Those of the model.
        """
        return None


def find_counted(tensors: Mapping[str, Any]) -> Any:
    """Return which samples of a batch count, bool ``(batch,)``: those whose weight is above 0."""
    weights = tensors.get("weights")
    if weights is not None:
        return weights > 0
    target = tensors["target"]
    return target.new_ones(len(target)).bool()


_FORMS: dict[str, PredictionForm] = {}


def register_form(form: PredictionForm, *kinds: OutputKind) -> None:
    """Register the form of the predictions of some kinds of outputs."""
    for kind in kinds:
        _FORMS[kind] = form


UNKNOWN_FORM = PredictionForm()
register_form(UNKNOWN_FORM, "other")


@dataclass(frozen=True)
class Task:
    """The task of a model, which is the attribute ``task`` of the model.

    Args:
        output_kind: Kind of the first output of ``forward``.
        loss: Function of `torch.nn.functional` that the model is trained with; None where it has
            its own.
        metrics: Logged metrics by the last part of their name, each with the direction that is
            better.
        gate_metric: The one of them that a model is judged by; None where it is unknown.
        report_blocks: Parts of a report.
        metric_classes: Classes of those metrics, each with its arguments, such as
            ``("torchmetrics.regression.MeanAbsoluteError", {})``; ``num_classes`` or ``num_labels``
            in the arguments is filled in.
        metric_groups: Metrics that share one state, as of `torchmetrics.MetricCollection`; empty
            for none.
        form: Form of the predictions; by default that of the kind of the outputs.
    """

    output_kind: OutputKind
    loss: str | None = None
    metrics: Mapping[str, MetricMode] = field(default_factory=dict)
    gate_metric: str | None = None
    report_blocks: frozenset[ReportBlock] = frozenset()
    metric_classes: Mapping[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)
    metric_groups: Sequence[Sequence[str]] = ()
    form: PredictionForm = UNKNOWN_FORM

    def __post_init__(self) -> None:
        if self.form is UNKNOWN_FORM:
            object.__setattr__(self, "form", _FORMS.get(self.output_kind, _FORMS["other"]))

    def decide_by(self, thresholds: Sequence[float] | None) -> Task:
        """Return the task with the thresholds of a model; the same where it has none."""
        return self if thresholds is None else replace(self, form=self.form.decide_by(thresholds))

    # -- training ----------------------------------------------------------------------------------

    def check_targets(self, outputs: Any, targets: Any) -> str | None:
        """Return which targets are expected where those of a batch do not fit the outputs.

        None where they do.

        Args:
            outputs: Tensor ``(batch, ...)`` of ``forward``.
            targets: Tensor ``(batch, ...)``.
        """
        are_whole = not (targets.is_floating_point() or targets.is_complex())
        return self.form.describe_targets(
            tuple(outputs.shape), tuple(targets.shape), are_whole=are_whole
        )

    def compute_losses(self, outputs: Any, targets: Any, **options: Any) -> Any:
        """Compute the loss with the function of `torch.nn.functional` that the task names.

        Args:
            outputs: Tensor ``(batch, ...)`` of ``forward``.
            targets: Tensor, as that function takes it.
            options: Of the function, such as ``reduction="none"``.
        """
        # by its name: a report asks a task too, and has no torch
        functional = import_module("torch.nn.functional")
        return getattr(functional, str(self.loss))(outputs, targets, **options)

    def build_metrics(self, num_outputs: int) -> dict[str, Any]:
        """Build the metric objects of one stage, by the last part of their logged name.

        Args:
            num_outputs: Number of classes, labels or values.
        """
        built = {}
        for name, (path, given) in self.metric_classes.items():
            module, _, kind = path.rpartition(".")
            sizes = dict.fromkeys({"num_classes", "num_labels"} & given.keys(), num_outputs)
            built[name] = getattr(import_module(module), kind)(**{**given, **sizes})
        return built

    # -- outputs -----------------------------------------------------------------------------------

    @property
    def has_classes(self) -> bool:
        """Return whether the outputs are probabilities, or become some.

        Of classes of which one is right.
        """
        return self.output_kind in ("logits", "binary_logit", "probabilities")

    @property
    def has_probabilities(self) -> bool:
        """Return whether the outputs are probabilities, or become some."""
        return self.form.has_probabilities

    def activation(self, shape: Sequence[int | None]) -> Activation:
        """Return the function that turns outputs of ``forward`` into probabilities.

        A softmax over one number is 1 for every sample, so that a single logit is one of two
        classes, however it is declared.

        Args:
            shape: Of the outputs, with the batch.
        """
        is_single = len(shape) < 2 or shape[1] == 1
        if self.output_kind in ("binary_logit", "multilabel_logits"):
            return "sigmoid"
        if self.output_kind == "logits":
            return "sigmoid" if is_single else "softmax"
        return "argmax" if self.output_kind == "mask_logits" else "identity"

    def is_pair(self, shape: Sequence[int | None], num_classes: int) -> bool:
        """Return whether one number a sample is the probability of the second of two classes."""
        is_single = all(size == 1 for size in shape[1:])
        return self.has_classes and is_single and num_classes == 2

    def probabilities(self, outputs: Array, *, num_classes: int = 0) -> Array:
        """Compute the probabilities of outputs of ``forward``.

        What is none, or is unknown, stays as it is.

        Args:
            outputs: ``(batch, ...)``.
            num_classes: Number of classes that have names. Of two, the probability of the second
                alone becomes that of both.

        Returns:
            ``(batch, ...)`` of the same shape, or ``(batch, 2)``; float64 where the outputs are,
            else float32.
        """
        if self.output_kind == "masks":
            return outputs
        outputs = as_floats(outputs)
        activation = self.activation(outputs.shape)
        if activation == "sigmoid":
            outputs = sigmoid(outputs)
        elif activation in ("softmax", "argmax"):
            exponentials = np.exp(outputs - outputs.max(axis=1, keepdims=True))
            outputs = exponentials / exponentials.sum(axis=1, keepdims=True)
        return self.expand(outputs, num_classes=num_classes)

    def expand(self, probabilities: Array, *, num_classes: int) -> Array:
        """Add the probability of the first of two classes where only the second's is given."""
        if not self.is_pair(probabilities.shape, num_classes):
            return probabilities
        second = probabilities.reshape(len(probabilities), 1)
        return np.concatenate([1 - second, second], axis=1)

    def has_axis(self, shape: Sequence[int | None], num_classes: int) -> bool:
        """Return whether outputs are of so many classes.

        By their axis, or as one number of a pair or a pixel each.
        """
        if self.output_kind == "masks":
            return len(shape) == 3
        if self.output_kind == "mask_logits":
            return len(shape) == 4 and shape[1] == num_classes
        return shape[-1:] == (num_classes,) or self.is_pair(shape, num_classes)

    # -- columns of a prediction -------------------------------------------------------------------

    def choose_names(
        self, shape: Sequence[int | None], names: Sequence[str] | None
    ) -> tuple[str, ...] | None:
        """Return the names of classes or labels if each output is known to be a probability.

        An output that becomes one counts, too.

        This one rule holds for checkpoints and exported files: numbers of unknown meaning are no
        probabilities.

        Args:
            shape: Of the outputs, with the batch, before or after `expand`.
            names: Those of the model or its data.
        """
        if names is None:
            return None
        fits = False
        if self.form.has_masks:
            fits = self.has_axis(shape, len(names))
        elif self.has_probabilities:
            is_row = (
                len(shape) > 1 and shape[1] == len(names) and all(size == 1 for size in shape[2:])
            )
            fits = is_row or self.is_pair(shape, len(names))
        return tuple(map(str, names)) if fits else None

    def name_columns(
        self, names: Sequence[str] | None, *, num_values: int, top_k: int
    ) -> list[str]:
        """List the columns of a prediction.

        Args:
            names: Of the classes or labels, as from `choose_names`; None where a prediction is
                numbers.
            num_values: Numbers of a prediction.
            top_k: Number of classes, the likeliest.

        Returns:
            ``label`` and ``probability`` of the likeliest class, ``label_2`` and ``probability_2``
            of the next, and so on; ``probability_NAME`` of each label that is independent of the
            others, after ``labels`` where thresholds say which are predicted; else
            ``prediction_0``, ``prediction_1``, ...
        """
        if names is None:
            return [f"prediction_{at}" for at in range(num_values)]
        return self.form.name_columns(names, top_k=top_k)
