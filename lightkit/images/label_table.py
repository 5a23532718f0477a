"""A table that names images and their labels, read row by row.

Each row knows its line, for errors. No torch.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lightkit.config import near
from lightkit.errors import ConfigError, DataError, join_lines, join_names
from lightkit.images.csv_cells import read_cells
from lightkit.images.image_index import Label
from lightkit.images.inputs import COLUMNS as PATH_COLUMNS
from lightkit.images.splits import Split, check_spelling, name_label, sort_classes, split_named

LABEL_COLUMNS = ("label", "labels", "class", "target", "category", "tags")
"""Columns of labels; the first that a table has."""
CSV_SUFFIXES = (".csv", ".tsv", ".txt")
_MAX_CLASSES = 100_000
_MARKS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1}


class TableRow(NamedTuple):
    """A row as it is read.

    Args:
        place: File and line, or row, for errors.
        cells: Values by column: text of a CSV file, values of other tables.
    """

    place: str
    cells: dict[str, Any]


@dataclass(frozen=True)
class LabelledFiles:
    """The images that a table names.

    Args:
        class_names: Names of the classes or labels.
        files: Of each split that is named; all under ``train`` where none is.
        splits: The splits that a column names.
        is_multilabel: Whether an image has any number of labels.
    """

    class_names: list[str]
    files: dict[Split, list[tuple[Path, Label]]]
    splits: list[Split]
    is_multilabel: bool


def read_csv(path: Path) -> tuple[list[str], Iterator[TableRow]]:
    """Read a file of comma, semicolon or tab separated values.

    In UTF-8, with or without a byte order mark.

    Returns:
        Names of the columns, and the rows.

    Raises:
        DataError: If it is empty, not UTF-8, has two columns of one name, or a row has more or
            fewer cells.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: this table cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise DataError(
            f"{path}, line {line}: this table is not in UTF-8. Save it as UTF-8."
        ) from error
    header, rows = parse_csv(io.StringIO(text, newline=""), str(path))
    return header, (
        TableRow(f"{path}, line {line}", dict(zip(header, cells, strict=True)))
        for line, cells in rows
    )


def parse_csv(lines: Iterable[str], name: str) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """Parse lines of comma, semicolon or tab separated values, one row after another.

    Args:
        lines: With their ends; bytes that are no UTF-8 as surrogates, as ``surrogateescape`` has
            them.
        name: Of the table, for errors.

    Returns:
        Names of the columns; and of each row that is not empty its cells, with the number of its
        first line, from 1.

    Raises:
        DataError: If it is empty, not UTF-8, has two columns of one name, or a row has more or
            fewer cells.
    """
    rows = read_cells(lines, name)
    header = [each.strip() for each in next(rows, (1, []))[1]]
    _check_header(header, name)

    def iterate() -> Iterator[tuple[int, list[str]]]:
        for line, cells in rows:
            _check_cells(cells, header, f"{name}, line {line}")
            if cells:
                yield line, cells

    return header, iterate()


def _check_header(header: Sequence[str], name: str) -> None:
    if not any(header):
        raise DataError(
            f"{name}: this table is empty; expected a first line with the names of the columns."
        )
    if len(set(header)) < len(header):
        twice = next(each for each in header if header.count(each) > 1)
        raise DataError(f"{name}, line 1: two columns have the name {twice!r}. Rename one of them.")


def _check_cells(cells: Sequence[str], header: Sequence[str], place: str) -> None:
    if cells and len(cells) != len(header):
        raise DataError(
            f"{place}: this row has {len(cells)} cells; expected {len(header)}, as the first "
            f"line has ({join_names(header)}). Quote a cell that has the separator in it."
        )
    if any("\ud800" <= mark <= "\udfff" for cell in cells if not cell.isascii() for mark in cell):
        raise DataError(f"{place}: this table is not in UTF-8. Save it as UTF-8.")


def find_usual(names: Sequence[str], usual: Sequence[str]) -> str | None:
    """Return the column with the first of the usual names, in small or capital letters."""
    by_name = {name.lower(): name for name in reversed(names)}
    return next((by_name[name] for name in usual if name in by_name), None)


