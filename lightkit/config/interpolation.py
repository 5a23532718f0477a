"""OmegaConf's ``${...}``, resolved once all layers are laid, with a record of what came from the environment."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lightkit.config.expansion import check_expansion
from lightkit.config.origins import KeyPath
from lightkit.config.problems import Problems
from lightkit.config.tree import Items, Leaf, Node, Table, graft, walk

__all__ = ["Interpolated", "escaped", "interpolate"]


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
    if not texts:
        return Interpolated(tree)
    from lightkit.config.resolution import Resolution, is_valid  # here, because OmegaConf takes 80 ms to load

    if not check_expansion(tree, problems):
        return Interpolated(tree, unresolved=frozenset(texts))
    wrong = {path for path, leaf in texts.items() if not is_valid(path, leaf, problems)}
    resolution = Resolution(_without(tree, wrong), environ)
    values = resolution.resolve({path: leaf for path, leaf in texts.items() if path not in wrong}, problems)
    tree = _with_values(tree, values)
    secrets = sorted(resolution.secrets.items(), key=lambda pair: (-len(pair[0]), pair))
    unresolved = frozenset(path for path in texts if path not in values)
    written = {path: leaf.value for path, leaf in texts.items()}
    return Interpolated(tree, resolution.references, tuple(secrets), unresolved, written)


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
