"""One image and what a model made of it, and the columns in which that is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightkit.errors import DataError

__all__ = ["DEFAULT_TOP_K", "Columns", "Prediction"]

DEFAULT_TOP_K = 3
"""How many classes are told of each image, where there are as many."""
Values = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Prediction:
    """What became of one image.

    Args:
        index: Its place among all that were asked about, from 0.
        path: As it was named.
        values: float32 ``(num_classes,)``: the probability of each class, or the outputs of a model without classes.
            None where there are none.
        defect: Why there are none; None where all is well.
    """

    index: int
    path: str
    values: Values | None
    defect: str | None

    @property
    def certainty(self) -> float:
        """The probability of the likeliest class."""
        return 0.0 if self.values is None or not self.values.size else float(self.values.max())


class Columns:
    """The columns of a table of predictions: the same in each format, with the same names.

    A classifier has ``path``, ``label`` and ``probability`` of the likeliest class, ``label_2`` and ``probability_2``
    of the next, and so on; any other model ``path`` and ``prediction_0``, ``prediction_1``, ... Last comes ``error``,
    which says why a row has nothing else.

    Args:
        class_names: In the order of the values; None for a model without classes.
        top_k: How many classes are told; `DEFAULT_TOP_K` if None. More than there are means all.
        num_values: Outputs of a model without classes.
    """

    def __init__(self, class_names: Sequence[str] | None, top_k: int | None = None, num_values: int = 0) -> None:
        self.class_names = None if class_names is None else tuple(class_names)
        self._num_ranks = min(top_k or DEFAULT_TOP_K, len(self.class_names or ()))
        self._num_values = num_values

    @property
    def names(self) -> list[str]:
        """Names of all columns, in order."""
        if self.class_names is None:
            return ["path", *self.numbers, "error"]
        pairs = zip(self.texts, self.numbers, strict=True)
        return ["path", *(name for pair in pairs for name in pair), "error"]

    @property
    def texts(self) -> list[str]:
        """Names of those with classes' names."""
        return [f"label{_nth(rank)}" for rank in range(self._num_ranks)]

    @property
    def numbers(self) -> list[str]:
        """Names of those with numbers, float32."""
        if self.class_names is None:
            return [f"prediction_{at}" for at in range(self._num_values)]
        return [f"probability{_nth(rank)}" for rank in range(self._num_ranks)]

    def row(self, prediction: Prediction) -> list[Any]:
        """Give the cells of a row: texts, float32, and None where there is nothing.

        Raises:
            DataError: If there are more or fewer values than classes, or than for the images before.
        """
        path, defect = _sound(prediction.path), prediction.defect and _sound(prediction.defect)
        if prediction.values is None:
            return [path, *[None] * (len(self.names) - 2), defect]
        return [path, *self._cells(prediction.values, path), defect]

    def ranked(self, values: Values) -> list[tuple[str, np.float32]]:
        """Give the likeliest classes with their probabilities, likeliest first; of equals, the first class first."""
        assert self.class_names is not None
        order = np.argsort(-values, kind="stable")[: self._num_ranks]
        return [(self.class_names[at], values[at]) for at in order]

    def _cells(self, values: Values, path: str) -> list[Any]:
        expected = self._num_values if self.class_names is None else len(self.class_names)
        if values.shape != (expected,):
            what = (
                f"it gives {expected} for other images" if self.class_names is None else f"there are {expected} classes"
            )
            raise DataError(
                f"{path}: the model gives {values.size} values, and {what}. Expected as many for each image."
            )
        if self.class_names is None:
            return list(values)
        return [cell for pair in self.ranked(values) for cell in pair]


def _nth(rank: int) -> str:
    return f"_{rank + 1}" if rank else ""


def _sound(text: str) -> str:
    """Write bytes of a file's name that are no text as escape sequences, so that every reader takes the table."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
