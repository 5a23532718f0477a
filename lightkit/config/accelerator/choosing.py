"""A config whose `auto`s have been chosen: each value where a number that the user fixes would stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lightkit.config.accelerator.homes import home_of
from lightkit.config.accelerator.said import Said
from lightkit.config.accelerator.writing import put
from lightkit.config.loader import Resolved
from lightkit.config.origins import KeyPath, Origin, dotted
from lightkit.config.tree import Leaf, Table

__all__ = ["chosen_config", "place_of"]


def chosen_config(resolved: Resolved, chosen: Mapping[str, Any]) -> Resolved:
    """Put values in the place of the `auto`s of the section `accelerator`.

    Args:
        resolved: The config, whose hardware keys are today's.
        chosen: By their keys in that section; None leaves what is said elsewhere.
    """
    section = resolved.tree.entries.get("accelerator")
    said = section.entries if isinstance(section, Table) else {}
    for key, value in chosen.items():
        home = home_of(key, _auto(key, said[key].origin if key in said else Origin("default")), resolved)
        resolved = _without_auto(resolved, key)
        if home is not None and value is not None:
            resolved = _with_value(resolved, home, value)
    return resolved


def place_of(key: str, resolved: Resolved) -> str | None:
    """Give the dotted key at which a config takes what a key of the section `accelerator` comes to.

    Args:
        key: Of the section.
        resolved: The config, whose hardware keys are today's.

    Returns:
        None where the section that takes it is not set.

    Raises:
        ConfigError: If its class is known to take no such argument.
    """
    home = home_of(key, _auto(key, Origin("default")), resolved)
    return None if home is None else dotted(home)


def _auto(key: str, origin: Origin) -> Said:
    return Said(("accelerator", key), Leaf("auto", origin), "auto")


def _without_auto(resolved: Resolved, key: str) -> Resolved:
    section = resolved.tree.entries.get("accelerator")
    if not isinstance(section, Table):
        return resolved
    left = {other: node for other, node in section.entries.items() if other != key}
    entries = {**resolved.tree.entries, "accelerator": replace(section, entries=left)}
    references = {path: text for path, text in resolved.references.items() if path[:2] != ("accelerator", key)}
    return replace(resolved, tree=replace(resolved.tree, entries=entries), references=references)


def _with_value(resolved: Resolved, home: KeyPath, value: Any) -> Resolved:
    references = {path: text for path, text in resolved.references.items() if path[: len(home)] != home}
    tree = put(resolved.tree, home, Leaf(value, Origin("default")))
    return replace(resolved, tree=tree, references=references)
