"""Classes described by their signatures and docstrings.

Arguments, JSON Schemas of their types, defaults, help.
"""

from __future__ import annotations

import inspect
import pathlib
import re
import sys
import types
from collections import abc
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import Enum
from functools import cache
from typing import (
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from jsonargparse._common import is_subclasses_disabled
from jsonargparse._typehints import get_callable_return_type
from jsonargparse.typing import get_registered_type
from lightning_fabric.plugins import CheckpointIO, ClusterEnvironment
from pytorch_lightning import Callback, LightningDataModule, LightningModule
from pytorch_lightning.accelerators import Accelerator
from pytorch_lightning.cli import LightningArgumentParser, ReduceLROnPlateau
from pytorch_lightning.loggers import Logger
from pytorch_lightning.plugins import LayerSync, Precision
from pytorch_lightning.profilers import Profiler
from pytorch_lightning.strategies import Strategy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightkit.config.bounds import find_hints, has_bounds, read_bounds
from lightkit.config.schema import NO_DEFAULT, Argument, ClassDescription, any_of, list_branches

SECTION_BASES: dict[str, tuple[type, ...]] = {
    "model": (LightningModule,),
    "data": (LightningDataModule,),
    "optimizer": (Optimizer,),
    "lr_scheduler": (LRScheduler, ReduceLROnPlateau),
    "callbacks": (Callback,),
    "logger": (Logger,),
}

BASES = (
    *(base for bases in SECTION_BASES.values() for base in bases),
    Accelerator,
    CheckpointIO,
    ClusterEnvironment,
    LayerSync,
    Precision,
    Profiler,
    Strategy,
)
"""Classes that arguments ask for."""

_FILLED_IN = {Optimizer: "params", LRScheduler: "optimizer", ReduceLROnPlateau: "optimizer"}
"""Arguments that LightningCLI gives itself."""

_SIGNATURE = re.compile(r"\w+\(.*\)")
"""What Python writes as the docstring of a dataclass that has none."""
_LEAVES = {
    bool: "boolean", int: "integer", float: "number", str: "string", types.NoneType: "null",
    pathlib.Path: "string", pathlib.PosixPath: "string", timedelta: "string",
}  # fmt: skip

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")

_MARKUP = (
    (
        re.compile(r":\w+:`~?([^`<>]*?)(?:\s*<[^>]*>)?`"),
        lambda match: f"`{match[1].rpartition('.')[2]}`",
    ),
    (re.compile(r"`([^`<>]+?)\s*<[^>]*>`_+"), lambda match: str(match[1])),
    (re.compile(r"``([^`]*)``"), lambda match: f"`{match[1]}`"),
)


@cache
def describe_class(cls: type) -> ClassDescription:
    """Describe a class by its signature and docstring, under the shortest path that leads to it.

    Raises:
        Exception: Any error that jsonargparse raises on a signature that it cannot read.
    """
    parser = LightningArgumentParser(exit_on_error=False)
    skip = {name for base, name in _FILLED_IN.items() if issubclass(cls, base)}
    parser.add_class_arguments(cls, fail_untyped=False, skip=skip, sub_configs=True)
    return ClassDescription(
        path=import_path(cls),
        help=plain_help(_own_docstring(cls).partition("\n\n")[0]),
        bases=[import_path(base) for base in cls.__mro__],
        arguments=describe_arguments(parser, "", find_hints(cls)),
        abstract=inspect.isabstract(cls),
        open=inspect.getfullargspec(cls).varkw is not None,
        paths=_list_paths(cls),
        choices={name: list(each) for name, each in getattr(cls, "input_choices", {}).items()},
        excludes=[list(each) for each in getattr(cls, "excluded_inputs", ())],
        fetch=callable(getattr(cls, "fetch", None)),
        check_installed=callable(getattr(cls, "check_installed", None)),
    )


_SECTION_HEADS = ("Args:", "Arguments:", "Parameters")
"""How a docstring begins that describes the arguments alone."""


def _own_docstring(cls: type) -> str:
    """Return the docstring of a class, of its constructor, or of a base of the user's.

    A base is asked where neither has one, and lies below those that arguments ask for.

    That of such a base, as `inspect.getdoc` returns it then, says nothing of the class: of
    `ModelPruning` it is "Abstract base class used to build new callbacks".
    """
    for owner in cls.__mro__:
        if owner is not cls and owner in BASES:
            break
        constructor = vars(owner).get("__init__")
        texts = [vars(owner).get("__doc__"), None if constructor is None else constructor.__doc__]
        for text in texts:
            if isinstance(text, str) and not text.strip().startswith(_SECTION_HEADS):
                return inspect.cleandoc(text)
        if owner in BASES:
            break
    return ""


_INPUTS = (
    ("folder", "input_folders"),
    ("file", "input_files"),
    ("any", "input_paths"),
    ("table", "input_tables"),
)


def _list_paths(cls: type) -> dict[str, str]:
    """List the arguments that name files or folders which must exist, each with the kind."""
    paths = {name: kind for kind, names in _INPUTS for name in getattr(cls, names, ())}
    for name in getattr(cls, "class_folders", ()):
        if paths.get(name) == "folder":
            paths[name] = "class_folders"
    return paths


def _list_required(parser: LightningArgumentParser) -> set[str]:
    """List the keys that a parser requires."""
    of_options = {str(action.dest) for action in parser._actions if action.required}
    return of_options | parser._extra_required_keys


def describe_arguments(
    parser: LightningArgumentParser, prefix: str, hints: Mapping[str, Any]
) -> dict[str, Argument]:
    """Describe the arguments of a parser below a prefix.

    Args:
        parser: The parser, which knows the types without their bounds.
        prefix: The prefix, such as ``trainer.``.
        hints: Types with their bounds, by the names of the arguments.
    """
    required = _list_required(parser)
    found: dict[str, Argument] = {}
    for action in parser._actions:
        name = action.dest.removeprefix(prefix)
        is_of_prefix = action.dest.startswith(prefix) and name != prefix.rstrip(".")
        if not is_of_prefix or not _type_of(action) or name.endswith(".help"):
            continue
        whole, _, inside = name.partition(".")
        is_required = action.dest in required
        if inside:
            folded = found.get(whole) or _describe_dataclass(parser, f"{prefix}{whole}")
            found[whole] = folded._replace(required=folded.required or is_required)
        else:
            found[name] = _describe_action(action, hints.get(name), required=is_required)
    return found


def _type_of(action: Any) -> Any:
    """Return the type of an option's values."""
    return getattr(action, "_typehint", None) or action.type


def _describe_action(action: Any, hint: Any, *, required: bool) -> Argument:
    """Describe the argument of an option, by the type of its signature where that has bounds."""
    return Argument(
        schema_of(hint if has_bounds(hint) else _type_of(action)),
        required=required,
        default=NO_DEFAULT if required else plain_value(action.default),
        help=plain_help(action.help if isinstance(action.help, str) else ""),
    )


def _describe_dataclass(parser: LightningArgumentParser, key: str) -> Argument:
    """Describe a dataclass, of which jsonargparse makes one option for each field.

    It may be a mapping of the fields, a class with its arguments or a file, so that only
    jsonargparse judges it.
    """
    group = (parser.groups or {}).get(key)
    title = plain_help((group.title if group is not None else None) or "")
    return Argument(help="" if _SIGNATURE.fullmatch(title) else title)


def schema_of(typehint: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type.

    ``{}``, which takes anything, where jsonargparse takes what JSON cannot hold, or every value.

    A class is ``{"class": path}``, a function that makes one has ``"callable": true`` too, and
    ``"given": 2`` where it is called with two arguments, which need not be set: keywords of our
    own.
    """
    if typehint in _LEAVES:
        return {"type": _LEAVES[typehint]}
    describe = _SCHEMAS.get(get_origin(typehint) or typehint, _class_schema)
    return describe(typehint)


def _bounded_schema(typehint: Any) -> dict[str, Any]:
    """Return the schema of an `Annotated` type: without bounds, it may take any text."""
    bounds = read_bounds(typehint)
    return with_bounds(schema_of(get_args(typehint)[0]), bounds) if bounds else {}


def _union_schema(typehint: Any) -> dict[str, Any]:
    return any_of(map(schema_of, get_args(typehint)))


def _choice_schema(typehint: Any) -> dict[str, Any]:
    return {"enum": list(get_args(typehint))}


def _record_schema(typehint: Any) -> dict[str, Any]:
    """Return the schema of a mapping whose keys are known, a `TypedDict`."""
    hints = get_type_hints(typehint, include_extras=True)
    return {
        "type": "object",
        "properties": {name: schema_of(hint) for name, hint in hints.items()},
        "required": sorted(typehint.__required_keys__),
    }


def _class_schema(typehint: Any) -> dict[str, Any]:
    """Return the schema of a class; ``{}`` where jsonargparse takes something else for it."""
    if is_typeddict(typehint):
        return _record_schema(typehint)
    if isinstance(typehint, type) and issubclass(typehint, Enum):
        return {"enum": [member.name for member in typehint]}
    return {"class": import_path(typehint)} if _is_plain_class(typehint) else {}


def _mapping_schema(typehint: Any) -> dict[str, Any]:
    """Return the schema of a mapping, and of its values where its type names them."""
    values = get_args(typehint)[1:]
    return {"type": "object"} | ({"additionalProperties": schema_of(*values)} if values else {})


def _list_schema(typehint: Any) -> dict[str, Any]:
    """Return the schema of a list, and of its elements where its type names them."""
    elements = get_args(typehint)
    return {"type": "array"} | ({"items": schema_of(elements[0])} if elements else {})


def _tuple_schema(typehint: Any) -> dict[str, Any]:
    """Return the schema of a tuple, whose type names each of its elements, or one for all."""
    elements = get_args(typehint)
    if not elements or elements[-1] is Ellipsis:
        return _list_schema(typehint)
    items = list(map(schema_of, elements))
    return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}


def _function_schema(typehint: Any) -> dict[str, Any]:
    """Return the schema of a function that makes an object of a class.

    ``{}`` for any other function.
    """
    arguments = get_args(typehint)
    returned = get_callable_return_type(typehint)  # type: ignore[no-untyped-call]
    if not _is_plain_class(returned):
        return {}
    found: dict[str, Any] = {"class": import_path(returned), "callable": True}
    is_described_without = issubclass(returned, tuple(_FILLED_IN))
    if not is_described_without and arguments[0] is not Ellipsis and len(arguments[0]):
        found["given"] = len(arguments[0])
    return found


_SCHEMAS: dict[Any, Callable[[Any], dict[str, Any]]] = {
    Annotated: _bounded_schema,
    Union: _union_schema,
    types.UnionType: _union_schema,
    Literal: _choice_schema,
    abc.Callable: _function_schema,
    tuple: _tuple_schema,
    list: _list_schema,
    set: _list_schema,
    frozenset: _list_schema,
    abc.Sequence: _list_schema,
    abc.MutableSequence: _list_schema,
    abc.Iterable: _list_schema,
    abc.Collection: _list_schema,
    abc.Set: _list_schema,
    abc.MutableSet: _list_schema,
    dict: _mapping_schema,
    abc.Mapping: _mapping_schema,
    abc.MutableMapping: _mapping_schema,
}
"""The schema of a type by what it is an example of, such as `list` of ``list[int]``; those that
stand nowhere here are classes."""


def with_bounds(schema: dict[str, Any], bounds: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema whose numbers have bounds, or whose texts have a form.

    Keywords of JSON Schema, such as ``{"minimum": 1}``.
    """
    kinds = ("string",) if "pattern" in bounds else ("integer", "number")
    return any_of(
        {**branch, **bounds} if branch.get("type") in kinds else branch
        for branch in list_branches(schema)
    )


@cache
def _is_plain_class(typehint: Any) -> bool:
    """Check whether jsonargparse takes a class_path for a type, and nothing else."""
    return (
        inspect.isclass(typehint)
        and not issubclass(typehint, (dict, list, tuple, str, int, float, BaseException))
        and typehint.__module__ not in ("builtins", "typing", "collections.abc")
        and not is_subclasses_disabled(typehint)
        and get_registered_type(typehint) is None
        and not getattr(typehint, "_is_protocol", False)
    )


def import_path(cls: type) -> str:
    """Return the shortest path that leads to a class."""
    return min(paths_to(cls), key=lambda path: (path.count("."), path))


def paths_to(cls: type) -> list[str]:
    """List the paths to a class: its module, and the packages around it that export it."""
    parts = cls.__module__.split(".")
    modules = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
    exporting = [
        module for module in modules if getattr(sys.modules.get(module), cls.__name__, None) is cls
    ]
    return [f"{module}.{cls.__name__}" for module in exporting] or [
        f"{cls.__module__}.{cls.__qualname__}"
    ]


def plain_value(value: Any) -> Any:
    """Write a default as JSON.

    What JSON cannot hold as text, without an address that changes from run to run.
    """
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
