from __future__ import annotations

from types import SimpleNamespace

import pytest

from lightkit.errors import ConfigError
from lightkit.models.classes import check_class_names, check_same_classes, read_class_names


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (SimpleNamespace(class_names=["a", "b"]), ["a", "b"]),
        (SimpleNamespace(num_classes=3), ["0", "1", "2"]),
        (SimpleNamespace(class_names=None, num_classes=2), ["0", "1"]),
        (SimpleNamespace(class_names=[]), None),
        (None, None),
    ],
    ids=["names", "count", "no names but count", "empty", "no data"],
)
def test_classes_come_from_the_data(data: object, names: list[str] | None) -> None:
    assert read_class_names(data) == names


@pytest.mark.parametrize(
    ("names", "num_classes", "says"),
    [
        (["a"], None, "at least two classes; found 1: a"),
        (["a", "b", "a"], None, "found more than once: a"),
        (["a", "b"], 3, "num_classes is 3, and there are 2 classes: a, b"),
    ],
    ids=["one", "twice", "count"],
)
def test_names_that_cannot_be_are_refused(
    names: list[str], num_classes: int | None, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        check_class_names(names, num_classes)


@pytest.mark.parametrize(
    ("names", "current", "agreed"),
    [
        (["a", "b"], ["a", "b"], ["a", "b"]),
        (["0", "1"], ["a", "b"], ["a", "b"]),
        (["a", "b"], ["0", "1"], ["a", "b"]),
    ],
    ids=["same", "numbers then names", "names then numbers"],
)
def test_names_agree_with_numbers(names: list[str], current: list[str], agreed: list[str]) -> None:
    assert check_same_classes(names, current, by="the checkpoint") == agreed


@pytest.mark.parametrize(
    ("current", "says"),
    [
        (
            ["a", "c"],
            (
                r"The classes of the checkpoint are not those of the data: the checkpoint has 2"
                r" \(a, b\), the data"
            ),
        ),
        (["b", "a"], r"not those of the data, but in another order"),
        (["0", "1", "2"], r"the data 3 \(0, 1, 2\)"),
    ],
    ids=["other", "order", "count"],
)
def test_other_classes_are_refused(current: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_same_classes(["a", "b"], current, by="the checkpoint")
