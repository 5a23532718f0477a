"""How much interpolations come to, before any is resolved: a few that refer to each other can stand for billions."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lightkit.config.origins import KeyPath, dotted, mistake
from lightkit.config.problems import Problems
from lightkit.config.reading import MAX_SIZE_BYTES
from lightkit.config.tree import Items, Leaf, Node, Table, walk

__all__ = ["MAX_VALUES", "check_expansion"]

MAX_VALUES = 10_000
"""Values that an interpolation may come to, counting those that it reaches through others."""
_MAX_ALL_VALUES = 4 * MAX_VALUES  # of all interpolations together
_MAX_CHAIN = 100
_REFERENCE = re.compile(r"\$\{\s*(\.*)([^${}:,\s]+)\s*\}")


def check_expansion(tree: Table, problems: Problems) -> bool:
    """Tell whether all interpolations come to few enough values and to little enough text.

    The first that does not, or with which the sum is too much, is a problem.
    """
    counter = _Counter(tree)
    all_values, all_characters = 0, 0
    for path, node in walk(tree):
        if not (isinstance(node, Leaf) and _is_text(node)):
            continue
        values, characters = counter.size_of(path, node, chain=0)
        all_values, all_characters = all_values + values, all_characters + characters
        if values > MAX_VALUES or all_values > _MAX_ALL_VALUES:
            most = f"{MAX_VALUES} times, or too deeply" if values > MAX_VALUES else f"{_MAX_ALL_VALUES} times"
            says = f"{dotted(path)}: its interpolations refer to each other more than {most}"
        elif all_characters > MAX_SIZE_BYTES:
            says = f"{dotted(path)}: the interpolations come to more than {MAX_SIZE_BYTES} characters"
        else:
            continue
        problems.add(mistake(says, node.origin))
        return False
    return True


def _is_text(node: Leaf) -> bool:
    return isinstance(node.value, str) and "${" in node.value


class _Counter:
    """Counts the values that each node comes to, and their characters, every node once."""

    def __init__(self, tree: Table) -> None:
        self._tree = tree
        self._known: dict[KeyPath, tuple[int, int]] = {}

    def size_of(self, path: KeyPath, node: Node, chain: int) -> tuple[int, int]:
        if path in self._known:
            return self._known[path]
        if chain > _MAX_CHAIN:
            return MAX_VALUES + 1, 0
        values, characters = 1, len(node.value) if isinstance(node, Leaf) and isinstance(node.value, str) else 1
        self._known[path] = values, characters  # one that leads back to itself is told by OmegaConf
        for there, child, step in self._reached(path, node):
            more = self.size_of(there, child, chain + step)
            values = min(values + more[0], MAX_VALUES + 1)
            characters = min(characters + more[1], MAX_SIZE_BYTES + 1)
        self._known[path] = values, characters
        return values, characters

    def _reached(self, path: KeyPath, node: Node) -> Iterator[tuple[KeyPath, Node, int]]:
        """List what stands inside a collection, and what a text refers to, with the length that it adds to a chain."""
        if isinstance(node, Table):
            yield from (((*path, key), child, 0) for key, child in node.entries.items())
        elif isinstance(node, Items):
            yield from (((*path, index), child, 0) for index, child in enumerate(node.items))
        elif _is_text(node):
            for dots, key in _REFERENCE.findall(node.value):
                base = path[: len(path) - len(dots)] if dots else ()
                there = (*base, *(part for part in re.split(r"[.\[\]]+", key) if part))
                found = _at(self._tree, there)
                if found is not None:
                    yield there, found, 1


def _at(node: Node | None, path: KeyPath) -> Node | None:
    for part in path:
        if isinstance(node, Table):
            node = node.entries.get(part)
        elif isinstance(node, Items) and str(part).isdigit() and int(part) < len(node.items):
            node = node.items[int(part)]
        else:
            return None
    return node
