"""Classes that a checkpoint names and the user does not: they are not imported, for importing runs code."""

from __future__ import annotations

import enum
import importlib
import importlib.util
import inspect
import os
import re
import shlex
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any

import yaml
from jsonargparse import get_loader
from pytorch_lightning import LightningModule

from lightkit.errors import ConfigError

__all__ = ["UnnamedClass", "class_of", "is_one_class", "refuse_unnamed"]

_UNIONS = (typing.Union, getattr(types, "UnionType", None))
_PLAIN = (str, bytes, int, float, bool, complex, type(None), list, dict, tuple, set, os.PathLike, enum.Enum)


_CONTAINERS = (list, dict, tuple, set)  # of anything, where no type says of what


class _Takes(enum.Enum):
    """What an argument makes of text: it keeps it, it parses it, or it may also import what it names."""

    TEXT = enum.auto()
    VALUES = enum.auto()
    NAMES = enum.auto()


class UnnamedClass(ConfigError):
    """A checkpoint names a class or a function that no config and no flag names."""


def refuse_unnamed(
    filled: Mapping[str, Any], given: Any, annotations: Mapping[str, Any], *, checkpoint: str, of: str | None = None
) -> None:
    """Make sure that arguments that a checkpoint has filled in name no class but those that the user names there.

    Args:
        filled: The model's arguments, the user's over the checkpoint's.
        given: The user's.
        annotations: The arguments' annotations, as far as they are known: text is no name where it is only text.
        checkpoint: The checkpoint's file.
        of: The model's class where only the checkpoint names it.

    Raises:
        UnnamedClass: If they name any.
    """
    given = given if isinstance(given, Mapping) else {}
    found = [] if of is None else [("model", str(of))]
    unknown = _Takes.NAMES if of is None else _Takes.VALUES
    for key, value in filled.items():
        takes = _taken(annotations[key]) if key in annotations else unknown
        found += _unnamed(value, given.get(key), f"model.{key}", takes)
    if not found:
        return
    found = [(key, shorten(name, 100, placeholder="...")) for key, name in found]
    raise UnnamedClass(
        f"{checkpoint} names {', '.join(f'{name} for {key}' for key, name in found)}, which no config and no flag "
        f"names: what only a checkpoint names is not imported. If you want it, say "
        f"{' '.join(shlex.quote(f'--{key}={name}') for key, name in found)}"
    )


def is_one_class(said: Any, full: Any) -> bool:
    """Tell whether a class's name, long or short, is that of a class path."""
    return said in (full, str(full).rpartition(".")[2])


def class_of(class_path: str) -> type | None:
    """Import a class that the user names, by its path or as LightningCLI finds short names; None where that fails."""
    module, _, name = str(class_path).rpartition(".")
    if not module:
        known = (kind for kind in _subclasses(LightningModule) if kind.__name__ == name)
        return next(known, None)
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        return None
    return found if isinstance(found, type) else None


def _subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for child in kind.__subclasses__():
        yield child
        yield from _subclasses(child)


def _unnamed(value: Any, said: Any, key: str, takes: _Takes) -> list[tuple[str, str]]:
    """List what a value names that the user's own value at that place does not, each with its key."""
    if isinstance(value, Mapping):
        return _unnamed_of_mapping(value, said, key, takes)
    if isinstance(value, (list, tuple, set)) and value != said:
        pairs = [_unnamed(child, None, f"{key}.{at}", takes) for at, child in enumerate(value)]
        return [pair for each in pairs for pair in each]
    is_named = isinstance(value, str) and value != said and _names_code(value, takes)
    return [(key, value)] if is_named else []


def _unnamed_of_mapping(value: Mapping[Any, Any], said: Any, key: str, takes: _Takes) -> list[tuple[str, str]]:
    own = said.get("class_path") if isinstance(said, Mapping) else said
    inner = said if isinstance(said, Mapping) else {}
    paths = {name for name in value if str(name).rpartition(".")[2] == "class_path"}  # jsonargparse splits at dots
    named = [(value[name], own if name == "class_path" else None) for name in paths if value[name] is not None]
    found = [(key, str(path)) for path, own_path in named if not is_one_class(own_path, path)]
    for name, child in value.items():
        if name not in paths:
            below = key if name in ("init_args", "dict_kwargs") else f"{key}.{name}"
            found += _unnamed(child, inner.get(name), below, _Takes.NAMES if paths else takes)
    return found


