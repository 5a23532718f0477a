"""Numbers of outputs and of predictions as NumPy arrays, and the statistics of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Statistic = Callable[[Array], float]
"""Function of ``(samples, ...)``."""
TOLERANCE = 0.01
"""How far half precision may move a probability out of 0 to 1, and the sum of those of all classes
from 1."""


def as_floats(values: Array) -> Array:
    """Convert numbers to float32.

    Convert float64 and whole numbers, which float32 would round, to float64.
    """
    is_wide = values.dtype == np.float64 or values.dtype.kind in "iu"
    return values.astype(np.float64 if is_wide else np.float32, copy=False)


def sigmoid(values: Array) -> Array:
    """Compute the logistic function, without an overflow for large values."""
    with np.errstate(over="ignore"):
        small = np.exp(-np.abs(values))
    return np.where(values >= 0, 1 / (1 + small), small / (1 + small)).astype(
        values.dtype, copy=False
    )


def find_improbable(values: Array) -> NDArray[np.bool_]:
    """Find the rows with a number that is no probability: below 0, above 1, NaN or infinite.

    Args:
        values: ``(rows, numbers)``.

    Returns:
        Bool ``(rows,)``.
    """
    is_probability = (values >= -TOLERANCE) & (values <= 1 + TOLERANCE)  # NaN is neither
    return np.asarray(~is_probability.all(axis=1))
