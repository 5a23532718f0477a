"""The schema of a config.

What ``schema.json`` describes, which of it holds for the installed versions, and types.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from lightkit.config.bounds import BOUNDS, describe_bounds, is_too_large, is_within
from lightkit.config.yaml_reader import YamlLoader
from lightkit.lightning_namespace import real_name

Schema = dict[str, Any]

_WORDS = {
    "integer": "an integer",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "null": "null",
    "array": "a list",
    "object": "a mapping",
}
"""Plain names of the types of JSON Schema."""
_TYPES: dict[str, Any] = {
    "null": type(None),
    "boolean": bool,
    "string": str,
    "integer": int,
    "number": (int, float),
}
_PLURALS = {"integer": "integers", "number": "numbers", "array": "lists", "object": "mappings"}


def join_alternatives(words: Iterable[str]) -> str:
    """Join words as in ``an integer, text or null``, each once."""
    each = list(dict.fromkeys(words))
    if "a number" in each and "an integer" in each:
        each.remove("an integer")
    return " or ".join(filter(None, [", ".join(each[:-1]), *each[-1:]]))


def any_of(schemas: Iterable[Schema]) -> Schema:
    """Make the schema that takes what any of several takes."""
    each: list[Schema] = []
    for schema in schemas:
        each += [branch for branch in list_branches(schema) if branch not in each]
    if {} in each:
        return {}
    return each[0] if len(each) == 1 else {"anyOf": each}


def list_branches(schema: Schema) -> list[Schema]:
    """List the alternatives of a schema."""
    branches: list[Schema] = schema.get("anyOf", [schema])
    return branches


def with_article(name: str) -> str:
    """Write ``a Callback``, ``an Optimizer``, ``an LRScheduler``."""
    spelled = name[1:2].isupper()
    return f"{'an' if name[:1] in ('AEFHILMNORSX' if spelled else 'AEIOU') else 'a'} {name}"


def describe_type(schema: Schema) -> str:
    """Describe in plain English what a schema takes: ``a list of numbers or null``."""
    words: list[str] = []
    for branch in list_branches(schema):
        words += (
            [_value(value) for value in branch["enum"]]
            if "enum" in branch
            else [_describe_branch(branch)]
        )
    return join_alternatives(words)


def _describe_branch(schema: Schema) -> str:
    if "class" in schema:
        name = schema["class"].rpartition(".")[2]
        return (
            f"a function that makes {with_article(name)}"
            if schema.get("callable")
            else with_article(name)
        )
    if not schema:
        return "anything"
    kind = schema["type"]
    word = _WORDS[kind]
    if kind == "object":
        return (
            f"{word} to {_plural(schema['additionalProperties'])}"
            if schema.get("additionalProperties")
            else word
        )
    if "prefixItems" in schema:
        items = schema["prefixItems"]
        same = all(item == items[0] for item in items)
        return (
            f"a list of {len(items)} {_plural(items[0])}"
            if same
            else f"a list of {len(items)} values"
        )
    return f"{word} of {_plural(schema['items'])}" if schema.get("items") else word


def _plural(schema: Schema) -> str:
    words = []
    for branch in list_branches(schema):
        if "class" in branch and not branch.get("callable"):
            words.append(f"{branch['class'].rpartition('.')[2]}s")
        elif branch.get("type") in _PLURALS:
            words.append(
                _PLURALS[branch["type"]] + re.sub("^an? [a-z]+", "", describe_type(branch))
            )
        else:
            words.append("values" if not branch else describe_type(branch))
    return join_alternatives(words)


def _value(value: Any) -> str:
    return (
        repr(value) if isinstance(value, str) else "null" if value is None else str(value).lower()
    )


def describe_refused_bounds(schema: Schema, value: Any) -> str | None:
    """Describe the bounds that a number is out of: ``1 or more``.

    None where the type of the value is wrong.
    """
    if any(is_too_large(_read_text(each)) for each in _list_plain_values(value)):
        return f"{describe_type(schema)}, of a size below {sys.float_info.max:.2g}"
    branches = list_branches(schema)
    bounded = [branch for branch in branches if any(key in BOUNDS for key in branch)]
    free = [{"type": branch["type"]} for branch in bounded]
    if not bounded or not accepts(any_of(free), value):
        return None
    words = [describe_bounds(branch) for branch in bounded]
    words += [describe_type(branch) for branch in branches if branch not in bounded]
    return join_alternatives(words)


def _list_plain_values(value: Any) -> list[Any]:
    """List the plain values in lists and mappings."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [plain for each in value for plain in _list_plain_values(each)]
    return [value]


def accepts(schema: Schema, value: Any) -> bool:
    """Check whether jsonargparse 4.53 may take a value for a type that is no class.

    Text is read as YAML where the type is not text: `'3'` is an integer. An integer is a number,
    but 1.0 is no integer, 1 is no boolean, and an integer no text. A single value is no list. Null
    stands for "not set" everywhere.

    An integer that no float can hold is refused, though jsonargparse takes it: with torch and each
    float it overflows.
    """
    return value is None or _takes_inside(schema, value)


def _takes_inside(schema: Schema, value: Any) -> bool:
    """Check the same of a value in a list or a mapping, where null is a value."""
    branches = list_branches(schema)
    if any(_takes(branch, value) for branch in branches):
        return True
    reading = _read_text(value)
    return reading is not value and any(_takes(branch, reading) for branch in branches)


