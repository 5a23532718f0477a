"""Predictions for the samples of a split.

A Parquet file in the run folder, and the counts that are made of it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from lightkit.errors import DataError
from lightkit.runs.files import atomic_write
from lightkit.task import OutputKind, PredictionForm, Task, task_of_record

Split = Literal["test", "validation"]
_METADATA = b"lightkit"
_TOLERANCE = 1e-3  # relative: scores are sums of float32, probabilities are rounded
_SCHEMA = 1
_ABOUT = ("split", "class_names", "fingerprint", "sha256", "epoch", "changed", "output_kind")
"""Fields of `Predictions` that the file holds as metadata."""
_ARRAYS = ("index", "target", "prediction", "probability", "label_probability", "class_probability")


def _no_probabilities() -> NDArray[np.float32]:
    return np.empty((0, 0), np.float32)


@dataclass(frozen=True)
class Predictions:
    """Predictions of a model, as its task records them, in the order of the samples in the split.

    Args:
        split: Split of the samples.
        index: int64 ``(samples,)``, position in the split; each occurs once.
        paths: ``(samples,)`` names of files or table rows; None where the data has no name for a
            sample.
        target: ``(samples,)``: int64 positions of the labels in ``class_names``; of a regressor
            float32, or float64 where the model computes in it; of independent labels int64
            ``(samples, labels)``, 0 or 1; of masks the pixels of each class, int64
            ``(samples, classes)``.
        prediction: Likewise, of what was predicted.
        probability: float32 ``(samples,)`` of the predicted class, or ``(samples, labels)``; empty
            for a regressor.
        label_probability: float32 ``(samples,)``, of the label, or of that label which is missed
            most.
        class_probability: float32 ``(samples, classes)``; empty where it is not recorded, as of
            many classes, or by an earlier version. Of independent labels ``probability`` has them.
        class_names: In the order of the labels; empty for a regressor.
        fingerprint: Of the data, as in the run's manifest.
        sha256: Of the checkpoint; None for weights that are in no file.
        epoch: Of the weights, from 0; None where it is unknown.
        changed: Keys of the config in which the stage differed from the run, see
            `lightkit.runs.scores`.
        output_kind: Kind of the model's outputs; None where the names of the classes say it.
        own_task: Task of a model of the user's own, which no file has.
        slices: Which samples are in a slice by a column of their table, bool ``(samples,)`` by its
            name, such as ``sex=f``; no file has them.
    """

    split: Split
    index: NDArray[np.int64]
    paths: list[str | None]
    target: NDArray[Any]
    prediction: NDArray[Any]
    probability: NDArray[np.float32]
    label_probability: NDArray[np.float32]
    class_names: tuple[str, ...] = ()
    fingerprint: str | None = None
    sha256: str | None = None
    epoch: int | None = None
    changed: tuple[str, ...] = ()
    output_kind: OutputKind | None = None
    own_task: Task | None = None
    class_probability: NDArray[np.float32] = field(default_factory=_no_probabilities)
    slices: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.index)

    def is_of(self, sha256: str | None, *, fingerprint: str | None) -> bool:
        """Return whether they are of some weights, for the run's own data with its own settings.

        Args:
            sha256: Digest of the file of the weights; None where that is missing, so that nothing
                contradicts.
            fingerprint: Of the run's data; None where it is unknown.
        """
        is_same_data = None in (self.fingerprint, fingerprint) or self.fingerprint == fingerprint
        return sha256 in (None, self.sha256) and is_same_data and not self.changed

    @property
    def task(self) -> Task:
        """Task of the model, as far as its recorded predictions say it."""
        if self.own_task is not None:
            return self.own_task
        return task_of_record(self.output_kind, self.class_names)

    @property
    def is_correct(self) -> Any:
        """Bool ``(samples,)``: whether a prediction is right.

        None where predictions are more or less near.
        """
        return self.task.form.find_correct(self)

    @property
    def labels(self) -> list[Any]:
        """The labels by name, for two models may number them differently; a regressor's targets."""
        return self.task.form.list_labels(self)

    def take(self, positions: NDArray[np.int64]) -> Predictions:
        """Return the predictions at some positions of the arrays."""
        arrays = {
            name: each[positions]
            for name in _ARRAYS
            if len(each := getattr(self, name)) == len(self)
        }
        slices = {name: mask[positions] for name, mask in self.slices.items()}
        return replace(
            self, paths=[self.paths[each] for each in positions], slices=slices, **arrays
        )

    def name_sample(self, at: int, root: str | None = None) -> str:
        """Return the path of the sample at a position.

        Relative to the folder of the data if it is inside.
        """
        path = self.paths[at]
        return (
            f"sample {self.index[at]}"
            if path is None
            else path.removeprefix(f"{(root or '').rstrip('/')}/")
        )

    def describe(self, value: Any) -> str:
        """Write a target or a prediction: the class's name, the names of labels, or a number."""
        return self.task.form.describe(self, value)


