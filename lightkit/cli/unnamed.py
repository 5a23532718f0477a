"""Classes that a checkpoint names and the user does not: they are not imported, for importing runs code."""

from __future__ import annotations

import enum
import importlib
import importlib.util
import inspect
import os
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from pytorch_lightning import LightningModule

from lightkit.errors import ConfigError

__all__ = ["UnnamedClass", "class_of", "is_one_class", "refuse_unnamed"]

_UNIONS = (typing.Union, getattr(types, "UnionType", None))
_PLAIN = (str, bytes, int, float, bool, complex, type(None), list, dict, tuple, set, os.PathLike, enum.Enum)


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
    for key, value in filled.items():
        takes_names = _takes_names(annotations[key]) if key in annotations else of is None
        found += _unnamed(value, given.get(key), f"model.{key}", takes_names=takes_names)
    if not found:
        return
    raise UnnamedClass(
        f"{checkpoint} names {', '.join(f'{name} for {key}' for key, name in found)}, which no config and no flag "
        f"names: what only a checkpoint names is not imported. If you want it, say "
        f"{' '.join(f'--{key}={name}' for key, name in found)}"
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


def _unnamed(value: Any, said: Any, key: str, *, takes_names: bool) -> list[tuple[str, str]]:
    """List what a value names that the user's own value at that place does not, each with its key."""
    if isinstance(value, Mapping):
        named = value.get("class_path")
        own = said.get("class_path") if isinstance(said, Mapping) else said
        found = [(key, str(named))] if named is not None and not is_one_class(own, named) else []
        inner = said if isinstance(said, Mapping) else {}
        for name, child in value.items():
            if name != "class_path":
                below = key if name in ("init_args", "dict_kwargs") else f"{key}.{name}"
                found += _unnamed(child, inner.get(name), below, takes_names=takes_names)
        return found
    if isinstance(value, (list, tuple, set)) and value != said:
        pairs = [_unnamed(child, None, f"{key}.{at}", takes_names=takes_names) for at, child in enumerate(value)]
        return [pair for each in pairs for pair in each]
    is_name = takes_names and isinstance(value, str) and value != said and _is_name_of_code(value)
    return [(key, value)] if is_name else []


def _is_name_of_code(text: str) -> bool:
    """Tell whether text is what jsonargparse would import where a class or a function is expected."""
    first, *rest = text.split(".")
    if not rest or not all(part.isidentifier() for part in (first, *rest)):
        return False
    try:
        return importlib.util.find_spec(first) is not None  # of a top-level name it imports nothing
    except (ImportError, ValueError):
        return True


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
