"""OmegaConf's ``${...}``, resolved once all layers are laid, with a record of what came from the environment."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lightkit.config.origins import KeyPath, dotted, mistake
from lightkit.config.problems import Problems
from lightkit.config.reading import MAX_DEPTH, MAX_NODES, TOO_LARGE
from lightkit.config.tree import Items, Leaf, Node, Table, graft, walk
from lightkit.errors import ConfigError

__all__ = ["Interpolated", "escaped", "interpolate"]

_REFERENCE = re.compile(r"\$\{\s*(\.*)([^${}:,\s]+)\s*\}")


@dataclass(frozen=True)
class Interpolated:
    """A tree without interpolations.

    Args:
        tree: The values.
        references: Text of each interpolation that used the environment, also through other keys, by its path.
        secrets: What the environment gave, each with the reference that stands for it, longest first.
        unresolved: Paths of the texts that cannot be resolved, which stand in the tree as they are.
        texts: Text of every interpolation, by its path.
    """

    tree: Table
    references: dict[KeyPath, str] = field(default_factory=dict)
    secrets: tuple[tuple[str, str], ...] = ()
    unresolved: frozenset[KeyPath] = frozenset()
    texts: Mapping[KeyPath, str] = field(default_factory=dict)


def interpolate(tree: Table, environ: Mapping[str, str], problems: Problems) -> Interpolated:
    r"""Resolve every string that contains ``${``; ``\${`` stands for itself.

    Args:
        tree: The config.
        environ: Environment variables.
        problems: Takes what is missing, a key or a variable, and what is no interpolation.
    """
    texts = {path: node for path, node in walk(tree) if isinstance(node, Leaf) and _is_text(node.value)}
    if (large := _too_large(tree, texts)) is not None:
        problems.add(large)
        return Interpolated(tree, unresolved=frozenset(texts))
    if not texts:
        return Interpolated(tree)
    from lightkit.config.resolution import Resolution, is_valid  # here, because OmegaConf takes 80 ms to load

    wrong = {path for path, leaf in texts.items() if not is_valid(path, leaf, problems)}
    resolution = Resolution(_without(tree, wrong), environ)
    values = resolution.resolve({path: leaf for path, leaf in texts.items() if path not in wrong}, problems)
    tree = _with_values(tree, values)
    secrets = sorted(resolution.secrets.items(), key=lambda pair: (-len(pair[0]), pair))
    unresolved = frozenset(path for path in texts if path not in values)
    written = {path: leaf.value for path, leaf in texts.items()}
    return Interpolated(tree, resolution.references, tuple(secrets), unresolved, written)


def _too_large(tree: Table, texts: Mapping[KeyPath, Leaf]) -> ConfigError | None:
    """Return an error, at the largest interpolation or section, if the config with all interpolations is too large."""
    sizes: dict[KeyPath, tuple[int, int]] = {}

    def measure(path: KeyPath, node: Node, depth: int) -> tuple[int, int]:
        """Count the values and the levels of a node, each node once."""
        if path not in sizes and depth <= MAX_DEPTH:
            sizes[path] = 1, 0  # a reference to itself is OmegaConf's error
            parts = [measure(*part, depth + 1) for part in _parts(tree, path, node)]
            sizes[path] = 1 + sum(values for values, _ in parts), max((levels + 1 for _, levels in parts), default=0)
        return sizes.get(path, (1, MAX_DEPTH + 1))

    values, levels = measure((), tree, 0)
    if values <= MAX_NODES and levels <= MAX_DEPTH:
        return None
    parts: Mapping[KeyPath, Node] = texts or {(key,): node for key, node in tree.entries.items()}
    found = {path: measure(path, node, 0) for path, node in parts.items()}
    path = max(found, key=lambda path: (found[path][1] > MAX_DEPTH, found[path][0]))
    return mistake(f"{dotted(path)}: {TOO_LARGE}", parts[path].origin)


def _parts(tree: Table, path: KeyPath, node: Node) -> Iterator[tuple[KeyPath, Node]]:
    """List the elements of a collection, or the values that a text refers to."""
    if isinstance(node, Table):
        yield from (((*path, key), child) for key, child in node.entries.items())
    elif isinstance(node, Items):
        yield from (((*path, index), child) for index, child in enumerate(node.items))
    elif _is_text(node.value):
        for dots, key in _REFERENCE.findall(node.value):
            base = path[: len(path) - len(dots)] if dots else ()
            there = (*base, *(part for part in re.split(r"[.\[\]]+", key) if part))
            if (found := _at(tree, there)) is not None:
                yield there, found


def _at(node: Node | None, path: KeyPath) -> Node | None:
    for part in path:
        if isinstance(node, Table):
            node = node.entries.get(part)
        elif isinstance(node, Items) and str(part).isdigit() and int(part) < len(node.items):
            node = node.items[int(part)]
        else:
            return None
    return node


def escaped(text: str) -> str:
    """Write a literal string so that `interpolate` gives it back."""
    return re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + r"\${", text)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and "${" in value


def _without(tree: Table, paths: Collection[KeyPath]) -> Table:
    """Leave out what OmegaConf would refuse to read."""
    return _with_values(tree, dict.fromkeys(paths)) if paths else tree


def _with_values(tree: Table, values: Mapping[KeyPath, Any]) -> Table:
    def visit(node: Node, path: KeyPath) -> Node:
        if path in values:
            return replace(graft(values[path], node.origin), replaced=node.replaced)
        if isinstance(node, Table):
            return replace(node, entries={key: visit(child, (*path, key)) for key, child in node.entries.items()})
        if isinstance(node, Items):
            return replace(node, items=tuple(visit(child, (*path, i)) for i, child in enumerate(node.items)))
        return node

    resolved = visit(tree, ())
    assert isinstance(resolved, Table)
    return resolved