def predictions_path(folder: Path, split: Split) -> Path:
    """Return the file of a split's predictions in a run folder."""
    return folder / f"{split}_predictions.parquet"


def thumbnail_path(folder: Path, split: Split, index: int) -> Path:
    """Return the file of a sample's thumbnail in a run folder."""
    return folder / "thumbnails" / f"{split}-{index}.jpg"


def write_predictions(path: Path, predictions: Predictions) -> None:
    """Replace a file of predictions as a whole."""
    import pyarrow as pa  # 0.1 s, which a fit needs at its end alone
    from pyarrow import parquet

    columns: dict[str, Any] = {
        "index": pa.array(predictions.index, pa.int64()),
        "path": pa.array(predictions.paths, pa.string()),
    }
    columns |= predictions.task.form.to_columns(predictions)
    about = {"schema": _SCHEMA, **{name: getattr(predictions, name) for name in _ABOUT}}
    table = pa.table(columns).replace_schema_metadata({_METADATA: json.dumps(about)})
    with atomic_write(path, durable=False) as aside:
        parquet.write_table(table, aside)


def read_predictions(path: Path) -> Predictions:
    """Read a file of predictions.

    Raises:
        DataError: If it is missing, torn, or of another schema.
    """
    import pyarrow as pa  # 0.1 s
    from pyarrow import parquet

    try:
        table = parquet.read_table(path, partitioning=None)
        about = json.loads((table.schema.metadata or {})[_METADATA])
        fields: dict[str, Any] = {
            name: about[name] for name in _ABOUT if name not in ("changed", "output_kind")
        }
        fields |= {name: tuple(about.get(name) or ()) for name in ("class_names", "changed")}
        fields["output_kind"] = about.get("output_kind")
        names = fields["class_names"]
        task = task_of_record(fields["output_kind"], names)
        arrays: dict[str, Any] = task.form.from_columns(table, names)
        return Predictions(
            index=table["index"].to_numpy(), paths=table["path"].to_pylist(), **arrays, **fields
        )
    except (OSError, KeyError, TypeError, ValueError, pa.ArrowException) as error:
        raise DataError(
            f"{path}: no predictions can be read: {type(error).__name__}: {error}"
        ) from error


def confusion_counts(predictions: Predictions) -> NDArray[np.int64]:
    """Count how often each class (row) was predicted as each class (column).

    As int64 ``(classes, classes)``.
    """
    num = len(predictions.class_names)
    cells = predictions.target * num + predictions.prediction
    return np.bincount(cells, minlength=num * num).reshape(num, num)


class ClassScores(NamedTuple):
    """Scores of one class: 0 where the denominator is 0, as scikit-learn and torchmetrics.

    Args:
        name: Of the class.
        num_samples: Samples with this label.
        precision: Right predictions of the class among its predictions.
        recall: Among its samples.
        f1: Harmonic mean of the two.
        taken_for: Most frequent wrong prediction for its samples, and how often; None where there
            is none.
        average_precision: Of a label that is independent of the others; None of a class, or without
            samples.
        iou: Of the pixels of a class in masks, which are its samples then; None of others, or where
            it occurs nowhere.
    """

    name: str
    num_samples: int
    precision: float
    recall: float
    f1: float
    taken_for: tuple[str, int] | None = None
    average_precision: float | None = None
    iou: float | None = None


