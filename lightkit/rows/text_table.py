"""Texts in a table: which column has them, and which has their labels, splits and weights."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lightkit.errors import DataError, join_names
from lightkit.images.label_table import LABEL_COLUMNS
from lightkit.rows.reader import JSON_SUFFIXES, RowBatch, RowTable, open_rows
from lightkit.rows.values import is_text, missing_column, plain
from lightkit.texts.text_rows import TextRow

TEXT_COLUMNS = (
    *("text", "texts", "content", "body", "sentence", "document", "article", "message", "review", "comment", "tweet"),
    *("title", "description"),
)
"""Columns of texts; the first that a table has."""
_AUTO = "auto"


@dataclass(frozen=True)
class TextColumns:
    """Columns of a table of texts, as a config names them.

    Args:
        text: Of the texts; ``auto`` is the first of `TEXT_COLUMNS`, or the only one that is left.
        label: Of the labels, or several of 0 and 1; ``auto`` is the first of `LABEL_COLUMNS`.
        split: Of the splits; ``auto`` is a column ``split`` where there is one, None none.
        key: Of what decides the split; None for the text.
        weight: Of the weights; None for none.
    """

    text: str = _AUTO
    label: str | Sequence[str] = _AUTO
    split: str | None = _AUTO
    key: str | None = None
    weight: str | None = None

    def find(self, table: RowTable) -> TextColumns:
        """Return the names of the columns of a table.

        Raises:
            DataError: If there is no such column.
        """
        names = table.names
        label = self.label
        if label == _AUTO:
            label = _find_usual(names, LABEL_COLUMNS) or _refuse(table.place, "label", LABEL_COLUMNS, names)
        split = self.split
        if split == _AUTO:
            split = "split" if "split" in names else None
        others = [*([label] if isinstance(label, str) else label), split, self.key, self.weight]
        text = self.text
        if text == _AUTO:
            left = [name for name in names if name not in others and _holds_texts(table, name)]
            text = _find_usual(left, TEXT_COLUMNS) or (left[0] if len(left) == 1 else "")
            text = text or _refuse(table.place, "text", TEXT_COLUMNS, names)
        for name in (text, *others):
            if name is not None and name not in names:
                raise DataError(f"{table.place}: {missing_column(name, names)}")
        return TextColumns(text, label, split, self.key, self.weight)

    @property
    def labels(self) -> list[str]:
        """Columns of the labels."""
        return [self.label] if isinstance(self.label, str) else list(self.label)


def _find_usual(names: Sequence[str], usual: Sequence[str]) -> str | None:
    by_name = {name.lower(): name for name in reversed(names)}
    return next((by_name[name] for name in usual if name in by_name), None)


def _holds_texts(table: RowTable, name: str) -> bool:
    kind = table.types[name]
    return is_text(kind.value_type if pa.types.is_dictionary(kind) else kind)


def _refuse(place: str, argument: str, usual: Sequence[str], names: Sequence[str]) -> str:
    raise DataError(
        f"{place}: none of its columns is named {', '.join(usual)}; it has {join_names(list(names), most=12)}. Name "
        f"the column in data.init_args.{argument}."
    )


def read_text_table(place: str, columns: TextColumns) -> tuple[str, Iterator[TextRow]]:
    """Open a table of texts.

    Args:
        place: The table, see `open_rows`.
        columns: As a config names them.

    Returns:
        The name of the column of texts, and the rows.

    Raises:
        DataError: If it cannot be read, or lacks a column.
    """
    table = open_rows(place)
    found = columns.find(table)
    return found.text, _iterate_rows(table, found)


def _iterate_rows(table: RowTable, columns: TextColumns) -> Iterator[TextRow]:
    names = [columns.text, *columns.labels, columns.split, columns.key, columns.weight]
    wanted = list(dict.fromkeys(name for name in names if name is not None))
    for batch in table.read(wanted, with_lines=True):
        yield from _convert_batch(batch, columns)


def _convert_batch(batch: RowBatch, columns: TextColumns) -> Iterator[TextRow]:
    cells = {name: plain(column).to_pylist() for name, column in zip(batch.rows.schema.names, batch.rows, strict=True)}
    has_json = batch.file.name.lower().endswith(JSON_SUFFIXES)
    has_marks = not isinstance(columns.label, str)
    for at, place in enumerate(batch.name_rows()):
        label: Any = {name: cells[name][at] for name in columns.labels}
        if not has_marks:
            label = label[columns.labels[0]]
            label = _parse_list(label) if has_json else label
        text = cells[columns.text][at]
        yield TextRow(
            place,
            None if text is None else str(text),
            label,
            None if columns.split is None else str(cells[columns.split][at]),
            None if columns.weight is None else _cell(cells[columns.weight][at]),
            None if columns.key is None else _cell(cells[columns.key][at]),
        )


def _cell(value: Any) -> Any:
    """Return a cell, of which a missing one is no absent column."""
    return "" if value is None else value


def _parse_list(cell: Any) -> Any:
    """Return the list of a cell of JSON lines, which come as texts."""
    if isinstance(cell, str) and cell.startswith("["):
        with suppress(ValueError):
            return json.loads(cell)
    return cell
