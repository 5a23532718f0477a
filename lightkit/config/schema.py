"""The schema of a config.

What ``schema.json`` describes, which of it holds for the installed versions, and types.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from lightkit.config.bounds import BOUNDS, describe_bounds, is_too_large, is_within
from lightkit.config.origins import shortened
from lightkit.config.yaml_reader import read_as_yaml
from lightkit.errors import cut, near
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
_LINKS = {"array": "of", "object": "to"}
_LONGEST_WORD = 80  # a longer text is no misspelt word, and takes long to compare
_PLURALS = {"integer": "integers", "number": "numbers", "array": "lists", "object": "mappings"}


def join_alternatives(words: Iterable[str]) -> str:
    """Join words as in ``an integer, text or null``, each once."""
    each = list(dict.fromkeys(words))
    if "a number" in each and "an integer" in each:
        each.remove("an integer")
    before = ", ".join(each[:-1])
    # "such as eth0 or null" would make an example of null
    link = ", or " if "such as" in before else " or "
    return link.join(filter(None, [before, *each[-1:]]))


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
            [*map(_format_plain, branch["enum"])]
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
    if "pattern" in schema:
        return str(schema["expected"])
    kind = schema["type"]
    word = _WORDS[kind]
    if "properties" in schema:
        *others, last = schema["properties"]
        return f"{word} of {' and '.join(filter(None, [', '.join(others), last]))}"
    if "prefixItems" in schema:
        items = schema["prefixItems"]
        same = all(item == items[0] for item in items)
        return (
            f"a list of {len(items)} {_plural(items[0])}"
            if same
            else f"a list of {len(items)} values"
        )
    inner = schema.get("additionalProperties", schema.get("items"))
    return f"{word} {_LINKS[kind]} {_plural(inner)}" if inner else word


def _plural(schema: Schema) -> str:
    words = []
    for branch in list_branches(schema):
        if branch.get("type") == "null":
            continue  # it would read as one of what holds the values
        if "class" in branch and not branch.get("callable"):
            words.append(f"{branch['class'].rpartition('.')[2]}s")
        elif branch.get("type") in _PLURALS:
            words.append(
                _PLURALS[branch["type"]] + re.sub("^an? [a-z]+", "", describe_type(branch))
            )
        else:
            words.append("values" if not branch else describe_type(branch))
    return join_alternatives(words)


def _format_plain(value: Any) -> str:
    """Write a value as a config has it, text in quotes."""
    if isinstance(value, str):
        return repr(value)
    return "null" if value is None else str(value).lower()


def describe_expected(schema: Schema, value: Any) -> str:
    """Describe what a schema takes, for a value that it refuses: bounds if they alone refuse it."""
    return describe_refused_bounds(schema, value) or describe_type(schema)


def describe_refused(schema: Schema, value: Any) -> str:
    """Describe a value that a type refuses, with what the type takes, and a near word of it."""
    words = [
        choice
        for branch in list_branches(schema)
        for choice in branch.get("enum", ())
        if isinstance(choice, str)
    ]
    hint = ""
    if isinstance(value, str) and len(value) < _LONGEST_WORD:
        hint = near(value, words) or near(value.lower(), words)
    return f"expected {describe_expected(schema, value)}, got {format_value(value)}{hint}"


def format_value(value: Any) -> str:
    """Write a value as errors show it."""
    if isinstance(value, str):
        return shortened(value)
    return _format_plain(value) if value is None or isinstance(value, bool) else cut(repr(value))


def describe_refused_bounds(schema: Schema, value: Any) -> str | None:
    """Describe the bounds that a number is out of: ``1 or more``; None where they refuse none."""
    if any(is_too_large(read_as_yaml(each)) for each in _list_plain_values(value)):
        return f"{describe_type(schema)}, of a size below {sys.float_info.max:.2g}"
    bounded: list[Schema] = []
    others: list[Schema] = []
    for branch in list_branches(schema):
        if BOUNDS.isdisjoint(branch):
            others.append(branch)
        else:
            bounded.append(branch)
    free = any_of({"type": branch["type"]} for branch in bounded)
    is_number = accepts(free, value) or read_as_yaml(value) != read_as_yaml(value)  # NaN
    if not bounded or accepts(any_of(bounded), value) or not is_number:
        return None
    return join_alternatives([*map(describe_bounds, bounded), *map(describe_type, others)])


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
    reading = read_as_yaml(value)
    return reading is not value and any(_takes(branch, reading) for branch in branches)


def accepts_null(schema: Schema) -> bool:
    """Check whether null is a value of a type, and not only "not set"."""
    return _takes_inside(schema, None)


def read_value(schema: Schema, value: Any) -> Any:
    """Return a value that a type takes as one of the type, where a flag has text for it.

    A null in a mapping, where the type of the entry has none, is an entry that is not set.
    """
    branches = list_branches(schema)
    if isinstance(value, dict):
        # a mapping is an alternative of one kind: with known keys, or with values of one type
        mappings = [branch for branch in branches if branch.get("type") == "object"]
        entries = mappings[0] if mappings else _ANYTHING
        known = entries.get("properties", {})
        other = entries.get("additionalProperties", _ANYTHING)
        inside: dict[str, Any] = {}
        for key, each in value.items():
            entry = known.get(key, other)
            if each is not None or accepts_null(entry):
                inside[str(key)] = read_value(entry, each)
        return inside
    if any(_takes(branch, value) for branch in branches):
        return value
    return read_as_yaml(value)


def _takes(schema: Schema, value: Any) -> bool:
    if not schema:
        return True
    if "enum" in schema:
        return any(value == choice for choice in schema["enum"])  # 1 and True are equal there too
    kind = schema.get("type")
    if kind == "array":
        return isinstance(value, (list, tuple)) and _takes_items(schema, value)
    if kind == "object":
        return isinstance(value, dict) and _takes_entries(schema, value)
    if kind in _TYPES:
        return _takes_scalar(schema, kind, value)
    return True  # a class, which is judged elsewhere


def _takes_scalar(schema: Schema, kind: str, value: Any) -> bool:
    """Return whether a value is of a type, and within the bounds of a number.

    True is no number.
    """
    if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
        return False
    if kind in ("integer", "number"):
        return not is_too_large(value) and is_within(schema, value)
    return "pattern" not in schema or re.fullmatch(schema["pattern"], value) is not None


def _takes_entries(schema: Schema, entries: Mapping[Any, Any]) -> bool:
    if "properties" in schema:
        known = schema["properties"]
        return {*schema["required"]} <= {*entries} <= {*known} and all(
            _takes_inside(known[key], child) for key, child in entries.items()
        )
    inner = schema.get("additionalProperties", {})
    return all(_takes_inside(inner, child) for child in entries.values())


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
_ANYTHING: Schema = {}

NO_DEFAULT: Any = inspect.Parameter.empty
"""In place of the default of an argument that has none."""


class Argument(NamedTuple):
    """An argument of a class, or a key of a section or at the top of a config.

    Args:
        schema: Its type, see `lightkit.cli.class_descriptions.schema_of`.
        required: Whether it has to be set.
        default: Its default, as JSON has it, or `NO_DEFAULT`.
        help: Its text in the docstring.
        commands: Commands that take it, of a key at the top that not all take.
    """

    schema: Schema = _ANYTHING
    required: bool = False
    default: Any = NO_DEFAULT
    help: str = ""
    commands: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Return its entry in ``schema.json``."""
        entry = self._asdict()
        if self.default is NO_DEFAULT:
            del entry["default"]
        if not self.commands:
            del entry["commands"]
        return entry


