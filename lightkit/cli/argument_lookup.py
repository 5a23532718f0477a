"""What a key has that nobody set: the default of the class's signature, and what its help says. No torch, if known."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from lightkit.cli.config_loader import NAMED_CLASSES
from lightkit.cli.help.hardware import ACCELERATOR
from lightkit.config import KeyPath
from lightkit.config.schema import load_schema
from lightkit.config.tree import Leaf, Node, Table
from lightkit.errors import ConfigError

__all__ = ["Argument", "find_argument", "list_keys"]


@dataclass(frozen=True)
class Argument:
    """A key as its class describes it.

    Args:
        owner: Whose argument it is: a class's path, or a section.
        description: As a dictionary, as the catalogue writes it.
    """

    owner: str
    description: Mapping[str, Any]

    @property
    def is_required(self) -> bool:
        """Whether a config must set it."""
        return bool(self.description.get("required"))

    @property
    def default(self) -> Any:
        """The value that it has unless something sets it."""
        return self.description.get("default")

    @property
    def says(self) -> str:
        """The first sentence of its help."""
        text = " ".join(str(self.description.get("says") or "").split())
        first = text.partition(". ")[0]
        return first if first == text else f"{first}."


def find_argument(tree: Node, path: KeyPath, *, imports: bool = True) -> Argument | None:
    """Describe the key at a path; None where there is no such key.

    Args:
        tree: The config.
        path: Its path, in which ``init_args`` may be left out.
        imports: Whether a class that is not known is imported.

    Raises:
        ConfigError: If its class cannot be imported.
    """
    *above, last = path
    owner, arguments = _arguments(tree, tuple(above), imports=imports)
    found = arguments.get(str(last))
    return None if found is None else Argument(owner, found)


def list_keys(tree: Node, path: KeyPath) -> list[str]:
    """List the keys that may stand below a path."""
    return [str(key) for key in _arguments(tree, path, imports=True)[1]]


def _arguments(tree: Node, path: KeyPath, *, imports: bool) -> tuple[str, Mapping[str, Any]]:
    data = load_schema().data
    if not path:
        sections = {key: {"says": ""} for key in [*data["sections"], *data["bases"]]}
        return "lightkit", {**sections, **data["top"]}
    if path == ("accelerator",):
        own = data["sections"]["accelerator"]["arguments"]
        return "lightkit", {key: {**own.get(key, {}), "says": says} for key, says in ACCELERATOR.items()}
    if len(path) == 1 and path[0] in data["sections"]:
        owner = "pytorch_lightning.Trainer" if path[0] == "trainer" else "lightkit"
        return owner, data["sections"][path[0]]["arguments"]
    named = _class_at(tree, path)
    if path[0] in NAMED_CLASSES and len(path) == 1:
        return "lightkit", {name: {"says": f"stands for {cls}"} for name, cls in NAMED_CLASSES[path[0]].items()}
    return ("", {}) if named is None else _of_class(named, data["bases"].get(path[0], ()), imports=imports)


def _class_at(tree: Node, path: KeyPath) -> str | None:
    node: Node | None = tree
    for key in path[:-1] if path[-1] == "init_args" else path:
        node = _child(node, key)
    named = node.entries.get("class_path") if isinstance(node, Table) else node
    if isinstance(named, Leaf) and isinstance(named.value, str):
        return None if "${" in named.value else named.value  # what could not be resolved names no class
    inside = [key for key in path if key != "init_args"]
    return NAMED_CLASSES.get(inside[0], {}).get(str(inside[1])) if len(inside) == 2 else None


def _child(node: Node | None, key: Any) -> Node | None:
    if isinstance(node, Table):
        inner = node.entries.get("init_args")
        return node.entries.get(key) or (inner.entries.get(key) if isinstance(inner, Table) else None)
    items = getattr(node, "items", ())
    return items[int(key)] if str(key).isdigit() and int(key) < len(items) else None


def _of_class(name: str, bases: Collection[str], *, imports: bool) -> tuple[str, Mapping[str, Any]]:
    catalogue = load_schema()
    path = catalogue.path_of(name, bases or list(catalogue.data["names"]))
    if path is not None and catalogue.counts(path):
        return path, catalogue.classes[path]["arguments"]
    module, _, short = (path or name).rpartition(".")
    if not module or not imports:
        return "", {}
    try:
        cls = getattr(importlib.import_module(module), short)
    except Exception as error:  # whatever a module of the user's own raises is told
        raise ConfigError(f"{name} cannot be imported: {error}") from error
    from lightkit.cli.class_descriptions import describe_class  # here, because it loads torch and Lightning

    return name, describe_class(cls)["arguments"]
