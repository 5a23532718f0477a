"""The columns of a table of texts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from lightkit.errors import DataError
from lightkit.rows.text_table import TextColumns


def find(types: dict[str, pa.DataType], **given: Any) -> TextColumns:
    table: Any = SimpleNamespace(place="t.csv", types=types, names=[*types])
    return TextColumns(**given).find(table)


TEXT = pa.string()
NUMBER = pa.int64()


@pytest.mark.parametrize(
    ("types", "given", "expected"),
    [
        (
            {"Review": TEXT, "Category": TEXT, "id": NUMBER},
            {},
            TextColumns("Review", "Category", None),
        ),
        ({"a": TEXT, "label": NUMBER, "split": TEXT}, {}, TextColumns("a", "label", "split")),
        (
            {"a": pa.dictionary(pa.int32(), TEXT), "label": TEXT},
            {},
            TextColumns("a", "label", None),
        ),
        ({"title": TEXT, "text": TEXT, "label": TEXT}, {}, TextColumns("text", "label", None)),
        (
            {"a": TEXT, "b": TEXT, "c": TEXT},
            {"label": ["b"], "key": "c"},
            TextColumns("a", ["b"], None, "c"),
        ),
        (
            {"a": TEXT, "split": TEXT},
            {"label": "a", "split": None},
            TextColumns("split", "a", None),
        ),
        (
            {"a": TEXT, "b": TEXT},
            {"text": "a", "label": "b", "weight": "b"},
            TextColumns("a", "b", None, None, "b"),
        ),
    ],
    ids=[
        "usual names",
        "split and the only text",
        "dictionary",
        "the first of two",
        "what is left",
        "no split",
        "named",
    ],
)
def test_columns_are_found_by_usual_names_or_are_the_only_ones_left(
    types: dict[str, pa.DataType], given: dict[str, Any], expected: TextColumns
) -> None:
    assert find(types, **given) == expected


@pytest.mark.parametrize(
    ("types", "given", "says"),
    [
        (
            {"a": TEXT, "b": TEXT, "label": TEXT},
            {},
            r"^t\.csv: none of its columns is named text, .*\.text\.$",
        ),
        ({"a": NUMBER, "label": TEXT}, {}, r"^t\.csv: none of its columns is named text, "),
        ({"a": TEXT}, {}, r"^t\.csv: none of its columns is named label, .*init_args\.label\.$"),
        (
            {"a": TEXT, "b": TEXT},
            {"label": ["b", "c"]},
            r"^data\.init_args\.label: t\.csv: .* no column 'c'",
        ),
        (
            {"a": TEXT, "b": TEXT},
            {"label": "b", "key": "c"},
            r"^data\.init_args\.key: t\.csv: the table has no column",
        ),
        (
            {"a": TEXT, "b": TEXT},
            {"label": "b", "split": "c"},
            r"^data\.init_args\.split: t\.csv: the table has no",
        ),
        (
            {"a": TEXT, "b": TEXT},
            {"label": "b", "text": "c", "key": "d"},
            r"^data\.init_args\.text: .*no column 'c'",
        ),
    ],
    ids=[
        "two texts",
        "no text",
        "no label",
        "one of several labels",
        "key",
        "split",
        "the text first",
    ],
)
def test_a_column_that_is_missing_is_reported_by_its_argument(
    types: dict[str, pa.DataType], given: dict[str, Any], says: str
) -> None:
    with pytest.raises(DataError, match=says):
        find(types, **given)
