"""What was found wrong with a config, with the places, and what could not be judged."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lightkit.config.origins import KeyPath, Origin, dotted, mistake
from lightkit.config.pruning import as_written
from lightkit.config.tree import Node, Table, walk
from lightkit.errors import ConfigError

__all__ = ["PASSED_OVER", "Findings", "is_hollow"]

PASSED_OVER = ("$schema", "__path__")
"""Keys that jsonargparse drops wherever they stand."""


@dataclass
class Findings:
    """What was found in a config.

    Args:
        problems: All mistakes, each with its place in the config, in the order of the files.
        unjudged: Places of classes that the catalogue does not know: the user's own, those of other packages, and those
            of another version.
        unresolved: Places whose interpolation failed, of which nothing is said.
        removed: Places that were left out because they were wrong, as they were written.
    """

    problems: list[tuple[KeyPath, ConfigError]] = field(default_factory=list)
    unjudged: list[KeyPath] = field(default_factory=list)
    unresolved: set[KeyPath] = field(default_factory=set, repr=False)
    removed: Collection[KeyPath] = field(default=(), repr=False)
    _places: list[Origin] = field(default_factory=list, repr=False)

    def report(self, path: KeyPath, says: str, node: Node, *others: Origin) -> None:
        """Note a mistake in a value."""
        self._note(path, says, node.origin, *others)

    def report_key(self, path: KeyPath, says: str, node: Node, *others: Origin) -> None:
        """Note a mistake in a key."""
        self._note(path, says, node.origin.at_key(), *others)

    def report_unknown(self, path: KeyPath, says: str, node: Node) -> None:
        """Note a key that nobody knows, unless nothing stands below it, which jsonargparse passes over."""
        if not is_hollow(node):
            self.report_key(path, says, node)

    def report_unnamed(self, path: KeyPath, node: Node) -> None:
        """Note a key that is no text, such as ``5`` or ``true``."""
        key = path[-1]
        found = "null" if key is None else str(key).lower() if isinstance(key, bool) else key
        self.report_key(path, f"expected a name for a key, got {found}", node)

    def is_removed(self, path: KeyPath) -> bool:
        """Tell whether a value, or what it stood in, was left out because it was wrong."""
        written = as_written(path, self.removed)
        return any(written[: len(gone)] == gone for gone in self.removed)

    def is_unresolved(self, path: KeyPath) -> bool:
        """Tell whether a value, or part of it, is an interpolation that failed."""
        return any(failed[: len(path)] == path for failed in self.unresolved)

    def put_in_order(self, tree: Table) -> None:
        """Sort by files, the lowest layer first, and by lines within them."""
        files: dict[Path | None, int] = {}
        for _, node in walk(tree):
            files.setdefault(node.origin.file, len(files))
        order = sorted(range(len(self.problems)), key=lambda number: _rank(self._places[number], files))
        self.problems = [self.problems[number] for number in order]
        self._places = [self._places[number] for number in order]

    def _note(self, path: KeyPath, says: str, origin: Origin, *others: Origin) -> None:
        if self.is_unresolved(path):
            return
        self.problems.append((path, mistake(f"{dotted(path)}: {says}", *_shown_once(origin, others))))
        self._places.append(origin)


def is_hollow(node: Node) -> bool:
    """Tell whether a mapping holds nothing, or nothing but such mappings."""
    return isinstance(node, Table) and all(is_hollow(child) for child in node.entries.values())


def _shown_once(origin: Origin, others: tuple[Origin, ...]) -> Iterator[Origin]:
    """Leave out places that nobody has written, and the second of two that are one."""
    seen: list[Origin] = []
    for place in (origin, *others):
        if place.kind != "default" and place not in seen:
            seen.append(place)
            yield place


def _rank(origin: Origin, files: dict[Path | None, int]) -> tuple[bool, int, int, int]:
    return origin.file is None, files.get(origin.file, len(files)), origin.line or 0, origin.column or 0
