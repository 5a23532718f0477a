"""Cells of comma, semicolon or tab separated values, by one rule wherever they are read."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain

from lightkit.errors import DataError

MAX_CELL = 1_000_000
"""Characters of a cell, if a quotation mark was never closed."""


def read_cells(lines: Iterable[str], name: str) -> Iterator[tuple[int, list[str]]]:
    """Read the cells of each row, the first one and empty ones included.

    Args:
        lines: With their ends.
        name: Of the table, for errors.

    Returns:
        Number of the first line of each row, from 1, and its cells.

    Raises:
        DataError: If the first line is not in UTF-8, characters follow a closing quotation mark, or
            one is never closed.
    """
    iterator = iter(lines)
    first = next(iterator, "").removeprefix("\ufeff")
    if "\0" in first:  # as of UTF-16
        raise DataError(f"{name}, line 1: this table is not in UTF-8. Save it as UTF-8.")
    csv.field_size_limit(MAX_CELL)
    reader = csv.reader(chain([first], iterator), delimiter=find_delimiter(first), strict=True)
    line = 1
    while True:
        with _translate_csv_errors(name, line):
            cells = next(reader, None)
        if cells is None:
            return
        yield line, cells
        line = reader.line_num + 1


def find_delimiter(first: str) -> str:
    """Return the separator of a table.

    The one of comma, semicolon and tab that its first line has most of.
    """
    return max(",;\t", key=first.count)


@contextmanager
def _translate_csv_errors(name: str, line: int) -> Iterator[None]:
    try:
        yield
    except csv.Error as error:
        remedy = ""
        if "expected after" in str(error):
            remedy = (
                " Write a cell that has a quotation mark in quotation marks, and the mark in it"
                ' twice, as in "17"" screen".'
            )
        elif "end of data" in str(error):
            remedy = " A quotation mark opens a cell there, and none closes it."
        raise DataError(
            f"{name}, line {line}: this table cannot be read ({error}).{remedy}"
        ) from error
