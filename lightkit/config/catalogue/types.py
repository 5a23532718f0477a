"""Types as JSON Schema: which values jsonargparse takes for them, and their names in plain words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import yaml

from lightkit.config.scalars import YamlLoader

__all__ = ["alternatives", "any_of", "branches_of", "shown", "takes", "with_article", "word_of"]

Schema = dict[str, Any]

_WORDS = {
    "int": "an integer",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "NoneType": "null",
    "list": "a list",
    "tuple": "a list",
    "set": "a list",
    "Sequence": "a list",
    "Iterable": "a list",
    "dict": "a mapping",
    "Mapping": "a mapping",
}
_PYTHON = {
    "integer": "int",
    "number": "float",
    "string": "str",
    "boolean": "bool",
    "null": "NoneType",
    "array": "list",
    "object": "dict",
}
_PLURALS = {"integer": "integers", "number": "numbers", "array": "lists", "object": "mappings"}


def word_of(kind: str) -> str:
    """Give the plain words for a type by its name in Python."""
    return _WORDS.get(kind, kind)


def alternatives(words: Iterable[str]) -> str:
    """Join words as in ``an integer, text or null``, each once."""
    each = list(dict.fromkeys(words))
    if "a number" in each and "an integer" in each:
        each.remove("an integer")
    return " or ".join(filter(None, [", ".join(each[:-1]), *each[-1:]]))


def any_of(schemas: Iterable[Schema]) -> Schema:
    """Make the schema that takes what any of several takes."""
    each: list[Schema] = []
    for schema in schemas:
        each += [branch for branch in branches_of(schema) if branch not in each]
    if {} in each:
        return {}
    return each[0] if len(each) == 1 else {"anyOf": each}


def branches_of(schema: Schema) -> list[Schema]:
    """List the alternatives of a schema."""
    branches: list[Schema] = schema.get("anyOf", [schema])
    return branches


def with_article(name: str) -> str:
    """Write ``a Callback``, ``an Optimizer``, ``an LRScheduler``."""
    spelled = name[1:2].isupper()
    return f"{'an' if name[:1] in ('AEFHILMNORSX' if spelled else 'AEIOU') else 'a'} {name}"


def shown(schema: Schema) -> str:
    """Say in plain words what a schema takes: ``a list of numbers or null``."""
    words: list[str] = []
    for branch in branches_of(schema):
        words += [_value(value) for value in branch["enum"]] if "enum" in branch else [_shown(branch)]
    return alternatives(words)


def _shown(schema: Schema) -> str:
    if "class" in schema:
        name = schema["class"].rpartition(".")[2]
        return f"a function that makes {with_article(name)}" if schema.get("callable") else with_article(name)
    if not schema:
        return "anything"
    kind = schema["type"]
    word = word_of(_PYTHON[kind])
    if kind == "object":
        return f"{word} to {_plural(schema['additionalProperties'])}" if schema.get("additionalProperties") else word
    if "prefixItems" in schema:
        items = schema["prefixItems"]
        same = all(item == items[0] for item in items)
        return f"a list of {len(items)} {_plural(items[0])}" if same else f"a list of {len(items)} values"
    return f"{word} of {_plural(schema['items'])}" if schema.get("items") else word


def _plural(schema: Schema) -> str:
    words = []
    for branch in branches_of(schema):
        if "class" in branch and not branch.get("callable"):
            words.append(f"{branch['class'].rpartition('.')[2]}s")
        elif branch.get("type") in _PLURALS:
            words.append(_PLURALS[branch["type"]] + re.sub("^an? [a-z]+", "", shown(branch)))
        else:
            words.append("values" if not branch else shown(branch))
    return alternatives(words)


def _value(value: Any) -> str:
    return repr(value) if isinstance(value, str) else "null" if value is None else str(value).lower()


def takes(schema: Schema, value: Any) -> bool:
    """Tell whether jsonargparse 4.53 may take a value for a type that is no class.

    Text is read as YAML where the type is not text: `'3'` is an integer. An integer is a number, but 1.0 is no integer,
    1 is no boolean, and an integer no text. A single value is no list. Null stands for "nothing said" everywhere.
    """
    return value is None or _takes_inside(schema, value)


def _takes_inside(schema: Schema, value: Any) -> bool:
    """Tell the same of what stands in a list or a mapping, where null is a value."""
    return any(_takes(branch, reading) for branch in branches_of(schema) for reading in _readings(value))


def _readings(value: Any) -> list[Any]:
    if not isinstance(value, str) or not value:
        return [value]
    try:
        return [value, yaml.load(value, Loader=YamlLoader)]  # noqa: S506 - a subclass of the safe loader
    except (yaml.YAMLError, ValueError, RecursionError):
        return [value]


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
        return isinstance(value, dict) and all(_takes_inside(inner, child) for child in value.values())
    if kind == "null":
        return value is None
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "string":
        return isinstance(value, str)
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return True  # a class, which is judged elsewhere


def _takes_items(schema: Schema, items: Sequence[Any]) -> bool:
    if "prefixItems" in schema:
        each = schema["prefixItems"]
        return len(items) == len(each) and all(_takes_inside(one, item) for one, item in zip(each, items, strict=True))
    return all(_takes_inside(schema.get("items", {}), item) for item in items)
