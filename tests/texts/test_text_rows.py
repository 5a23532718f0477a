"""Rows of texts: labels, splits, copies and what is wrong with a row, each with its place."""

from __future__ import annotations

import hashlib
import logging
import math
from typing import Any

import pytest

from lightkit.errors import DataError
from lightkit.images.splits import name_label
from lightkit.texts.text_rows import TextRow, index_texts


def rows_of(*rows: tuple[Any, ...]) -> list[TextRow]:
    return [TextRow(f"t.csv, line {at}", *row) for at, row in enumerate(rows, start=2)]


def index(rows: list[TextRow], **options: Any) -> Any:
    given = {"root": "t.csv", "val_fraction": 0.0, "test_fraction": 0.0, **options}
    return index_texts(rows, **given)


SPLIT = rows_of(
    ("good", "b", "train"),
    ("bad", "a", "Training"),
    ("fine", "b", "valid"),
    ("poor", "a", "test"),
    ("poor", "a", "dev"),
)


def test_rows_are_sorted_into_classes_and_the_splits_that_are_named() -> None:
    found = index(SPLIT)
    assert found.class_names == ["a", "b"]
    assert {split: numbers.tolist() for split, numbers in found.splits.items()} == {
        "train": [0, 1], "val": [2, 4], "test": [3],
    }  # fmt: skip
    assert found.targets.tolist() == [1, 0, 1, 0, 0]
    assert found.texts.to_pylist() == ["good", "bad", "fine", "poor", "poor"]
    assert found.places[3].as_py() == "t.csv, line 5"
    assert found.lengths.tolist() == [4, 3, 4, 4, 4]


def test_a_hash_divides_texts_and_copies_go_the_same_way() -> None:
    rows = rows_of(*[(f"text {at % 300}", "ab"[at % 2]) for at in range(600)])
    found = index(rows, val_fraction=0.2, test_fraction=0.1)
    assert sum(found.counts.values()) == 600
    assert 60 < found.counts["val"] < 180
    assert 20 < found.counts["test"] < 110
    owner = {int(number): split for split, numbers in found.splits.items() for number in numbers}
    assert all(owner[at] == owner[at + 300] for at in range(300))
    again = index(rows[::-1], val_fraction=0.2, test_fraction=0.1)
    assert (again.counts, again.fingerprint) == (found.counts, found.fingerprint)
    spaced = [row._replace(text=f"  {row.text}\n".replace(" ", "\t ")) for row in rows]
    assert index(spaced, val_fraction=0.2, test_fraction=0.1).counts == found.counts


def test_rows_with_one_key_are_in_one_split() -> None:
    rows = [
        row._replace(key=at % 20)
        for at, row in enumerate(rows_of(*[(f"text {at}", "ab"[at % 2]) for at in range(400)]))
    ]
    found = index(rows, val_fraction=0.3, test_fraction=0.2)
    owners = [{at % 20 for at in numbers.tolist()} for numbers in found.splits.values()]
    assert all(owners)
    assert sum(map(len, owners)) == 20


