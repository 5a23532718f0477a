"""Regression: numbers in the units of the target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lightkit.task.arrays import Array, Statistic
from lightkit.task.interface import (
    Measure,
    PredictionForm,
    Recorded,
    Task,
    find_counted,
    register_form,
)

_TOLERANCE = 1e-3  # relative: scores are sums of float32


class ValueForm(PredictionForm):
    """Numbers, of which one a sample is recorded."""

    in_graph_kind = "values"
    own_units = frozenset({"loss"})

    def describe_targets(
        self, outputs: Sequence[int], targets: Sequence[int], *, are_whole: bool
    ) -> str | None:
        """Return the shape that is expected where the targets have another."""
        return None if tuple(outputs) == tuple(targets) else str(tuple(outputs))

    def reduce(self, tensors: Mapping[str, Any], task: Task) -> tuple[dict[str, Any], int] | None:
        """Reduce ``prediction`` and ``target``, ``(batch,)`` or ``(batch, 1)``.

        None of several outputs.
        """
        target = tensors["target"]
        prediction = tensors.get("prediction")
        if prediction is None or target.numel() != len(target) or prediction.numel() != len(target):
            return None
        names = {str(each.dtype) for each in (target, prediction)}
        wide = "double" if "torch.float64" in names else "float"
        none = target.new_zeros(len(target)).float()
        columns = {
            "target": getattr(target.flatten(), wide)(),
            "prediction": getattr(prediction.flatten(), wide)(),
        }
        return (
            columns
            | {"probability": none, "label_probability": none, "counts": find_counted(tensors)},
            0,
        )

    def arrange(self, rows: Mapping[str, Array]) -> dict[str, Array]:
        """Return targets and predictions; there are no probabilities."""
        return {
            "target": rows["target"],
            "prediction": rows["prediction"],
            "probability": rows["probability"][:0],
            "label_probability": rows["label_probability"][:0],
        }

    def to_columns(self, predictions: Recorded) -> dict[str, Any]:
        """Return the columns ``target`` and ``prediction``."""
        return {"target": predictions.target, "prediction": predictions.prediction}

    def from_columns(self, table: Any, names: Sequence[str]) -> dict[str, Array]:
        """Read the columns ``target`` and ``prediction``."""
        none = np.empty(0, np.float32)
        return {
            "target": table["target"].to_numpy(),
            "prediction": table["prediction"].to_numpy(),
            "probability": none,
            "label_probability": none,
        }

    def measure_errors(self, predictions: Recorded) -> Array:
        """Return the absolute errors, infinite where one is NaN."""
        return np.nan_to_num(_measure_distances(predictions), nan=np.inf)

    def list_statistics(
        self, predictions: Recorded, score: float
    ) -> dict[str, tuple[Array, Statistic]]:
        """List mean absolute and mean squared error.

        A loss is the one of the two that it equals.
        """
        errors = _measure_distances(predictions)
        known: dict[str, tuple[Array, Statistic]] = {
            "mae": (errors, np.mean),
            "mse": (errors**2, np.mean),
        }
        is_absolute = math.isclose(errors.mean(), score, rel_tol=_TOLERANCE)
        known["loss"] = known["mae" if is_absolute else "mse"]
        return known

    def measure(self, predictions: Recorded) -> Measure:
        """Compute the mean absolute error, against that of the median of the targets."""
        target = predictions.target
        chance = float(np.abs(target - np.median(target)).mean())
        return Measure(np.abs(predictions.prediction - target), np.mean, chance)


def _measure_distances(predictions: Recorded) -> Array:
    return np.asarray(np.abs(predictions.prediction.astype(float) - predictions.target))


register_form(ValueForm(), "values")
REGRESSION = Task(
    output_kind="values",
    loss="mse_loss",
    metrics={"loss": "min", "mae": "min", "mse": "min"},
    gate_metric="mae",
    report_blocks=frozenset({"scatter"}),
    metric_classes={
        "mae": ("torchmetrics.regression.MeanAbsoluteError", {}),
        "mse": ("torchmetrics.regression.MeanSquaredError", {}),
    },
)
"""Numbers."""
