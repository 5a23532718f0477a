"""Tables with lines and colours on a terminal, in plain columns in a pipe; and values with the places that set them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightkit.config.display import RedactedConfig, format_inline, format_origin, origin_fields
from lightkit.config.origins import KeyPath
from lightkit.config.tree import Node

if TYPE_CHECKING:
    from lightkit.cli.argument_lookup import Argument

__all__ = ["PlacedValue", "format_table", "print_table"]


@dataclass(frozen=True)
class PlacedValue:
    """A printable value without secrets, and the place that set it.

    Args:
        value: The value.
        place: The place for people, on one line; empty where nothing sets the value.
        set_by: The place for programs.
    """

    value: Any
    place: str = ""
    set_by: Mapping[str, Any] | None = None

    @classmethod
    def of_node(cls, config: RedactedConfig, node: Node, path: KeyPath | None = None) -> PlacedValue:
        """Return the value at a path of a config; without a path one that was replaced, as it was written."""
        value = config.replaced(node) if path is None else config.value(node, path)
        fields = origin_fields(node.origin).items()
        set_by = {name: config.masked(field) if isinstance(field, str) else field for name, field in fields}
        return cls(value, config.masked(format_origin(node.origin)), set_by)

    @classmethod
    def of_default(cls, argument: Argument) -> PlacedValue | None:
        """Return the default of an argument; None where it has none."""
        if "default" not in argument.description:
            return None
        return cls(argument.default, f"default of {argument.owner}", {"kind": "signature", "name": argument.owner})

    def fields(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"value": self.value, **({} if self.set_by is None else {"set_by": self.set_by})}

    @staticmethod
    def format_column(values: Sequence[PlacedValue], *, longest: int) -> list[str]:
        """Write values on a line each, with their places in a column."""
        texts = [format_inline(each.value, longest=longest) for each in values]
        width = max((len(text) for text in texts if len(text) <= longest // 2), default=0)
        return [f"{text:<{width}}  {each.place}".rstrip() for text, each in zip(texts, values, strict=True)]


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
