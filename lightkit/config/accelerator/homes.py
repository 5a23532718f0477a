"""The key that a value of the block ``accelerator`` is for, where that is another one: of the data, the model, ..."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from lightkit.config.accelerator.said import Said
from lightkit.config.loader import Resolved
from lightkit.config.merge import class_of
from lightkit.config.origins import KeyPath, mistake
from lightkit.config.schema import load_schema
from lightkit.config.tree import Node, Table, plain

__all__ = ["home_of", "takes_auto"]

_RATES = ("learning_rate", "lr")
_FIXED: Mapping[str, KeyPath] = {"precision": ("trainer", "precision"), "threads": ("launch", "threads")}
_ARGUMENTS = ("num_workers", "batch_size", "learning_rate")


def home_of(key: str, said: Said, resolved: Resolved) -> KeyPath | None:
    """Give the path at which a config takes a value of the block: that of its own key, where no other one is for it.

    Args:
        key: Of the block. What ``num_workers``, ``batch_size`` and ``learning_rate`` are for depends on the classes.
        said: The value.
        resolved: The config.

    Returns:
        None where nothing says what it is for: the section was wrong and has been left out, or ``auto`` stands in a
        layer alone.

    Raises:
        ConfigError: If there is nothing that takes it.
    """
    if key not in _ARGUMENTS:
        return _FIXED.get(key, ("accelerator", key))
    section, names = _section_of(key, resolved.tree)
    node = resolved.tree.entries.get(section)
    if section not in resolved.layering.class_sections:  # its class is fixed in Python
        return section, _said_name(node, names) or names[0]
    if node is None or plain(node) is None:
        if said.value == "auto" or resolved.is_incomplete or any(path[:1] == (section,) for path in resolved.removed):
            return None
        raise mistake(f"{said}: nothing takes it, because {section} is not set; name its class", said.origin)
    inside = node.entries.get("init_args") if isinstance(node, Table) else None
    name = _said_name(inside, names) or _known_name(str(class_of(node)), section, names, said)
    return section, "init_args", name


def takes_auto(resolved: Resolved) -> bool:
    """Tell whether the config's data chooses its number of loading processes itself."""
    node = resolved.tree.entries.get("data")
    described = None if node is None or plain(node) is None else _described(str(class_of(node)), "data")
    arguments = {} if described is None else described["arguments"]
    return isinstance(arguments, Mapping) and "auto" in str(arguments.get("num_workers", {}).get("schema"))


def _section_of(key: str, tree: Table) -> tuple[str, Sequence[str]]:
    if key != "learning_rate":
        return "data", (key,)
    optimizer = tree.entries.get("optimizer")
    return ("model", _RATES) if optimizer is None or plain(optimizer) is None else ("optimizer", ("lr",))


def _said_name(arguments: Node | None, names: Sequence[str]) -> str | None:
    entries = arguments.entries if isinstance(arguments, Table) else {}
    return next((name for name in names if name in entries), None)


def _known_name(named: str, section: str, names: Sequence[str], said: Said) -> str:
    """Find the first name that a class has an argument for; the first one where nothing is known of the class."""
    described = _described(named, section)
    if described is None:
        return names[0]
    arguments: Collection[str] = described["arguments"]
    found = next((name for name in names if name in arguments), None)
    if found is None and not described.get("open"):
        says = f"{said}: {named.rpartition('.')[2]} has no argument {' or '.join(names)}, so that nothing takes it"
        raise mistake(f"{says}\narguments of {named}: {', '.join(arguments) or 'none'}", said.origin)
    return found or names[0]


def _described(named: str, section: str) -> dict[str, Any] | None:
    catalogue = load_schema().with_apart()
    bases = catalogue.data["bases"][section]
    path = catalogue.path_of(named, bases)
    if path is not None and catalogue.counts(path):
        described: dict[str, Any] = catalogue.classes[path]
        return described
    module, _, name = named.rpartition(".")
    with suppress(Exception, SystemExit):  # building the class reports whatever its module raises
        parameters = inspect.signature(getattr(importlib.import_module(module), name)).parameters
        is_open = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        return {"arguments": [*parameters], "open": is_open}
    return None
