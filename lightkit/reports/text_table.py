"""Tables in plain columns, for the screen."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def format_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = ()
) -> str:
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
        "  ".join(
            f"{cell:{sign}{width}}" for cell, sign, width in zip(row, signs, widths, strict=True)
        ).rstrip()
        for row in cells
    )