def score_classes(predictions: Predictions, most: int) -> list[ClassScores]:
    """Score the classes in their order.

    Of more than ``most`` those with samples of least F1, the least first.
    """
    form = predictions.task.form
    names = predictions.class_names
    counted = form.count_classes(predictions)
    if counted is None:
        return []
    hits, predicted, support = counted
    f1 = 2 * hits / np.maximum(predicted + support, 1)
    chosen = np.arange(len(names))
    if len(names) > most:
        seen = np.flatnonzero(support)
        chosen = seen[np.argsort(f1[seen], kind="stable")][:most]
    wrong = None
    if "confusions" in predictions.task.report_blocks:
        wrong = confusion_counts(predictions)
        wrong -= np.diag(wrong.diagonal())
    scores = []
    for at in chosen.tolist():
        taken_for = None
        if wrong is not None and wrong[at].any():
            other = int(wrong[at].argmax())
            taken_for = (names[other], int(wrong[at, other]))
        scores.append(
            ClassScores(
                name=names[at],
                num_samples=int(support[at]),
                precision=hits[at] / max(predicted[at], 1),
                recall=hits[at] / max(support[at], 1),
                f1=f1[at],
                taken_for=taken_for,
                average_precision=(
                    form.score_class(predictions, at, "ap") if "ap" in form.class_metrics else None
                ),
                iou=(
                    form.score_class(predictions, at, "iou")
                    if "iou" in form.class_metrics
                    else None
                ),
            )
        )
    return scores


UNKNOWN_SCORE: Any = object()
"""What `score_class` returns where the predictions do not say."""
_OF_CLASS: dict[str, Callable[[int, int, int], float]] = {
    "accuracy": lambda hits, _, support: hits / support,
    "acc": lambda hits, _, support: hits / support,
    "recall": lambda hits, _, support: hits / support,
    "sensitivity": lambda hits, _, support: hits / support,
    "error": lambda hits, _, support: 1 - hits / support,
    "precision": lambda hits, predicted, _: hits / max(predicted, 1),
    "f1": lambda hits, predicted, support: 2 * hits / (predicted + support),
}
"""Metrics that one class has too: of its right predictions, its predictions, and its samples."""
_AVERAGES = ("macro", "micro", "weighted", "balanced", "mean", "score", "multiclass", "binary")
_LOSSES = ("loss", "nll", "crossentropy", "ce", "mse", "mae")


def _split_name(metric: str) -> list[str]:
    """Split the name of a metric into its words, without that of its split."""
    words = re.split(
        r"[^a-z0-9]+", metric.lower().replace("f1score", "f1").replace("f1-score", "f1")
    )
    return words[1:] if words[0] in ("train", "val", "valid", "validation", "test") else words


def _list_words(metric: str) -> list[str]:
    """List the words of a metric's name but for those of its split and of its average."""
    return [word for word in _split_name(metric) if word not in _AVERAGES]


def is_loss_name(metric: str) -> bool:
    """Return whether the name of a metric is that of a loss, which every sample has."""
    return any(word in _LOSSES for word in _split_name(metric))


def gives_score(computed: float, score: float) -> bool:
    """Return whether a metric that was computed from predictions is the logged score."""
    return math.isclose(computed, score, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE / 10)


def score_class(predictions: Predictions, number: int, metric: str, score: float) -> float | None:
    """Return the value that one class has of a metric.

    From the predictions for the samples of all classes, where they give the score of all.

    Args:
        predictions: For all samples.
        number: Of the class.
        metric: Name of the metric, such as ``test/f1`` or ``val/accuracy``.
        score: Value of the metric over all samples, as it was logged.

    Returns:
        As scikit-learn with ``average=None``; None where the class has no samples, and
        `UNKNOWN_SCORE` where the metric is none of a class, or no average of the classes' values is
        the score, as where the model decides by another threshold.
    """
    words = _list_words(metric)
    form = predictions.task.form
    counted = form.count_classes(predictions)
    if is_of_class(form, metric):
        return form.score_class(predictions, number, words[0])
    if counted is None or len(words) != 1 or words[0] not in _OF_CLASS:
        return cast("float | None", UNKNOWN_SCORE)
    compute = _OF_CLASS[words[0]]
    if not any(gives_score(each, score) for each in _average_classes(counted, compute)):
        return cast("float | None", UNKNOWN_SCORE)
    hits, predicted, support = (int(each[number]) for each in counted)
    return float(compute(hits, predicted, support)) if support else None


