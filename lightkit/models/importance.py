"""Permutation importance of the columns of a table.

How much worse a model is where one column is shuffled.

L. Breiman, "Random Forests", Machine Learning 45, 2001, section 10, on samples that the model was
not trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightkit.rows.table import TablePreprocessing

MOST_ROWS = 2000
_NUM_SHUFFLES = 3


def measure_importance(
    predict: Callable[[Sequence[Tensor]], Tensor],
    inputs: Sequence[Tensor],
    target: Tensor,
    preprocessing: TablePreprocessing,
) -> dict[str, Any]:
    """Measure how much the metric of a model falls where a column is shuffled.

    Args:
        predict: The model: from its inputs to logits ``(rows, classes)`` or values ``(rows, 1)``.
        inputs: Of some rows.
        target: Classes ``(rows,)`` or values ``(rows, 1)``.
        preprocessing: Of the rows.

    Returns:
        ``metric``, its ``value``, ``num_rows``, and ``columns`` by falling importance: ``name``,
        ``importance``, by how much the metric is worse in the mean of the shuffles, and its
        standard deviation ``std``.
    """
    is_class = not target.is_floating_point()
    metric = "accuracy" if is_class else "mae"
    sign = 1 if is_class else -1

    def score(parts: Sequence[Tensor]) -> float:
        with torch.no_grad():
            outputs = predict(parts)
        if is_class:
            return float((outputs.argmax(dim=1) == target).double().mean())
        return float((outputs - target).double().abs().mean())

    base = score(inputs)
    generator = torch.Generator().manual_seed(0)
    columns = []
    for name, places in list_places(preprocessing).items():
        differences = []
        for _ in range(_NUM_SHUFFLES):
            order = torch.randperm(len(target), generator=generator).to(target.device)
            parts = [each.clone() for each in inputs]
            for number, at in places.items():
                parts[number][:, at] = parts[number][order][:, at]
            differences.append(sign * (base - score(parts)))
        importance = float(np.mean(differences))
        columns.append({"name": name, "importance": importance, "std": float(np.std(differences))})
    columns.sort(key=lambda each: -float(str(each["importance"])))
    return {"metric": metric, "value": base, "num_rows": len(target), "columns": columns}


def list_places(preprocessing: TablePreprocessing) -> Mapping[str, dict[int, list[int]]]:
    """Return the places of each column.

    The numbers of the input that it has, by the number of the input.
    """
    places: dict[str, dict[int, list[int]]] = {}
    for at, feature in enumerate(preprocessing.feature_columns):
        places.setdefault(feature, {}).setdefault(0, []).append(at)
    number = 1 if preprocessing.numbers or preprocessing.dates else 0
    for at, category in enumerate(preprocessing.categories):
        places[category.name] = {number: [at]}
    return places
