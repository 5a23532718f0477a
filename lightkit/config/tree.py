"""A config as a tree in which every value carries its origin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, Union

from lightkit.config.origins import KeyPath, Origin, error_at


@dataclass(frozen=True)
class Leaf:
    """A scalar.

    Args:
        value: A string, number, boolean or null; from Python defaults anything.
        origin: Place that set it.
        replaced: What stood in its place before, lowest layer first, each without what it had
            replaced itself.
    """

    value: Any
    origin: Origin
    replaced: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Items:
    """A list.

    Args:
        items: Its elements.
        origin: Place that set it.
        replaced: What stood in its place before, lowest layer first, each without what it had
            replaced itself.
    """

    items: tuple[Node, ...]
    origin: Origin
    replaced: tuple[Node, ...] = ()


@dataclass(frozen=True)
class MappingNode:
    """A mapping.

    Args:
        entries: Its values by key.
        origin: Place that set it first.
        replaced: What stood in its place before, lowest layer first, each without what it had
            replaced itself.
        partial: Whether it was only opened on the way to a dotted key, and so may reach into a
            list.
    """

    entries: Mapping[Any, Node]
    origin: Origin
    replaced: tuple[Node, ...] = ()
    partial: bool = field(default=False, compare=False)


Node = Union[Leaf, Items, MappingNode]  # noqa: UP007 - evaluated at import, and `|` between forward references is not


def to_plain(node: Node | None) -> Any:
    """Return the value of a tree as plain dicts, lists and scalars; null for no tree."""
    if isinstance(node, MappingNode):
        return {key: to_plain(child) for key, child in node.entries.items()}
    if isinstance(node, Items):
        return [to_plain(child) for child in node.items]
    return None if node is None else node.value


def entries_of(node: Node | None) -> Mapping[Any, Node]:
    """Return the entries of a mapping; none where another value or nothing stands there."""
    return node.entries if isinstance(node, MappingNode) else {}


def text_of(node: Node | None) -> str | None:
    """Return a value that is text; None for another value or nothing."""
    return node.value if isinstance(node, Leaf) and isinstance(node.value, str) else None


def list_children(node: Node) -> Iterable[tuple[Any, Node]]:
    """List the values in a mapping or a list, each with its key or its index."""
    return enumerate(node.items) if isinstance(node, Items) else entries_of(node).items()


def graft(value: Any, origin: Origin) -> Node:
    """Make a tree of a plain value, all of it from one place."""
    if isinstance(value, Mapping):
        return MappingNode({key: graft(child, origin) for key, child in value.items()}, origin)
    if isinstance(value, (list, tuple)):
        return Items(tuple(graft(child, origin) for child in value), origin)
    return Leaf(str(value) if isinstance(value, PurePath) else value, origin)


def walk(
    node: Node, path: KeyPath = (), *, ends: Callable[[Node], bool] = lambda _: False
) -> Iterator[tuple[KeyPath, Node]]:
    """List every node of a tree with its path, parents first.

    Args:
        node: The tree.
        path: Its path.
        ends: Whether nothing below a node is listed.
    """
    yield path, node
    if ends(node):
        return
    for key, child in list_children(node):
        yield from walk(child, (*path, key), ends=ends)


def is_setting(node: Node) -> bool:
    """Return whether a value is set as a whole: a scalar, a list of scalars, or an empty one."""
    if isinstance(node, Items):
        return not any(isinstance(item, MappingNode) for item in node.items)
    return isinstance(node, Leaf) or not node.entries


def find(node: Node | None, path: KeyPath) -> Node | None:
    """Return the value at a path, in which an index may be text; None where there is none."""
    for part in path:
        if isinstance(node, Items):
            is_index = str(part).isdigit() and int(part) < len(node.items)
            node = node.items[int(part)] if is_index else None
        else:
            node = entries_of(node).get(part)
    return node


def descend(tree: Node, path: KeyPath) -> tuple[KeyPath, Node, KeyPath]:
    """Find the value at a path as people write it.

    Without ``init_args`` or the ``+`` of a key, with an index as text.

    Returns:
        Its whole path; the value; and the rest of the path that leads nowhere, if any.
    """
    node = tree
    taken = ()
    for at, key in enumerate(path):
        names = (
            key,
            str(key),
            f"{key}+",
            str(key).removesuffix("+"),
            int(key) if str(key).isdigit() else key,
        )
        steps = [(*inner, name) for inner in ((), ("init_args",)) for name in names]
        found = next(
            ((step, below) for step in steps if (below := find(node, step)) is not None), None
        )
        if found is None:
            return taken, node, path[at:]
        node = found[1]
        taken = (*taken, *found[0])
    return taken, node, ()


def rebuild(node: Node, change: Callable[[KeyPath, Node], Node | None], path: KeyPath = ()) -> Node:
    """Copy a tree.

    Args:
        node: The tree.
        change: Returns another value for one below the top, None to drop it, or the value itself to
            go on below it.
        path: Path of the tree.
    """

    def visit(key: Any, child: Node) -> Node | None:
        changed = change((*path, key), child)
        return rebuild(child, change, (*path, key)) if changed is child else changed

    pairs = [(key, visit(key, child)) for key, child in list_children(node)]
    kept = {key: child for key, child in pairs if child is not None}
    if isinstance(node, MappingNode):
        return replace(node, entries=kept)
    return replace(node, items=tuple(kept.values())) if isinstance(node, Items) else node


def put(table: MappingNode, path: KeyPath, node: Node) -> MappingNode:
    """Copy a tree with a value at a path, whose sections are made where they are missing.

    Raises:
        ConfigError: If something above the place is no mapping.
    """
    key, *rest = path
    inner = table.entries.get(key)
    if rest:
        if inner is None or to_plain(inner) is None:
            inner = MappingNode({}, node.origin)
        if not isinstance(inner, MappingNode):
            raise error_at(f"{key}: expected a mapping, got {to_plain(inner)!r}", inner.origin)
        node = put(inner, tuple(rest), node)
    return replace(table, entries={**table.entries, key: node})


def supersede(lower: Node | None, upper: Node) -> Node:
    """Return ``upper`` with the values that it replaces in ``lower``, each with its origin."""
    if lower is None:
        return upper
    replaced = (*lower.replaced, replace(lower, replaced=()), *upper.replaced)
    if not (isinstance(lower, MappingNode) and isinstance(upper, MappingNode)):
        return replace(upper, replaced=replaced)
    entries = {
        key: supersede(lower.entries.get(key), child) for key, child in upper.entries.items()
    }
    return replace(upper, entries=entries, replaced=replaced)