def _names_code(text: str, takes: _Takes) -> bool:
    """Tell whether text makes jsonargparse import something where a value of that kind is expected."""
    if takes is _Takes.TEXT:
        return False
    if takes is _Takes.NAMES and (_is_name_of_code(text) or _is_file_of_code(text)):
        return True
    if "class_path" in text:  # in whatever language the parser reads
        return True
    content = _parsed(text)
    try:
        return not isinstance(content, str) and bool(_unnamed(content, None, "", takes))
    except RecursionError:  # it contains itself
        return True


def _is_name_of_code(text: str) -> bool:
    """Tell whether text is what jsonargparse would import where a class or a function is expected."""
    first, *rest = text.split(".")
    if not rest or not all(part.isidentifier() for part in (first, *rest)):
        return False
    try:
        return importlib.util.find_spec(first) is not None  # of a top-level name it imports nothing
    except (ImportError, ValueError):
        return True


def _is_file_of_code(text: str) -> bool:
    """Tell whether text is the path of a file that jsonargparse would read as a config, or as a list of names."""
    path = Path(text).expanduser() if text.startswith("~") else Path(text)
    try:
        if not path.is_file():
            return path.exists() and not path.is_dir()  # what a pipe gives is known too late
        content = path.read_text()
    except (OSError, ValueError, RuntimeError):  # ValueError: no path, or no text
        return False
    is_text = "class_path" not in content and isinstance(_parsed(content), str)
    return not is_text or any(map(_is_name_of_code, content.split()))


def _parsed(text: str) -> Any:
    """Give the mapping or list that jsonargparse makes of text; text where it makes none of it.

    Text that the very loader fails on imports nothing.
    """
    try:
        content = get_loader("yaml")(text)
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError):
        return text
    return content if isinstance(content, (Mapping, list)) else text


def _taken(annotation: Any) -> _Takes:
    """Tell what an argument of this type makes of text."""
    if _takes_names(annotation):
        return _Takes.NAMES
    return _Takes.TEXT if _is_plain(annotation) else _Takes.VALUES


def _is_plain(annotation: Any) -> bool:
    """Tell whether a type holds text, numbers and lists of them alone."""
    if isinstance(annotation, str):
        return set(_words(_LIST_OF.sub(" ", annotation))) <= _PLAIN_WORDS - _WORDS_OF_ANYTHING
    if typing.get_origin(annotation) is typing.Literal:
        return True
    if parts := typing.get_args(annotation):
        is_mapping = isinstance(origin := typing.get_origin(annotation), type) and issubclass(origin, Mapping)
        return not is_mapping and all(_is_plain(part) for part in parts if part is not Ellipsis)
    return isinstance(annotation, type) and issubclass(annotation, _PLAIN) and not issubclass(annotation, _CONTAINERS)


def _takes_names(annotation: Any) -> bool:
    """Tell whether an argument of this type could take a class or a function by its name."""
    if annotation in (inspect.Parameter.empty, Any, object):
        return False
    if isinstance(annotation, str):
        return not _is_plain_text(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return False
    if parts := typing.get_args(annotation):
        origin = typing.get_origin(annotation)
        is_container = isinstance(origin, type) and issubclass(origin, Iterable)
        if not is_container and origin not in _UNIONS:
            return True
        return any(_takes_names(part) for part in parts if part is not Ellipsis)
    return not (isinstance(annotation, type) and issubclass(annotation, _PLAIN))


def _is_plain_text(annotation: str) -> bool:
    """Tell whether an annotation that is text, as with ``from __future__ import annotations``, has plain types only."""
    words = set(_words(annotation))
    return words <= _PLAIN_WORDS


def _words(text: str) -> Collection[str]:
    return "".join(letter if letter.isidentifier() or letter == "." else " " for letter in text).split()


_PLAIN_WORDS = {"str", "bytes", "int", "float", "bool", "complex", "None", "list", "dict", "tuple", "set", "Path",
                "Any", "Optional", "Union", "List", "Dict", "Tuple", "Sequence", "Mapping", "os.PathLike"}  # fmt: skip
_LIST_OF = re.compile(r"\b(list|tuple|set|List|Tuple|Sequence)\[")
_WORDS_OF_ANYTHING = {"Any", "list", "dict", "tuple", "set", "List", "Dict", "Tuple", "Sequence", "Mapping"}
