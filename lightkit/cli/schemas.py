"""Python's types, defaults and docstrings as the catalogue writes them: JSON, and words without markup."""

from __future__ import annotations

import inspect
import pathlib
import re
import types
from collections import abc
from datetime import timedelta
from enum import Enum
from functools import cache
from importlib import import_module
from typing import Any, Literal, Union, get_args, get_origin

from jsonargparse._typehints import accepts_any_value, get_callable_return_type

from lightkit.config.schema import any_of

__all__ = ["import_path", "paths_to", "plain_help", "plain_value", "schema_of"]

_LEAVES = {bool: "boolean", int: "integer", float: "number", str: "string", types.NoneType: "null"}
_LISTS = {
    list,
    set,
    frozenset,
    abc.Sequence,
    abc.MutableSequence,
    abc.Iterable,
    abc.Collection,
    abc.Set,
    abc.MutableSet,
}
_MAPPINGS = {dict, abc.Mapping, abc.MutableMapping}
_TEXT = {pathlib.Path, pathlib.PosixPath, timedelta}
"""Types that jsonargparse makes from text, and from nothing else."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_MARKUP = (
    (re.compile(r":\w+:`~?([^`<>]*?)(?:\s*<[^>]*>)?`"), lambda match: f"`{match[1].rpartition('.')[2]}`"),
    (re.compile(r"`([^`<>]+?)\s*<[^>]*>`_+"), lambda match: str(match[1])),
    (re.compile(r"``([^`]*)``"), lambda match: f"`{match[1]}`"),
)


def schema_of(typehint: Any) -> dict[str, Any]:
    """Give the JSON Schema of a type; ``{}``, which takes anything, where jsonargparse may take what JSON cannot say.

    A class is ``{"class": path}``, a function that makes one has ``"callable": true`` beside it: keywords of our own.
    """
    if typehint in _LEAVES:
        return {"type": _LEAVES[typehint]}
    if typehint in _TEXT:
        return {"type": "string"}
    origin, arguments = get_origin(typehint) or typehint, get_args(typehint)
    if origin in (Union, types.UnionType):
        return any_of(schema_of(argument) for argument in arguments)
    if origin is Literal:
        return {"enum": list(arguments)}
    if accepts_any_value(typehint):
        return {}
    if origin in _MAPPINGS:
        return {"type": "object", **({"additionalProperties": schema_of(arguments[1])} if arguments else {})}
    if origin in _LISTS:
        return {"type": "array", **({"items": schema_of(arguments[0])} if arguments else {})}
    if origin is tuple:
        return _tuple_schema(arguments)
    if origin is abc.Callable:
        returned = get_callable_return_type(typehint)  # type: ignore[no-untyped-call]
        return {"class": import_path(returned), "callable": True} if _is_plain_class(returned) else {}
    if isinstance(typehint, type) and issubclass(typehint, Enum):
        return {"enum": [member.name for member in typehint]}
    return {"class": import_path(typehint)} if _is_plain_class(typehint) else {}


def _tuple_schema(arguments: tuple[Any, ...]) -> dict[str, Any]:
    if not arguments:
        return {"type": "array"}
    if arguments[-1] is Ellipsis:
        return {"type": "array", "items": schema_of(arguments[0])}
    items = [schema_of(argument) for argument in arguments]
    return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}


@cache
def _is_plain_class(typehint: Any) -> bool:
    """Tell whether jsonargparse takes a class_path for a type, and nothing else."""
    from jsonargparse._common import is_subclasses_disabled
    from jsonargparse.typing import get_registered_type

    return (
        inspect.isclass(typehint)
        and not issubclass(typehint, (dict, list, tuple, str, int, float, BaseException))
        and typehint.__module__ not in ("builtins", "typing", "collections.abc")
        and not is_subclasses_disabled(typehint)
        and get_registered_type(typehint) is None
        and not getattr(typehint, "_is_protocol", False)
    )


def import_path(cls: type) -> str:
    """Give the shortest path that leads to a class."""
    return min(paths_to(cls), key=lambda path: (path.count("."), path))


def paths_to(cls: type) -> list[str]:
    """List the paths that lead to a class: its module, and the packages around it that export it."""
    parts = cls.__module__.split(".")
    modules = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
    exporting = [module for module in modules if getattr(import_module(module), cls.__name__, None) is cls]
    return [f"{module}.{cls.__name__}" for module in exporting] or [f"{cls.__module__}.{cls.__qualname__}"]


def plain_value(value: Any) -> Any:
    """Write a default as JSON; what JSON cannot hold as text, without an address that changes from run to run."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [plain_value(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain_value(item) for key, item in value.items()}
    return value.name if isinstance(value, Enum) else _ADDRESS.sub("", str(value))


def plain_help(text: str) -> str:
    """Write a docstring's text as one line, without the markup of Sphinx."""
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    return " ".join(text.split())