def test_copies_in_several_splits_and_with_several_labels_are_found(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rows = rows_of(
        ("same", "a", "train"),
        ("same ", "a", "test"),
        ("twice", "a", "train"),
        ("twice", "b", "train"),
        ("x", "b", "val"),
    )
    with caplog.at_level(logging.WARNING):
        found = index(rows)
    assert "1 text is in more than one split" in caplog.text
    assert "t.csv, line 2 = t.csv, line 3" in caplog.text
    assert "with different labels" in caplog.text
    assert "t.csv, line 4 = t.csv, line 5" in caplog.text
    assert found.num_dropped == 0
    dropped = index(rows, copies="drop")
    assert {split: numbers.tolist() for split, numbers in dropped.splits.items()} == {
        "train": [2], "val": [4], "test": [1],
    }  # fmt: skip
    assert dropped.num_dropped == 2


def test_several_labels_are_a_list_a_cell_with_a_separator_or_columns_of_marks() -> None:
    by_list = index(rows_of(("x", ["b", "a"]), ("y", []), ("z", ["b"])))
    by_cell = index(rows_of(("x", "b|a"), ("y", ""), ("z", " b |")), separator="|")
    by_marks = index(
        rows_of(
            ("x", {"a": 1, "b": "1"}), ("y", {"a": 0, "b": "false"}), ("z", {"a": "0", "b": True})
        )
    )
    for found in (by_list, by_cell, by_marks):
        assert found.is_multilabel
        assert found.class_names == ["a", "b"]
        assert found.targets.tolist() == [[1, 1], [0, 0], [0, 1]]


@pytest.mark.parametrize(
    ("cell", "name"),
    [
        (1, "1"),
        (1.0, "1"),
        (1.5, "1.5"),
        (True, "true"),
        (" a ", "a"),
        (None, ""),
        (math.nan, ""),
        ("NaN", ""),
    ],
    ids=str,
)
def test_a_label_is_named_by_its_cell(cell: object, name: str) -> None:
    assert name_label(cell) == name


def test_classes_that_are_numbers_are_in_their_order() -> None:
    assert index(rows_of(("x", 10), ("y", 9.0), ("z", "2"))).class_names == ["2", "9", "10"]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([], r"t\.csv: there are no texts"),
        (rows_of(("x", "a"), ("y", math.nan)), r"t\.csv, line 3: there is no label \(nan\)"),
        (rows_of(("x", "a"), ("y", None)), r"line 3: there is no label"),
        (rows_of(("x", {"a": 1}), ("y", {"a": 2})), r"line 3: column 'a' has 2, expected 0 or 1"),
        (
            rows_of(("x", "a", "train"), ("y", "a", "tset")),
            r"line 3: .*'tset'; expected train, val or test",
        ),
        (rows_of(("x", "a", "val"), ("y", "a", "test")), r"no text is in the train split"),
        (
            rows_of(("x", "sport", "train"), ("y", "sprot", "test")),
            r"line 3: the label 'sprot' is no class.*did you mean",
        ),
        (
            rows_of(("x", "1"), ("y", "1.0"), ("z", "2")),
            r"t\.csv: the column of labels has the classes '1' and '1\.0'",
        ),
        (
            rows_of(("x", "a", None, -1.0)),
            r"line 2: the weight is -1\.0; expected a number of 0 or more",
        ),
        (rows_of(("x", "a", None, "heavy")), r"line 2: the weight is 'heavy'"),
    ],
    ids=[
        *("no rows", "nan", "null", "mark", "split", "no train", "class", "spelling"),
        *("negative", "no number"),
    ],
)
def test_what_is_wrong_with_a_row_is_reported_with_its_place(
    rows: list[TextRow], says: str
) -> None:
    with pytest.raises(DataError, match=says):
        index(rows)


def test_few_texts_leave_no_split_empty_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DataError, match=r"the (val|test) split is empty.*val_fraction"):
        index(rows_of(("x", "a"), ("y", "b")), val_fraction=0.1, test_fraction=0.1)


def test_a_class_that_would_be_held_out_keeps_a_text_to_train_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    texts = [f"text {at}" for at in range(200)]
    digests = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
    held_out = next(at for at, digest in enumerate(digests) if int(digest[:2], 16) < 64)
    rows = rows_of(
        *[(text, "rare" if at == held_out else "often") for at, text in enumerate(texts)]
    )
    with caplog.at_level(logging.WARNING):
        found = index(rows, val_fraction=0.5)
    assert "all texts of rare are held out" in caplog.text
    assert held_out in found.splits["train"]


def test_empty_texts_are_counted_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = index(rows_of(("x", "a"), (None, "b"), (" \n", "b")))
    assert "2 of 3 texts are empty" in caplog.text
    assert "line 3" in caplog.text
    assert found.texts.to_pylist() == ["x", "", " \n"]


def test_half_a_surrogate_pair_is_a_replacement_character() -> None:
    assert index(rows_of(("x\ud800y \ud83d\ude00", "a"))).texts.to_pylist() == ["x\ufffdy 😀"]
