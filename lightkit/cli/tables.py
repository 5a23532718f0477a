"""Tables for people: with lines around them on a terminal, plain columns in a pipe, which has no width."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence

__all__ = ["print_table", "table_lines"]


def table_lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Give the lines of a table in plain columns.

    Args:
        head: What stands above each column.
        rows: The cells of each row, as many as there are columns; a cell of several lines is put on one.
    """
    cells = [[" ".join(cell.splitlines()) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    for row in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def print_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    is_terminal: bool,
    style: Callable[[Sequence[str]], str | None] = lambda _: None,
) -> None:
    """Print a table to standard output.

    Args:
        head: What stands above each column.
        rows: The cells of each row.
        is_terminal: Whether it is to have lines and colours.
        style: Gives the style of a row on a terminal, such as ``red``.
    """
    if not is_terminal:
        print("\n".join(table_lines(head, rows)))
        return
    from rich.console import Console  # here: a pipe needs none of it
    from rich.table import Table
    from rich.text import Text

    table = Table(*head)
    for row in rows:
        table.add_row(*map(Text, row), style=style(row))  # what people wrote is no markup
    Console(file=sys.stdout).print(table)
