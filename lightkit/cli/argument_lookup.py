"""Look up classes and their arguments, in the packaged schema or by import: default, type, help."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightkit.cli.config_loader import NAMED_CLASSES
from lightkit.config import KeyPath, near
from lightkit.config.accelerator.vocabulary import KEY_HELP
from lightkit.config.display import RedactedConfig, format_inline, format_origin, origin_fields
from lightkit.config.schema import load_schema
from lightkit.config.tree import Leaf, MappingNode, Node
from lightkit.errors import ConfigError


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
    def help(self) -> str:
        """The first sentence of its help."""
        text = " ".join(str(self.description.get("help") or "").split())
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
    owner, arguments = list_arguments(tree, tuple(above), imports=imports)
    found = arguments.get(str(last))
    return None if found is None else Argument(owner, found)


def list_keys(tree: Node, path: KeyPath) -> list[str]:
    """List the keys that may stand below a path."""
    return [str(key) for key in list_arguments(tree, path)[1]]


def list_arguments(tree: Node, path: KeyPath, *, imports: bool = True) -> tuple[str, Mapping[str, Any]]:
    """Return whose the keys below a path are, and the description of each: schema, default, help.

    Args:
        tree: The config, which names the classes.
        path: The path; empty for the top of a config.
        imports: Whether a class that is not known is imported.

    Raises:
        ConfigError: If its class cannot be imported.
    """
    data = load_schema().data
    sections = data["sections"]
    if not path:
        return "lightkit", {**{key: {"help": ""} for key in [*sections, *data["bases"]]}, **data["top"]}
    if path == ("accelerator",):  # each key is as in the section, as in the trainer, or a number
        known = {**sections["trainer"]["arguments"], **sections["accelerator"]["arguments"]}
        number = {"schema": {"type": "integer"}}
        return "lightkit", {key: {**known.get(key, number), "help": text} for key, text in KEY_HELP.items()}
    if len(path) == 1 and path[0] in sections:
        return "pytorch_lightning.Trainer" if path[0] == "trainer" else "lightkit", sections[path[0]]["arguments"]
    name = find_class(tree, path)
    if path[0] in NAMED_CLASSES and len(path) == 1:
        return "lightkit", {name: {"help": f"stands for {cls}"} for name, cls in NAMED_CLASSES[path[0]].items()}
    return ("", {}) if name is None else _of_class(name, data["bases"].get(path[0], ()), imports=imports)


def find_class(tree: Node, path: KeyPath) -> str | None:
    """Find the name of the class at a path; of an entry without a class_path that for which its name stands."""
    node: Node | None = tree
    for key in path[:-1] if path[-1] == "init_args" else path:
        node = _child(node, key)
    named = node.entries.get("class_path") if isinstance(node, MappingNode) else node
    if isinstance(named, Leaf) and isinstance(named.value, str):
        return None if "${" in named.value else named.value  # an interpolation that could not be resolved
    inside = [key for key in path if key != "init_args"]
    return NAMED_CLASSES.get(inside[0], {}).get(str(inside[1])) if len(inside) == 2 else None


def _child(node: Node | None, key: Any) -> Node | None:
    if isinstance(node, MappingNode):
        inner = node.entries.get("init_args")
        return node.entries.get(key) or (inner.entries.get(key) if isinstance(inner, MappingNode) else None)
    items = getattr(node, "items", ())
    return items[int(key)] if str(key).isdigit() and int(key) < len(items) else None


def _of_class(name: str, bases: Collection[str], *, imports: bool) -> tuple[str, Mapping[str, Any]]:
    schema = load_schema()
    path = schema.path_of(name, bases or list(schema.data["names"]))
    if path is not None and schema.counts(path):
        return path, schema.classes[path]["arguments"]
    if "." not in (path or name) or not imports:
        return "", {}
    return name, describe_import(path or name)["arguments"]


def describe_import(path: str) -> Mapping[str, Any]:
    """Import a class and describe it as the schema describes known ones.

    Args:
        path: Its path.

    Raises:
        ConfigError: If it cannot be imported.
    """
    module, _, name = path.rpartition(".")
    try:
        members = vars(importlib.import_module(module))
    except Exception as error:  # the module is anybody's
        raise ConfigError(f"{path} cannot be imported: {error}") from error
    if not isinstance(cls := members.get(name), type):
        classes = [known for known, member in members.items() if isinstance(member, type)]
        raise ConfigError(f"{module} has no class {name!r}{near(name, classes)}")
    from lightkit.cli.class_descriptions import describe_class  # here, because it loads torch and Lightning

    return describe_class(cls)


def list_class_names(section: str) -> Iterator[tuple[str, str]]:
    """List the classes of a section, each with the shortest name that means it alone, and its help."""
    schema, named = load_schema(), NAMED_CLASSES.get(section, {})
    bases = schema.data["bases"][section]
    for path, description in schema.classes.items():
        is_part = named and path.startswith("lightkit.") and path not in named.values()  # which lightkit adds itself
        if {*description["bases"]} & {*bases} and path != bases[0] and not (description.get("abstract") or is_part):
            short = path.rpartition(".")[2]
            is_unique = schema.path_of(short, bases) == path and not schema.namesakes(short, bases)
            yield short if is_unique else path, description["help"]


@dataclass(frozen=True)
class PlacedValue:
    """A printable value without secrets, and the place that set it.

    Args:
        value: The value.
        place: The place for people, on one line; empty where nothing sets the value.
        set_by: The place for programs.
    """

    value: Any
    place: str = ""
    set_by: Mapping[str, Any] | None = None

    @classmethod
    def of_node(cls, config: RedactedConfig, node: Node, path: KeyPath | None = None) -> PlacedValue:
        """Return the value at a path of a config; without a path one that was replaced, as it was written."""
        fields = origin_fields(node.origin).items()
        set_by = {name: config.masked(field) if isinstance(field, str) else field for name, field in fields}
        return cls(config.value(node, path), config.masked(format_origin(node.origin)), set_by)

    @classmethod
    def of_default(cls, argument: Argument) -> PlacedValue | None:
        """Return the default of an argument; None where it has none."""
        if "default" not in argument.description:
            return None
        return cls(argument.default, f"default of {argument.owner}", {"kind": "signature", "name": argument.owner})

    def fields(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"value": self.value, **({} if self.set_by is None else {"set_by": self.set_by})}

    @staticmethod
    def format_column(values: Sequence[PlacedValue], *, longest: int) -> list[str]:
        """Write values on a line each, with their places in a column."""
        texts = [format_inline(each.value, longest=longest) for each in values]
        width = max((len(text) for text in texts if len(text) <= longest // 2), default=0)
        return [f"{text:<{width}}  {each.place}".rstrip() for text, each in zip(texts, values, strict=True)]
