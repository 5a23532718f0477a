"""Tables for people: with lines and colours on a terminal, plain columns in a pipe, which has no width."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence

__all__ = ["format_table", "print_table"]


def format_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = ()) -> str:
    """Write a table in plain columns.

    Args:
        head: Names of the columns.
        rows: Cells of each row, one for each column; lines of a cell are joined.
        right: Columns of numbers, which are aligned at the right.
    """
    cells = [[" ".join(cell.splitlines()) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    signs = [">" if name in right else "<" for name in head]
    return "\n".join(
        "  ".join(f"{cell:{sign}{width}}" for cell, sign, width in zip(row, signs, widths, strict=True)).rstrip()
        for row in cells
    )


def print_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    is_terminal: bool,
    style: Callable[[Sequence[str]], str | None] = lambda _: None,
) -> None:
    """Print a table to standard output.

    Args:
        head: Names of the columns.
        rows: Cells of each row.
        is_terminal: Whether it has lines and colours.
        style: Gives the style of a row on a terminal, such as ``red``.
    """
    if not is_terminal:
        print(format_table(head, rows))
        return
    from rich.console import Console  # here: a pipe needs none of it
    from rich.table import Table
    from rich.text import Text

    table = Table(*head)
    for row in rows:
        table.add_row(*map(Text, row), style=style(row))  # without markup: the cells are data
    Console(file=sys.stdout).print(table)
