"""`lightkit init --data` knows texts from other tables, whatever their columns are called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lightkit.cli.starter import find_table
from lightkit.cli.starter_texts import find_texts


def write(path: Path, **columns: list[object]) -> Path:
    rows = [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


TEXTS: list[object] = [f"a review of {at} fine words" for at in range(40)]
MOODS: list[object] = ["good", "bad"] * 20


@pytest.mark.parametrize(
    "names", [("text", "label"), ("text", "sentiment"), ("mood", "review")], ids=str
)
def test_a_text_and_a_class_are_found_whatever_they_are_called(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    is_swapped = names == ("mood", "review")
    columns = dict(zip(names, (MOODS, TEXTS) if is_swapped else (TEXTS, MOODS), strict=True))
    path = write(tmp_path / "notes.jsonl", **columns)
    found = find_texts(path, find_table(path))
    assert found is not None
    expected = names[::-1] if is_swapped else names
    assert found.arguments == {"text": expected[0], "label": expected[1]}
    assert found.classes.counts == {"bad": 20, "good": 20}


@pytest.mark.parametrize(
    "columns",
    [
        {"text": TEXTS, "price": [at / 7 for at in range(40)]},
        {"kind": MOODS, "size": [*range(40)]},
        {"text": TEXTS, "mood": MOODS, "size": [*range(40)]},
    ],
    ids=["text and values", "category and numbers", "more columns"],
)
def test_other_tables_are_no_texts(tmp_path: Path, columns: dict[str, list[object]]) -> None:
    path = write(tmp_path / "table.jsonl", **columns)
    assert find_texts(path, find_table(path)) is None
