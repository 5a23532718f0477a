"""What an upgrade reports: the changes that it makes, and what it refuses."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from lightkit.config.origins import KeyPath, Origin, dotted, mistake
from lightkit.config.tree import Items, Node, Table
from lightkit.config.upgrade.writing import flow_text
from lightkit.errors import ConfigError

__all__ = ["Change", "Places", "Report", "is_interpolated", "shown"]

_LONGEST = 110


@dataclass(frozen=True)
class Change:
    """One change.

    Args:
        line: Line of the old file.
        says: What became of what, and why.
    """

    line: int
    says: str


@dataclass
class Report:
    """Changes and refusals, as they are found.

    Args:
        text: The old text, in which interpolations may refer to what moves.
    """

    text: str
    changes: list[Change] = field(default_factory=list)
    refusals: list[tuple[int, ConfigError]] = field(default_factory=list)

    def changed(self, origin: Origin, was: str, today: Iterable[str], why: str) -> None:
        """Note a change: what stood there, and what stands there now, if anything."""
        becomes = ", ".join(today) or "nothing"
        self.changes.append(Change(origin.line or 0, f"{was} -> {becomes} ({why})"))

    def refuse(self, origin: Origin, says: str) -> None:
        """Note something that has no equivalent, with its place."""
        self.refuse_as(origin, mistake(says, origin))

    def refuse_as(self, origin: Origin, error: ConfigError) -> None:
        """Note a mistake that somebody else has put into words."""
        if str(error) not in {str(known) for _, known in self.refusals}:
            self.refusals.append((origin.line or 0, error))

    def is_referred_to(self, path: KeyPath) -> bool:
        """Tell whether an interpolation refers to a key or to what is below it."""
        return re.search(r"\$\{\s*" + re.escape(dotted(path)) + r"\s*[}.\[]", self.text) is not None


def is_interpolated(value: Any) -> bool:
    """Tell whether what a value will be is known only once it is interpolated."""
    return isinstance(value, str) and "${" in value


def shown(path: KeyPath, value: Any) -> str:
    """Write a key and its value for a report; a long one is cut."""
    text = value if isinstance(value, str) and value else flow_text(value)
    return f"{dotted(path)}: {text if len(text) <= _LONGEST else text[:_LONGEST] + '...'}"


@dataclass(frozen=True)
class Places:
    """From the lines of a text in which whole lines were moved to those of the old file.

    Args:
        text: The text.
        sources: For each of its lines, the line of the old file and how far it was moved to the right.
        old_lines: The lines of the old file.
    """

    text: str
    sources: tuple[tuple[int, int], ...]
    old_lines: tuple[str, ...]

    def origin(self, origin: Origin) -> Origin:
        """Give a place in the text as the place in the old file."""
        if origin.line is None or origin.column is None or origin.line > len(self.sources):
            return origin
        line, shift = self.sources[origin.line - 1]
        return replace(
            origin,
            line=line,
            column=max(1, origin.column - shift),
            end_column=None if origin.end_column is None else origin.end_column - shift,
            source=self.old_lines[line - 1] if line <= len(self.old_lines) else "",
            key=None if origin.key is None else self.origin(origin.key),
        )

    def relocated(self, node: Node) -> Node:
        """Give a tree of the text with the places of the old file."""
        origin = self.origin(node.origin)
        if isinstance(node, Table):
            entries = {key: self.relocated(child) for key, child in node.entries.items()}
            return replace(node, origin=origin, entries=entries)
        if isinstance(node, Items):
            return replace(node, origin=origin, items=tuple(map(self.relocated, node.items)))
        return replace(node, origin=origin)
