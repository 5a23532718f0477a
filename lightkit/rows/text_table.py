"""Texts in a table or a folder.

Which column has them, which their labels, splits and weights, and their index.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from lightkit.errors import DataError, join_names
from lightkit.images.label_table import LABEL_COLUMNS, find_usual
from lightkit.rows.parquet_table import is_remote
from lightkit.rows.reader import RowBatch, RowTable, is_json, open_rows
from lightkit.rows.values import is_text, missing_column, plain
from lightkit.texts.text_files import is_text_folder, read_folder
from lightkit.texts.text_rows import Copies, TextIndex, TextRow, index_texts

TEXT_COLUMNS = (
    *("text", "texts", "content", "body", "sentence", "document", "article", "message", "review"),
    *("comment", "tweet", "title", "description"),
)
"""Columns of texts; the first that a table has."""
FOLDER_COLUMN = "text"
"""Name of the column of texts that are files."""
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
        found = self
        if found.label == _AUTO:
            label = find_usual(names, LABEL_COLUMNS) or _refuse(
                table.place, "label", LABEL_COLUMNS, names
            )
            found = replace(found, label=label)
        if found.split == _AUTO:
            found = replace(found, split="split" if "split" in names else None)
        if found.text == _AUTO:
            others = [*found.labels, found.split, found.key, found.weight]
            left = [name for name in names if name not in others and _holds_texts(table, name)]
            found = replace(
                found, text=_find_text(left) or _refuse(table.place, "text", TEXT_COLUMNS, names)
            )

        named: list[tuple[str, str | None]] = [
            ("text", found.text),
            ("split", found.split),
            ("key", found.key),
            ("weight", found.weight),
        ]
        named += [("label", label) for label in found.labels]
        for argument, name in named:
            if name is not None and name not in names:
                raise DataError(
                    f"data.init_args.{argument}: {table.place}: {missing_column(name, names)}"
                )
        return found

    @property
    def labels(self) -> list[str]:
        """Columns of the labels."""
        return [self.label] if isinstance(self.label, str) else list(self.label)


def _find_text(names: Sequence[str]) -> str | None:
    """Return the column of texts among those that can be: the first usual one, or the only one."""
    return find_usual(names, TEXT_COLUMNS) or (names[0] if len(names) == 1 else None)


def _holds_texts(table: RowTable, name: str) -> bool:
    kind = table.types[name]
    return is_text(kind.value_type if pa.types.is_dictionary(kind) else kind)


def _refuse(place: str, argument: str, usual: Sequence[str], names: Sequence[str]) -> str:
    raise DataError(
        f"{place}: none of its columns is named {', '.join(usual)}; it has"
        f" {join_names(list(names), most=12)}. Name the column in data.init_args.{argument}."
    )


@dataclass(frozen=True)
class TextSettings:
    """Settings that choose the texts of the splits, and their labels.

    Args:
        path: The table or the folder.
        columns: Of a table.
        separator: Character between several labels in a cell; None where a cell has one label.
        classes: Names of the classes in their order; None for those of the training texts.
        val_fraction: Share of the texts for validation.
        test_fraction: Share of the texts for testing.
        copies: Whether equal texts are kept.
        encoding: Of text files.
    """

    path: str
    columns: TextColumns = field(default_factory=TextColumns)
    separator: str | None = None
    classes: Sequence[str] | None = None
    val_fraction: float = 0.2
    test_fraction: float = 0.1
    copies: Copies = "keep"
    encoding: str = _AUTO

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> TextSettings:
        """Build the settings from the arguments of `lightkit.data.TextData`, as in a config."""
        of_columns = {
            each.name: arguments[each.name]
            for each in fields(TextColumns)
            if each.name in arguments
        }
        own = {each.name: arguments[each.name] for each in fields(cls) if each.name in arguments}
        place = str(arguments["path"])
        path = place if is_remote(place) else str(Path(place).expanduser())
        return cls(**{**own, "path": path}, columns=TextColumns(**of_columns))

    def read(self) -> tuple[str, TextIndex]:
        """Read all texts; return the name of their column, and their index.

        Raises:
            DataError: If they cannot be used.
        """
        column = FOLDER_COLUMN
        if is_text_folder(self.path):
            rows = read_folder(Path(self.path), encoding=self.encoding)
        else:
            column, rows = read_text_table(self.path, self.columns)
        index = index_texts(
            rows, root=self.path, val_fraction=self.val_fraction, test_fraction=self.test_fraction,
            separator=self.separator, classes=self.classes, copies=self.copies,
        )  # fmt: skip
        return column, index


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
    cells = {
        name: plain(column).to_pylist()
        for name, column in zip(batch.rows.schema.names, batch.rows, strict=True)
    }
    has_json = is_json(batch.file.name)
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
