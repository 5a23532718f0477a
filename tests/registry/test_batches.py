"""Labels of batches in any form: found, numbered anew, and the samples of one class."""

from __future__ import annotations

from collections import UserDict, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from lightkit.registry.batches import (
    count_samples,
    find_labels,
    map_labels,
    replace_labels,
    take_samples,
)

Pair = namedtuple("Pair", "inputs labels")  # as people write them


@dataclass(frozen=True)
class Frozen:
    """A batch as a frozen dataclass."""

    x: Tensor
    target: Tensor


X, Y = torch.arange(8.0).reshape(4, 2), torch.tensor([2, 0, 1, 2])
FORMS: dict[str, Any] = {
    "tuple": (X, Y),
    "list": [X, Y],
    "named tuple": Pair(X, Y),
    "mapping": {"y": Y, "x": X, "path": ["a", "b", "c", "d"], "meta": {"size": X[:, :1]}},
    "mapping of Hugging Face": UserDict({"pixel_values": X, "labels": Y}),
    "dataclass": Frozen(X, Y),
    "object": SimpleNamespace(image=X, label=Y, note="one"),
}
forms = pytest.mark.parametrize("batch", FORMS.values(), ids=FORMS.keys())


IMAGES = [torch.zeros(3, 5, 7), torch.zeros(3, 6, 4)]
TARGETS = [{"boxes": torch.zeros(4, 4)}, {"boxes": torch.zeros(0, 4)}]


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ((IMAGES, TARGETS), 2),
        ([*TARGETS, {}], 3),
        ((SimpleNamespace(tensors=torch.zeros(2, 3, 4, 4)), TARGETS), 2),
        ((X, [{"name": "a"}] * 4), 4),
        (((X, X), Y), 4),
    ],
    ids=["lists of a detector", "mappings", "nested tensor", "tensor and mappings", "two inputs"],
)
def test_samples_of_unequal_size_are_counted_by_their_mappings(batch: Any, expected: int) -> None:
    assert count_samples(batch) == expected


@forms
def test_labels_are_found_and_replaced_in_each_form(batch: Any) -> None:
    assert find_labels(batch) is Y
    renumbered = replace_labels(batch, Y + 1)
    assert type(renumbered) is type(batch)
    assert find_labels(renumbered).tolist() == [3, 1, 2, 3]  # type: ignore[union-attr]
    assert find_labels(batch) is Y  # the batch itself is left alone
    assert count_samples(renumbered) == 4


@forms
def test_samples_of_one_class_are_taken_with_all_their_parts(batch: Any) -> None:
    taken = take_samples(batch, Y == 2)
    assert type(taken) is type(batch)
    assert find_labels(taken).tolist() == [2, 2]  # type: ignore[union-attr]
    if isinstance(batch, dict):
        assert taken["path"] == ["a", "d"]
        assert taken["meta"]["size"].tolist() == [[0.0], [6.0]]
    parts = vars(taken) if hasattr(taken, "note") else {}
    assert parts.get("note", "one") == "one"


@pytest.mark.parametrize(
    "batch",
    [X, {"x": X, "z": Y}, {"label": Y, "target": Y}, (X, {"labels": Y}), [X]],
    ids=["tensor", "no name", "two names", "nested", "inputs alone"],
)
def test_labels_that_cannot_be_told_are_none(batch: Any) -> None:
    assert find_labels(batch) is None


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (torch.tensor([0, 1, 2]), [2, 0, 1]),
        (torch.tensor([0, -100, 255]), [2, -100, 255]),
        (torch.tensor([[[0, 1], [2, 255]]], dtype=torch.uint8), [[[2, 0], [1, 255]]]),
        (torch.tensor([[1.0, 0.0, 0.5]]), [[0.0, 0.5, 1.0]]),
        (torch.tensor([[1, 0, 1]]), None),
        (torch.tensor([0.5, 1.5]), None),
        (torch.tensor([True, False]), None),
    ],
    ids=["classes", "ignored", "mask", "several labels", "columns or classes", "values", "truth"],
)
def test_labels_are_numbered_anew_where_they_are_of_classes(labels: Tensor, expected: Any) -> None:
    renumbered = map_labels(labels, [2, 0, 1])
    assert (None if renumbered is None else renumbered.tolist()) == expected
    assert renumbered is None or renumbered.dtype == labels.dtype