@dataclass(frozen=True, kw_only=True)
class ClassDescription:
    """A class, or a section of plain keys: its arguments, and what its values have to fulfil.

    It comes from ``schema.json``, or from the signature of a class that has been imported
    (`lightkit.cli.class_descriptions.describe_class`).

    Args:
        path: Path of the class; of a section its name.
        help: First paragraph of its docstring.
        bases: Paths of the classes that it derives from; of the packaged schema those alone that
            arguments ask for.
        arguments: Arguments of the constructor, those that it passes on to its bases included.
        abstract: Whether it is a base class that cannot be built.
        open: Whether it takes other arguments, too, and passes them on (``**kwargs``).
        paths: Arguments that name files or folders which must exist, each with the kind.
        choices: Arguments whose values are listed, each with the values, which may be patterns.
        excludes: Pairs of arguments that exclude each other, each with a third one that has to be
            true for it.
        fetch: Whether it can fetch its data.
        check_installed: Whether it checks packages before it is built.
        error: Text of the error that its import has raised.
    """

    path: str
    help: str = ""
    bases: Collection[str] = ()
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    abstract: bool = False
    open: bool = False
    paths: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, Sequence[str]] = field(default_factory=dict)
    excludes: Sequence[Sequence[str]] = ()
    fetch: bool = False
    check_installed: bool = False
    error: str | None = None

    @property
    def defaults(self) -> dict[str, Any]:
        """Defaults of the arguments that have one."""
        return {
            name: argument.default
            for name, argument in self.arguments.items()
            if argument.default is not NO_DEFAULT
        }

    @classmethod
    def read(cls, path: str, entry: Mapping[str, Any]) -> ClassDescription:
        """Read the entry of a class in ``schema.json``."""
        arguments = {name: Argument(**each) for name, each in entry["arguments"].items()}
        return cls(**{**entry, "path": path, "arguments": arguments})

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the class in ``schema.json``, without what is as for most classes."""
        arguments = {name: argument.to_json() for name, argument in self.arguments.items()}
        entry = {"help": self.help, "bases": list(self.bases), "arguments": arguments}
        for name in _RARE_FIELDS:
            value = getattr(self, name)
            if value:
                entry[name] = value
        return entry


_RARE_FIELDS = ("abstract", "open", "paths", "choices", "excludes", "fetch", "check_installed")
"""Fields of a class that its entry has only where they say something."""


@dataclass(frozen=True)
class ConfigSchema:
    """Sections, keys and classes that a config can name.

    Args:
        data: What ``scripts/catalogue.py`` wrote.
        imported: Classes that have been imported and described in this process, by their paths.
    """

    data: Mapping[str, Any] = field(repr=False)
    imported: Mapping[str, ClassDescription] = field(default_factory=dict)

    def with_imported(self, classes: Mapping[str, ClassDescription]) -> ConfigSchema:
        """Add classes that this process has imported, by their paths."""
        return replace(self, imported={**self.imported, **classes})

    @cached_property
    def trusted(self) -> Collection[str]:
        """Packages that were described as they are installed.

        There are none where jsonargparse reads values by other rules.
        """
        recorded = self.data["versions"]
        same = {name for name in recorded if _find_version(name) == recorded[name]}
        return {package for package, name in PACKAGES.items() if {name, "jsonargparse"} <= same}

    @property
    def is_current(self) -> bool:
        """Return whether all of them were described as they are installed."""
        return {*PACKAGES} == {*self.trusted}

    @cached_property
    def sections(self) -> Mapping[str, ClassDescription]:
        """Sections of plain keys."""
        return _read_classes(self.data["sections"])

    @property
    def bases(self) -> Mapping[str, Sequence[str]]:
        """Sections of classes, each with the classes that may stand there or be derived from."""
        bases: Mapping[str, Sequence[str]] = self.data["bases"]
        return bases

    @property
    def section_names(self) -> list[str]:
        """Every top-level key that holds other keys: of plain values, and of classes."""
        return [*self.data["sections"], *self.data["bases"]]

    @cached_property
    def top(self) -> Mapping[str, Argument]:
        """Keys at the top of a config that hold one value."""
        return {name: Argument(**each) for name, each in self.data["top"].items()}

    @cached_property
    def classes(self) -> Mapping[str, ClassDescription]:
        """Every class that is described, by its path."""
        return {**_read_classes(self.data["classes"]), **self.imported}

    def find(self, name: str | None, bases: Collection[str] = ()) -> ClassDescription | None:
        """Find the description of a class; None where there is none.

        Args:
            name: Any path that leads to it, or its short name.
            bases: Classes that it may derive from, for a short name.
        """
        if name is None:
            return None
        if "." in name:
            name = real_name(name)
            return self.classes.get(self.data["aliases"].get(name, name))
        for base in bases:
            path = self.data["names"].get(base, {}).get(name)
            if isinstance(path, str) and path in self.classes:
                return self.classes[path]
        return None

    def find_valid(self, name: str | None, bases: Collection[str] = ()) -> ClassDescription | None:
        """Find the description of a class where it holds for what is installed."""
        found = self.find(name, bases)
        return found if found is not None and self.is_valid_for(found.path) else None

    def names_of(self, bases: Collection[str]) -> dict[str, list[str]]:
        """List the classes that derive from any of several bases, each with all its names.

        The shortest name comes first.
        """
        names: dict[str, list[str]] = {
            path: []
            for path, described in self.classes.items()
            if {*bases} & {*described.bases} and not described.abstract
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

    def section_of(self, described: ClassDescription) -> str | None:
        """Return the top-level key under which a class goes."""
        for section, bases in self.bases.items():
            if {*described.bases} & {*bases}:
                return section
        return None


def _read_classes(entries: Mapping[str, Any]) -> dict[str, ClassDescription]:
    return {path: ClassDescription.read(path, entry) for path, entry in entries.items()}


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
