"""What differs between two configs, value by value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lightkit.config.origins import KeyPath
from lightkit.config.presented import Presented
from lightkit.config.resolved import Resolved
from lightkit.config.tree import Items, Leaf, Node, Table

__all__ = ["Difference", "differences", "innermost"]


@dataclass(frozen=True)
class Difference:
    """A value that two configs do not share.

    Args:
        path: Its path.
        old: What stands there in the first config; None where the second adds it.
        new: What stands there in the second; None where it is not there any more.
    """

    path: KeyPath
    old: Node | None
    new: Node | None


def differences(old: Resolved, new: Resolved) -> list[Difference]:
    """List the innermost values that differ, in the order of the configs; the environment's are references.

    Lists of mappings are compared element by element; other lists are one value.
    """
    return list(_Comparison(Presented(old), Presented(new)).between((), old.tree, new.tree))


@dataclass(frozen=True)
class _Comparison:
    old: Presented
    new: Presented

    def between(self, path: KeyPath, old: Node, new: Node) -> Iterator[Difference]:
        """List what differs below two values at the same place."""
        if isinstance(old, Table) and isinstance(new, Table):
            yield from self._tables(path, old, new)
        elif isinstance(old, Items) and isinstance(new, Items) and _holds_mappings(old) and _holds_mappings(new):
            for index in range(max(len(old.items), len(new.items))):
                pair = [items[index] if index < len(items) else None for items in (old.items, new.items)]
                yield from self._at((*path, index), *pair)
        elif not _same(self.old.value(old, path), self.new.value(new, path)):
            yield Difference(path, old, new)

    def _tables(self, path: KeyPath, old: Table, new: Table) -> Iterator[Difference]:
        for key in dict.fromkeys([*old.entries, *new.entries]):
            yield from self._at((*path, key), old.entries.get(key), new.entries.get(key))

    def _at(self, path: KeyPath, old: Node | None, new: Node | None) -> Iterator[Difference]:
        if old is not None and new is not None:
            yield from self.between(path, old, new)
        elif old is not None:
            yield from (Difference(place, leaf, None) for place, leaf in innermost(old, path))
        elif new is not None:
            yield from (Difference(place, None, leaf) for place, leaf in innermost(new, path))


def _same(one: object, other: object) -> bool:
    """Tell whether two values are one; ``1``, ``1.0`` and ``true`` are not."""
    return repr(one) == repr(other)


def _holds_mappings(items: Items) -> bool:
    return any(isinstance(item, Table) for item in items.items)


def innermost(node: Node, path: KeyPath) -> Iterator[tuple[KeyPath, Node]]:
    """List the values below a node with their paths: scalars, lists of scalars, and what is empty."""
    if isinstance(node, Table) and node.entries:
        for key, child in node.entries.items():
            yield from innermost(child, (*path, key))
    elif isinstance(node, Items) and _holds_mappings(node):
        for index, item in enumerate(node.items):
            yield from innermost(item, (*path, index))
    elif isinstance(node, (Leaf, Items, Table)):
        yield path, node