def _average_classes(
    counted: Sequence[NDArray[Any]], compute: Callable[[int, int, int], float]
) -> Iterator[float]:
    """Compute the usual averages of a metric over the classes.

    Those of scikit-learn and torchmetrics: of all samples together, by the samples of each class,
    over the classes that have samples, over those that have samples or predictions, over all, and
    of two classes either alone.

    Args:
        counted: Right predictions of each class, its predictions and its samples.
        compute: The metric of one class.
    """
    support = np.asarray(counted[2])
    if not support.any():
        return
    rows = np.stack(counted, axis=1).tolist()
    # of a class without samples nothing is right
    values = np.array([compute(*row) if row[2] else compute(0, row[1], 1) for row in rows])
    occurs = (support > 0) | (np.asarray(counted[1]) > 0)
    yield compute(*(int(each.sum()) for each in counted))
    yield float(np.average(values, weights=support))
    yield from (float(values[each].mean()) for each in (support > 0, occurs))
    yield float(values.mean())
    if len(values) == 2:
        yield from values.tolist()


def is_of_class(form: PredictionForm, metric: str) -> bool:
    """Return whether a metric is one that a class has too.

    Of the predictions for all samples: a `class_metrics`.
    """
    words = _list_words(metric)
    return len(words) == 1 and words[0] in form.class_metrics


def explain_class_metric(task: Task, metric: str, score: float | None = None) -> str | None:
    """Explain why the slices of a gate cannot be classes by a metric.

    None where they can, or it is not known.

    A sample of labels or masks has several classes, so that no sample is of one class alone, on
    which other metrics could be computed.

    Args:
        task: Of the model.
        metric: Name of the metric, such as ``test/pixel_accuracy``.
        score: Its logged value, where the predictions do not give it; None where that is not known.
    """
    words = _list_words(metric)
    own = task.form.class_metrics
    is_of_classes = len(words) == 1 and (words[0] in own or words[0] in _OF_CLASS)
    if not own or (is_of_classes and score is None):
        return None
    choices = [name for name in task.metrics if name in own or name in _OF_CLASS] or sorted(own)
    split = metric.replace("_", "/").partition("/")[0]
    named = " or ".join(f"--gate.metric={split}/{name}" for name in choices)
    if is_of_classes:
        return (
            f"gate.slices: {metric} was logged as {score:.4g}, and the predictions that the steps"
            " return give another value, so that those of one class are unknown. Log it of these"
            f" predictions, judge classes by {named}, or leave gate.slices out."
        )
    return (
        f"gate.slices: {metric} is of samples with all their"
        f" {'pixels' if task.form.has_masks else 'labels'}, and says nothing of one class. Judge"
        f" classes by {named}, or leave gate.slices out."
    )


def list_confusions(predictions: Predictions, num: int) -> list[tuple[str, str, int]]:
    """List the most frequent wrong predictions: label, predicted class, number of samples."""
    counts = confusion_counts(predictions)
    names = predictions.class_names
    wrong = counts - np.diag(counts.diagonal())
    found = []
    for cell in np.argsort(-wrong, axis=None, kind="stable")[:num].tolist():
        label, predicted = divmod(cell, len(names))
        if wrong[label, predicted]:
            found.append((names[label], names[predicted], int(wrong[label, predicted])))
    return found


def worst_errors(predictions: Predictions, num: int) -> NDArray[np.int64]:
    """Choose the predictions that are most wrong, the worst first.

    Returns:
        At most ``num`` positions in the arrays of ``predictions``.
    """
    errors = predictions.task.form.measure_errors(predictions)
    wrong = np.flatnonzero(errors != -np.inf)
    return wrong[np.argsort(-errors[wrong], kind="stable")[:num]]


def least_certain(predictions: Predictions, num: int) -> NDArray[np.int64]:
    """Choose the samples of least certain prediction: at most ``num`` positions in the arrays."""
    if "uncertain" not in predictions.task.report_blocks:
        return np.empty(0, np.int64)
    return np.argsort(predictions.task.form.measure_certainty(predictions), kind="stable")[:num]