class LabelColumns:
    """Columns of a table that name the images, their labels and their splits.

    Args:
        names: Columns of the table.
        image: Column of the paths; `auto` takes the first that is named path, image, file or
            filename.
        label: Column of the labels, or several columns of 0 and 1; `auto` takes the first of
            `LABEL_COLUMNS`.
        separator: Character between several labels in one cell; None where a cell has one label.
        split: Column of the splits; `auto` takes a column `split` where there is one, None none.

    Raises:
        DataError: If there is no such column.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        image: str,
        label: str | Sequence[str],
        separator: str | None,
        split: str | None,
    ) -> None:
        self._names = names
        self.image = self._choose("image", image, PATH_COLUMNS)
        labels = [label] if isinstance(label, str) else list(label)
        self.labels = [self._choose("label", name, LABEL_COLUMNS) for name in labels]
        self.separator = separator
        self.are_marks = len(self.labels) > 1
        has_split = split is not None and (split != "auto" or "split" in names)
        self.split = (
            self._choose("split", split, ("split",)) if has_split and split is not None else None
        )
        if separator is not None and self.are_marks:
            raise ConfigError(
                "data.init_args.separator: it is of one column of labels, and label names several."
            )

    def _choose(self, argument: str, name: str, usual: Sequence[str]) -> str:
        if name != "auto":
            if name in self._names:
                return name
            hint = near(name, self._names) or f"; it has {join_names(list(self._names))}."
            raise DataError(f"data.init_args.{argument}: the table has no column {name!r}{hint}")
        found = find_usual(self._names, usual)
        if found is None:
            raise DataError(
                f"data.init_args.{argument}: the table has none of the columns {', '.join(usual)};"
                f" it has {join_names(list(self._names))}. Name the column."
            )
        return found

    def read_labels(self, row: TableRow) -> list[str]:
        """Return the names of the labels of a row.

        Raises:
            DataError: If a cell is none.
        """
        if self.are_marks:
            return [name for name in self.labels if self._read_mark(row, name)]
        cell = row.cells[self.labels[0]]
        if isinstance(cell, (list, tuple)):
            return [name for name in map(name_label, cell) if name]
        text = name_label(cell)
        if self.separator is None:
            if not text:
                raise DataError(f"{row.place}: there is no label in column {self.labels[0]!r}.")
            return [text]
        return [part.strip() for part in text.split(self.separator) if part.strip()]

    def read_split(self, row: TableRow) -> Split:
        """Return the split of a row; without a column of splits, training.

        Raises:
            DataError: If the cell is no usual name of a split.
        """
        if self.split is None:
            return "train"
        split = split_named(str(row.cells[self.split]))
        if split is None:
            raise DataError(
                f"{row.place}: column {self.split!r} has {row.cells[self.split]!r}; expected train,"
                " val or test, or another usual name of theirs."
            )
        return split

    @staticmethod
    def _read_mark(row: TableRow, name: str) -> int:
        text = str(row.cells[name]).strip().lower()
        if text not in _MARKS:
            raise DataError(
                f"{row.place}: column {name!r} has {row.cells[name]!r}, expected 0 or 1."
            )
        return _MARKS[text]


_LabelledFile = tuple[str, Path, list[str], Split]
"""Place, image, labels and split of a row."""


def collect_files(
    rows: Iterable[TableRow],
    columns: LabelColumns,
    *,
    table: Path,
    root: Path,
    classes: Sequence[str] | None = None,
) -> LabelledFiles:
    """Collect the images of a table with their labels.

    Args:
        rows: Of the table.
        columns: Which of its columns are what.
        table: For messages.
        root: Folder that relative paths count from.
        classes: Names of the classes in their order; None for those of the training rows, sorted.

    Raises:
        DataError: If there are no rows, a file is missing, a label is no class, or a split has no
            usual name.
    """
    found, has_lists = _find_files(rows, columns, table=table, root=root)
    names = list(classes) if classes is not None else _list_classes(found, columns, table)
    splits = list(dict.fromkeys(split for _, _, _, split in found))
    if "train" not in splits:
        raise DataError(f"{table}: no row is in the train split, as column {columns.split!r} says.")
    numbers = {name: number for number, name in enumerate(names)}
    files: dict[Split, list[tuple[Path, Label]]] = {"train": []}
    for place, path, labels, split in found:
        marked = _number_labels(labels, numbers, place)
        label: Label = (
            tuple(int(number in marked) for number in range(len(names))) if has_lists else marked[0]
        )
        files.setdefault(split, []).append((path, label))
    return LabelledFiles(names, files, [] if columns.split is None else splits, has_lists)


def _find_files(
    rows: Iterable[TableRow], columns: LabelColumns, *, table: Path, root: Path
) -> tuple[list[_LabelledFile], bool]:
    """Find the image of each row.

    Return it with its place, labels and split, and whether rows have lists of labels.

    Raises:
        DataError: If there are no rows, or an image is missing.
    """
    found: list[_LabelledFile] = []
    missing: list[str] = []
    has_lists = columns.are_marks or columns.separator is not None
    for row in rows:
        cell = row.cells[columns.image]
        path = root / str(cell or "").strip()
        if not cell:
            missing.append(f"{row.place}: there is no path in column {columns.image!r}")
        elif not path.is_file():
            missing.append(f"{row.place}: {path} does not exist")
        else:
            has_lists = has_lists or isinstance(row.cells[columns.labels[0]], (list, tuple))
            split = columns.read_split(row)
            found.append((row.place, path, columns.read_labels(row), split))
    if missing:
        raise DataError(
            f"{table}: {len(missing)} of {len(missing) + len(found)} rows name no image that is"
            f" there. Relative paths count from {root} (data.init_args.root).{join_lines(missing)}"
        )
    if not found:
        raise DataError(f"{table}: this table has no rows.")
    return found, has_lists


def _number_labels(labels: Sequence[str], numbers: Mapping[str, int], place: str) -> list[int]:
    """Return the numbers of a row's labels.

    Raises:
        DataError: If one is no class.
    """
    for label in labels:
        if label not in numbers:
            raise DataError(
                f"{place}: the label {label!r} is no class; the classes are"
                f" {join_names([*numbers], most=10)}{near(label, [*numbers]) or '.'}"
            )
    return [numbers[label] for label in labels]


def _list_classes(found: Sequence[_LabelledFile], columns: LabelColumns, table: Path) -> list[str]:
    """List the classes of the training rows.

    Columns in their order, whole numbers by size, other names as text.
    """
    if columns.are_marks:
        return list(columns.labels)
    names = {label for _, _, labels, split in found if split == "train" for label in labels}
    if len(names) > _MAX_CLASSES:
        raise DataError(
            f"column {columns.labels[0]!r} has more than {_MAX_CLASSES:,} different labels, too"
            " many for classes."
        )
    check_spelling(names, place=f"{table}: column {columns.labels[0]!r}")
    return sort_classes(names)
