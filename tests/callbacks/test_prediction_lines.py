"""The prediction of a batch, divided into those of its samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from lightkit.callbacks.prediction_lines import split_samples, to_plain


class Boxes(NamedTuple):
    label: Any
    score: Any


@dataclass
class Parts:
    label: Any
    score: Any


LABELS = ["cat", "dog"]
SCORES = torch.tensor([0.5, 0.25])
NAMED = [{"label": "cat", "score": 0.5}, {"label": "dog", "score": 0.25}]


@pytest.mark.parametrize(
    ("prediction", "num_samples", "expected"),
    [
        ([1, "a"], 2, [1, "a"]),
        ([1, "a"], None, [1, "a"]),
        ([1, "a"], 3, None),
        (torch.tensor([[1, 2], [3, 4]]), 2, [[1, 2], [3, 4]]),
        (torch.tensor([[1, 2], [3, 4]]), 3, None),
        (torch.tensor(1), None, None),
        (np.array([1.5, 2.5]), 2, [1.5, 2.5]),
        (np.array(1.5), 1, None),
        ({"label": LABELS, "score": SCORES}, 2, NAMED),
        (Boxes(LABELS, SCORES), 2, NAMED),
        (Parts(LABELS, SCORES), None, NAMED),
        ({"label": LABELS, "score": SCORES}, 3, None),
        ({"label": LABELS, "score": SCORES[:1]}, 2, None),
        ({"label": LABELS, "loss": torch.tensor(0.5)}, 2, None),
        ({}, 0, None),
        ((LABELS, SCORES), 2, [["cat", 0.5], ["dog", 0.25]]),
        ((LABELS, SCORES), None, [["cat", 0.5], ["dog", 0.25]]),
        (({"a": 1}, {"a": 2}), 2, [{"a": 1}, {"a": 2}]),
        (("a", "b"), 2, ["a", "b"]),
        (("a", "b"), 3, None),
        (("a", "b"), None, None),
        ((), 0, []),
        ("ab", 2, None),
        (None, 2, None),
    ],
    ids=["list", "list of any length", "short list", "rows", "fewer rows", "number of torch",
         "array", "no array",
         "columns by name", "named tuple", "dataclass", "short columns", "unequal columns",
         "a number for the batch", "no column", "columns", "columns of any length",
         "tuple of samples", "tuple of texts", "short tuple", "tuple of any length", "empty tuple",
         "text", "nothing"],
)  # fmt: skip
def test_a_prediction_is_divided_where_it_has_a_part_for_each_sample(
    prediction: Any, num_samples: int | None, expected: list[Any] | None
) -> None:
    found = split_samples(prediction, num_samples)
    assert (None if found is None else to_plain(found)) == expected
