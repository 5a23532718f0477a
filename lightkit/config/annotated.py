"""A config as YAML in which every line says where its value was set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lightkit.config.origins import KeyPath, dotted
from lightkit.config.presented import Presented, described_place, on_one_line
from lightkit.config.scalars import dump_yaml
from lightkit.config.tree import Items, Leaf, Node, Table

__all__ = ["annotated"]

_WIDEST = 60  # characters of a line for which the others' comments move to the right
_LONGEST_LIST = 60
_LONGEST_REPLACED = 40


@dataclass
class _Line:
    text: str
    comment: str = ""


def annotated(
    node: Node, path: KeyPath, presented: Presented, *, replaced: Callable[[KeyPath, Node], Sequence[Node]]
) -> str:
    """Write a value and all below it, with the place of each beside it.

    Args:
        node: The value.
        path: Its path, which stands as one dotted key before it; nothing stands there for the whole config.
        presented: What to show.
        replaced: Gives what stood in the place of a value before, lowest layer first.
    """
    writer = _Writer(presented, replaced)
    if path:
        writer.entry(f"{dotted(key for key in path if key != 'init_args')}:", node, path, depth=0)
    elif isinstance(node, Table):
        for key, child in node.entries.items():
            writer.entry(f"{_key(key)}:", child, (key,), depth=0)
    lines = writer.lines or [_Line("{}")]
    widths = [len(line.text) for line in lines if line.comment]
    width = max([width for width in widths if width <= _WIDEST], default=0)
    return "".join(f"{line.text:<{width}}  # {line.comment}\n" if line.comment else f"{line.text}\n" for line in lines)


class _Writer:
    """Collects lines, parents first."""

    def __init__(self, presented: Presented, replaced: Callable[[KeyPath, Node], Sequence[Node]]) -> None:
        self._presented = presented
        self._replaced = replaced
        self.lines: list[_Line] = []

    def entry(self, head: str, node: Node, path: KeyPath, *, depth: int) -> None:
        """Write a value after its key, or after the dash of a list's element."""
        inner = "  " * (depth + 1)
        if self._fits_on_a_line(node, path):
            value = on_one_line(self._presented.value(node, path))
            self.lines.append(_Line(f"{head} {value}", self._comment(node, path)))
            return
        first = len(self.lines)
        before = [was for was in self._replaced(path, node) if not isinstance(was, type(node))]
        self.lines.append(_Line(head, self._note(before)))
        if isinstance(node, Table):
            for key, child in node.entries.items():
                self.entry(f"{inner}{_key(key)}:", child, (*path, key), depth=depth + 1)
        elif isinstance(node, Items):
            for index, item in enumerate(node.items):
                self.entry(f"{inner}-", item, (*path, index), depth=depth + 1)
        if isinstance(node, Table) and head.endswith("-") and not self.lines[first].comment:
            self.lines[first] = _Line(f"{head} {self.lines[first + 1].text.lstrip()}", self.lines[first + 1].comment)
            del self.lines[first + 1]

    def _fits_on_a_line(self, node: Node, path: KeyPath) -> bool:
        if isinstance(node, Table):
            return not node.entries
        if isinstance(node, Leaf):
            return True
        own = {item.origin.file for item in node.items} <= {node.origin.file}
        own = own and {item.origin.line for item in node.items} <= {node.origin.line}
        short = all(isinstance(item, Leaf) and not item.replaced for item in node.items)
        return own and short and len(on_one_line(self._presented.value(node, path))) <= _LONGEST_LIST

    def _comment(self, node: Node, path: KeyPath) -> str:
        written = self._presented.text(path)
        interpolation = f", {on_one_line(written)}" if written is not None else ""
        note = self._note(self._replaced(path, node))
        said = f"{described_place(node.origin)}{interpolation}{f'  {note}' if note else ''}"
        return self._presented.masked(said)

    def _note(self, before: Sequence[Node]) -> str:
        shown = [
            f"{on_one_line(self._presented.replaced(was), longest=_LONGEST_REPLACED)} of {described_place(was.origin)}"
            for was in before
        ]
        return f"(replaced {', '.join(shown)})" if shown else ""


def _key(key: Any) -> str:
    return dump_yaml({key: None}).removesuffix(": null\n")
