"""The config with today's keys in the place of those for hardware, each from the place that said it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lightkit.config.accelerator.said import OLD_TRAINER_KEYS, Said
from lightkit.config.loader import Resolved
from lightkit.config.origins import KeyPath, mistake
from lightkit.config.tree import Node, Table, graft, plain

__all__ = ["put", "rewritten", "valued"]

_NUMBERS = (("trainer", "devices"), ("trainer", "num_nodes"), ("launch", "processes"))
"""Keys whose values stay as they are: text from a flag is the reader's to understand."""


def valued(value: Any, said: Said) -> Node:
    """Give a value the place that asked for it; the node itself where it says just that, or is the trainer's own."""
    wanted = list(value) if isinstance(value, tuple) else value
    is_own = said.path in _NUMBERS
    return said.node if is_own or plain(said.node) == wanted else graft(wanted, said.origin)


def rewritten(resolved: Resolved, settings: Mapping[KeyPath, tuple[Node, Said]]) -> Resolved:
    """Lay settings into a config, and take the hardware keys out.

    What the environment gave is a reference at its new place too, unless it reads differently there.

    Args:
        resolved: The config.
        settings: By path: the value, and what asked for it.

    Raises:
        ConfigError: If what a setting goes into is no mapping.
    """
    trainer = resolved.tree.entries.get("trainer")
    gone = [("trainer", key) for key in OLD_TRAINER_KEYS if isinstance(trainer, Table) and key in trainer.entries]
    removed = [path for path in (("accelerator",), *gone) if path[0] in resolved.tree.entries]
    if not settings and not removed:
        return resolved
    tree = resolved.tree
    references = dict(resolved.references)
    for gone_path in removed:
        tree = _without(tree, gone_path)
        references = _outside(references, gone_path)
    for path, (node, said) in settings.items():
        tree = put(tree, path, node)
        references = _outside(references, path)
        references.update(_moved(resolved, said, path, node))
    return replace(resolved, tree=tree, references=references)


def _moved(resolved: Resolved, said: Said, path: KeyPath, node: Node) -> dict[KeyPath, str]:
    if str(plain(said.node)) != str(plain(node)):
        return {}
    below = {old: text for old, text in resolved.references.items() if old[: len(said.path)] == said.path}
    return {(*path, *old[len(said.path) :]): text for old, text in below.items()}


def _outside(references: Mapping[KeyPath, str], path: KeyPath) -> dict[KeyPath, str]:
    return {old: text for old, text in references.items() if old[: len(path)] != path}


def put(table: Table, path: KeyPath, node: Node) -> Table:
    """Give a table with a node at a path, whose sections are made where they are missing.

    Raises:
        ConfigError: If what it goes into is no mapping.
    """
    key, rest = path[0], path[1:]
    if not rest:
        return replace(table, entries={**table.entries, key: node})
    inner = table.entries.get(key)
    if inner is None or plain(inner) is None:
        inner = Table({}, node.origin)
    if not isinstance(inner, Table):
        raise mistake(f"{key}: expected a mapping, got {plain(inner)!r}", inner.origin)
    return replace(table, entries={**table.entries, key: put(inner, rest, node)})


def _without(table: Table, path: KeyPath) -> Table:
    key, rest = path[0], path[1:]
    inner = table.entries[key]
    if rest and isinstance(inner, Table):
        return replace(table, entries={**table.entries, key: _without(inner, rest)})
    return replace(table, entries={other: node for other, node in table.entries.items() if other != key})
