"""Segmentation: the class of each pixel of a picture, as a mask."""

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

SHARE_COLUMN = "share_"
"""Beginning of a column of a table of predictions, with the share of a class in the pixels of an
image."""
_PICTURE_SIDE = 160  # pixels, of a mask that is kept for a report
_KEPT = 255  # a pixel of a kept mask that counts for nothing


class MaskForm(PredictionForm):
    """The pixels of each class in a picture.

    Those of the target, those of the prediction, and those of both.

    A prediction is ``(samples, classes, 2)``, pixels that are predicted and pixels that are right,
    and a target ``(samples, classes)``. Pixels without a class are in none of them.
    """

    in_graph_kind = "masks"
    has_masks = True
    has_decisions = True
    class_metrics = frozenset({"iou"})
    hub_task = ("image-segmentation", "Image Segmentation")

    def describe_targets(
        self, outputs: Sequence[int], targets: Sequence[int], *, are_whole: bool
    ) -> str | None:
        """Return what is expected in place of targets that are no mask of the outputs."""
        expected = (*outputs[:1], *outputs[2:])
        if are_whole and len(outputs) == 4 and tuple(targets) == expected:
            return None
        return f"a class a pixel, whole numbers of shape {expected}"

    def to_rows(self, values: Array) -> Array:
        """Return the masks, or the probabilities of each pixel, as they are."""
        return values

    def reduce(self, tensors: Mapping[str, Any], task: Task) -> tuple[dict[str, Any], int] | None:
        """Reduce ``logits`` and ``target`` to counts.

        They are ``(batch, classes, height, width)`` and ``(batch, height, width)``.
        """
        target = tensors["target"]
        logits = tensors.get("logits")
        if logits is None or logits.ndim != 4 or target.ndim != 3 or target.is_floating_point():
            return None
        num_classes = logits.shape[1]
        counts = count_pixels(logits.argmax(dim=1), target, num_classes)
        columns = {"target": counts[:, 0], "prediction": counts[:, 1:].transpose(1, 2)}
        return columns | {"counts": find_counted(tensors)}, num_classes

    def reduce_pictures(self, tensors: Mapping[str, Any]) -> tuple[Any, Any] | None:
        """Return how wrong each mask is, and target and prediction on a coarser grid.

        The grid is ``(batch, 2, rows, columns)``.
        """
        logits = tensors.get("logits")
        target = tensors["target"]
        if logits is None or logits.ndim != 4 or target.ndim != 3 or logits.shape[1] >= _KEPT:
            return None
        predicted = logits.argmax(dim=1)
        counts = count_pixels(predicted, target, logits.shape[1]).double()
        union = counts[:, 0] + counts[:, 1] - counts[:, 2]
        ious = counts[:, 2] / union.clamp(min=1)
        errors = 1 - ious.sum(dim=1) / (union > 0).sum(dim=1).clamp(min=1)
        is_class = (target >= 0) & (target < logits.shape[1])
        step = -(-max(target.shape[1:]) // _PICTURE_SIDE)
        pair = [target.where(is_class, target.new_full((), _KEPT)), predicted]
        return errors, _stack([each[:, ::step, ::step] for each in pair])

    def arrange(self, rows: Mapping[str, Array]) -> dict[str, Array]:
        """Return the counts as whole numbers; there are no probabilities."""
        none = np.empty(0, np.float32)
        return {
            "target": rows["target"].round().astype(np.int64),
            "prediction": rows["prediction"].round().astype(np.int64),
            "probability": none,
            "label_probability": none,
        }

    def to_columns(self, predictions: Recorded) -> dict[str, Any]:
        """Return ``iou``, and pixels of each class.

        In ``target_NAME``, ``predicted_NAME`` and ``right_NAME``.
        """
        columns: dict[str, Any] = {"iou": measure_images(_join(predictions))}
        for at, name in enumerate(predictions.class_names):
            columns[f"target_{name}"] = predictions.target[:, at]
            columns[f"predicted_{name}"] = predictions.prediction[:, at, 0]
            columns[f"right_{name}"] = predictions.prediction[:, at, 1]
        return columns

    def from_columns(self, table: Any, names: Sequence[str]) -> dict[str, Array]:
        """Read the counts of each class."""

        def read(prefix: str) -> Array:
            return np.stack([table[f"{prefix}_{name}"].to_numpy() for name in names], axis=1)

        none = np.empty(0, np.float32)
        prediction = np.stack([read("predicted"), read("right")], axis=2)
        return {
            "target": read("target"),
            "prediction": prediction,
            "probability": none,
            "label_probability": none,
        }

    def name_columns(self, names: Sequence[str], *, top_k: int) -> list[str]:
        """List ``mask``, the file, and ``share_NAME`` of each class, of the pixels of an image."""
        return ["mask", *(f"{SHARE_COLUMN}{name}" for name in names)]

    def rate_certainty(self, values: Array) -> float:
        """Return the mean probability of the class that is predicted of a pixel.

        0 of a mask alone.
        """
        return float(values.max(axis=0).mean()) if values.ndim == 3 else 0.0

    def list_labels(self, predictions: Recorded) -> list[Any]:
        """Return the number of pixels of each class, by name."""
        order = sorted(
            range(len(predictions.class_names)), key=lambda at: predictions.class_names[at]
        )
        return [row[order].tolist() for row in predictions.target]

    def describe(self, predictions: Recorded, value: Any) -> str:
        """Write the classes of a mask with their shares, the largest first."""
        pixels = value[:, 0] if value.ndim == 2 else value
        total = max(int(pixels.sum()), 1)
        order = [int(at) for at in np.argsort(-pixels, kind="stable") if pixels[at]]
        shares = [f"{predictions.class_names[at]} {pixels[at] / total:.0%}" for at in order[:4]]
        return ", ".join(shares) or "no pixel"

    def describe_certainty(self, predictions: Recorded, at: int) -> str:
        """Write the mean IoU of a sample."""
        return f"IoU {measure_images(_join(predictions)[at : at + 1])[0]:.3f}"

    def measure_errors(self, predictions: Recorded) -> Array:
        """Return 1 minus the mean IoU of each sample; minus infinity where each pixel is right."""
        errors = 1 - measure_images(_join(predictions))
        return np.where(errors > 0, errors, -np.inf)

    def list_statistics(
        self, predictions: Recorded, score: float
    ) -> dict[str, tuple[Array, Statistic]]:
        """List the mean IoU of all pixels, and two more figures.

        The mean over the samples of that of each, and the share of right pixels.
        """
        counts = _join(predictions)
        return {
            "iou": (counts, mean_iou),
            "image_iou": (measure_images(counts), np.mean),
            "pixel_accuracy": (counts, pixel_accuracy),
        }

    def measure(self, predictions: Recorded) -> Measure:
        """Compute the mean IoU, against that of the most frequent class for each pixel."""
        pixels = predictions.target.sum(axis=0)
        num = int((pixels > 0).sum())
        chance = float(pixels.max() / pixels.sum() / num) if num else None
        return Measure(_join(predictions), mean_iou, chance)

    def count_classes(self, predictions: Recorded) -> tuple[Array, Array, Array]:
        """Count the right pixels of each class, those predicted and of the targets."""
        predicted = predictions.prediction.sum(axis=0)
        return predicted[:, 1], predicted[:, 0], predictions.target.sum(axis=0)

    def find_samples(self, predictions: Recorded, number: int) -> NDArray[np.bool_]:
        """Return which samples have a pixel of this class."""
        return np.asarray(predictions.target[:, number] > 0)

    def score_class(self, predictions: Recorded, number: int, metric: str) -> float | None:
        """Return the IoU of a class over all pixels; None where it occurs nowhere."""
        iou = class_iou(_join(predictions)[:, number])
        return None if np.isnan(iou) else iou

    def list_class_statistic(self, predictions: Recorded, number: int) -> tuple[Array, Statistic]:
        """Return the pixels of a class in each sample, ``(samples, 3)``, and its IoU."""
        return _join(predictions)[:, number], class_iou

    def renumber(self, labels: Any, own: Sequence[str], known: Sequence[str]) -> Any:
        """Return the masks in the order of the model's classes.

        Pixels without a class stay as they are.
        """
        if labels.ndim != 3 or labels.is_floating_point():
            return None
        renumbered = labels.clone()
        for at, name in enumerate(own):
            renumbered[labels == at] = known.index(name)
        return renumbered


def count_pixels(predicted: Any, target: Any, num_classes: int) -> Any:
    """Count the pixels of each class, without waiting for the device.

    Args:
        predicted: Tensor of classes, ``(batch, height, width)``.
        target: Likewise; a number that is no class counts for nothing, nor does the prediction for
            it.
        num_classes: Number of classes.

    Returns:
        int64 ``(batch, 3, classes)``: pixels of the target, of the prediction, and of both.
    """
    batch = len(target)
    is_class = (target >= 0) & (target < num_classes)
    none = target.new_full((), num_classes)
    wanted = target.where(is_class, none).reshape(batch, -1)
    given = predicted.to(target.dtype).where(is_class, none).reshape(batch, -1)
    both = wanted.where(wanted == given, none)
    counts = wanted.new_zeros(3, batch, num_classes + 1).long()
    for at, classes in enumerate((wanted, given, both)):
        counts[at].scatter_add_(1, classes.long(), classes.new_ones(classes.shape).long())
    return counts[:, :, :num_classes].transpose(0, 1)


def _stack(pair: Sequence[Any]) -> Any:
    """Stack two tensors ``(batch, ...)`` to uint8 ``(batch, 2, ...)``."""
    first, second = (each.byte()[:, None] for each in pair)
    joined = first.repeat(1, 2, *[1] * (first.ndim - 2))
    joined[:, 1:] = second
    return joined


def _join(predictions: Recorded) -> Array:
    """Return the pixels of the target, of the prediction and of both: ``(samples, classes, 3)``."""
    return np.concatenate([predictions.target[:, :, None], predictions.prediction], axis=2)


def compute_ious(counts: Array) -> Array:
    """Compute the IoU of each class from counts ``(..., classes, 3)``.

    NaN where a class occurs nowhere.
    """
    target, predicted, both = (counts[..., at].astype(np.float64) for at in range(3))
    union = target + predicted - both
    return np.where(union > 0, both / np.maximum(union, 1), np.nan)


def class_iou(counts: Array) -> float:
    """Compute the IoU of a class from its pixels in all samples ``(samples, 3)``.

    NaN where it occurs nowhere.
    """
    return float(compute_ious(counts.sum(axis=0)[None])[0])


def mean_iou(counts: Array) -> float:
    """Compute the mean IoU over the classes that occur.

    From the pixels of all samples ``(samples, classes, 3)``.
    """
    ious = compute_ious(counts.sum(axis=0))
    known = ious[~np.isnan(ious)]
    return float(known.mean()) if len(known) else float("nan")


def measure_images(counts: Array) -> Array:
    """Compute the mean IoU of each sample over the classes that occur in it.

    1 where each of its pixels is ignored.
    """
    ious = compute_ious(counts)
    num = (~np.isnan(ious)).sum(axis=1)
    means = np.nansum(ious, axis=1) / np.maximum(num, 1)
    return np.asarray(np.where(num > 0, means, 1.0))


def pixel_accuracy(counts: Array) -> float:
    """Compute the share of the pixels that are right; NaN without pixels."""
    total = counts[..., 0].sum()
    return float(counts[..., 2].sum() / total) if total else float("nan")


register_form(MaskForm(), "mask_logits", "masks")
SEGMENTATION = Task(
    output_kind="mask_logits",
    metrics={"loss": "min", "iou": "max", "image_iou": "max", "pixel_accuracy": "max"},
    gate_metric="iou",
    report_blocks=frozenset({"classes"}),
    metric_classes={"masks": ("lightkit.models.mask_scores.MaskScores", {"num_classes": None})},
)
"""The class of each pixel, from the logits of each."""
MASKS = Task(
    output_kind="masks",
    metrics=SEGMENTATION.metrics,
    gate_metric=SEGMENTATION.gate_metric,
    report_blocks=SEGMENTATION.report_blocks,
)
"""The class of each pixel, as its number."""