def _read_text(value: Any) -> Any:
    """Return what a text is as YAML; the value itself where it is no text, or no YAML."""
    if not isinstance(value, str) or not value:
        return value
    try:
        return yaml.load(value, Loader=YamlLoader)  # noqa: S506 - a subclass of the safe loader
    except (yaml.YAMLError, ValueError, RecursionError):
        return value


def _takes(schema: Schema, value: Any) -> bool:
    if not schema:
        return True
    if "enum" in schema:
        return any(value == choice for choice in schema["enum"])  # 1 and True are equal there too
    kind = schema.get("type")
    if kind == "array":
        return isinstance(value, (list, tuple)) and _takes_items(schema, value)
    if kind == "object":
        inner = schema.get("additionalProperties", {})
        return isinstance(value, dict) and all(
            _takes_inside(inner, child) for child in value.values()
        )
    if kind in _TYPES:
        return _takes_scalar(schema, kind, value)
    return True  # a class, which is judged elsewhere


def _takes_scalar(schema: Schema, kind: str, value: Any) -> bool:
    """Return whether a value is of a type, and within the bounds of a number.

    True is no number.
    """
    if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
        return False
    is_number = kind in ("integer", "number")
    return not is_number or (not is_too_large(value) and is_within(schema, value))


def _takes_items(schema: Schema, items: Sequence[Any]) -> bool:
    if "prefixItems" in schema:
        each = schema["prefixItems"]
        return len(items) == len(each) and all(
            _takes_inside(one, item) for one, item in zip(each, items, strict=True)
        )
    return all(_takes_inside(schema.get("items", {}), item) for item in items)


PACKAGES = {
    "lightkit": "pytorch-lightning",
    "lightning_fabric": "pytorch-lightning",
    "pytorch_lightning": "pytorch-lightning",
    "torch": "torch",
}
"""Packages whose classes are described, each with the distribution whose version decides whether
that counts.

Lightkit's own come with the schema, but take arguments of Lightning's over.
"""
_FILE = Path(__file__).with_name("schema.json")


@dataclass(frozen=True)
class ConfigSchema:
    """Sections, keys and classes that a config can name.

    Args:
        data: What ``scripts/catalogue.py`` wrote.
        imported: Classes that have been imported and described in this process.
    """

    data: Mapping[str, Any] = field(repr=False)
    imported: frozenset[str] = frozenset()

    def with_imported(self, classes: Mapping[str, Any]) -> ConfigSchema:
        """Add classes that this process has imported, each described as in the file.

        Args:
            classes: What they are and take, by their paths.
        """
        data = {**self.data, "classes": {**self.classes, **classes}}
        return replace(self, data=data, imported=self.imported | {*classes})

    @cached_property
    def trusted(self) -> Collection[str]:
        """Packages that were described as they are installed.

        None, where jsonargparse reads values by other rules.
        """
        recorded = self.data["versions"]
        same = {name for name in recorded if _find_version(name) == recorded[name]}
        return {package for package, name in PACKAGES.items() if {name, "jsonargparse"} <= same}

    @property
    def is_current(self) -> bool:
        """Return whether all of them were described as they are installed."""
        return {*PACKAGES} == {*self.trusted}

    @property
    def sections(self) -> list[str]:
        """Every top-level key that holds others: those of plain values, and those of classes."""
        return [*self.data["sections"], *self.data["bases"]]

    @property
    def classes(self) -> Mapping[str, Any]:
        """Every class that is described, by its path."""
        classes: Mapping[str, Any] = self.data["classes"]
        return classes

    def path_of(self, name: str, bases: Collection[str] = ()) -> str | None:
        """Return the path of a class that is described.

        Args:
            name: Any path that leads to it, or its short name.
            bases: Classes that it may derive from, for a short name.
        """
        if "." in name:
            name = real_name(name)
            path = self.data["aliases"].get(name, name)
            return path if path in self.classes else None
        found = [self.data["names"].get(base, {}).get(name) for base in bases]
        return next(
            (path for path in found if isinstance(path, str) and path in self.classes), None
        )

    def names_of(self, bases: Collection[str]) -> dict[str, list[str]]:
        """List the described classes that derive from any of several bases.

        Each with all its names, shortest first.
        """
        names: dict[str, list[str]] = {
            path: []
            for path, described in self.classes.items()
            if {*bases} & {*described["bases"]} and not described.get("abstract")
        }
        short = [
            pair for base in sorted(bases) for pair in self.data["names"].get(base, {}).items()
        ]
        for name, path in [
            *short,
            *((path, path) for path in names),
            *self.data["aliases"].items(),
        ]:
            if isinstance(path, str) and name not in names.get(path, [name]):
                names[path].append(name)
        return names

    def is_valid_for(self, path: str) -> bool:
        """Check whether the description of a class, or of a module, holds for what is installed."""
        return path in self.imported or path.partition(".")[0] in self.trusted

    def section_of(self, path: str) -> str | None:
        """Return the top-level key under which a class goes."""
        bases = set(self.classes[path]["bases"])
        return next(
            (section for section, known in self.data["bases"].items() if bases & {*known}), None
        )


@cache
def load_schema() -> ConfigSchema:
    """Read the schema, once in a process."""
    return ConfigSchema(json.loads(_FILE.read_text(encoding="utf-8")))


def _find_version(name: str) -> str | None:
    """Return the installed version of a distribution without the build, as in ``2.9.0+cpu``."""
    try:
        return metadata.version(name).partition("+")[0]
    except metadata.PackageNotFoundError:
        return None
