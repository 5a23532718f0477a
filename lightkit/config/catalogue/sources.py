"""Signatures as the source of a module shows them, where importing it would take seconds.

They only tell that nothing seems wrong with what a config says of a class of the user's own; a mistake is told by the
signature itself.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

__all__ = ["described_by_source"]

_WITHOUT_ARGUMENTS = ("LightningModule", "LightningDataModule", "Callback")
_TYPES = {"int": "integer", "float": "number", "str": "string", "bool": "boolean"}


def described_by_source(name: str, bases: Collection[str]) -> dict[str, Any] | None:
    """Describe a class by the text of its ``__init__``; None where that does not say all.

    Args:
        name: Dotted path of the class.
        bases: What it is taken to derive from.
    """
    module, _, short = name.rpartition(".")
    tree = _parsed(_file_of(module))
    if tree is None or not all(map(_is_there, _imported(tree))):
        return None
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == short]
    if len(classes) != 1 or classes[0].decorator_list:
        return None
    methods = [node for node in classes[0].body if isinstance(node, ast.FunctionDef)]
    makers = [node for node in methods if node.name in ("__init__", "__new__")]
    if not makers and all(ast.unparse(base).rpartition(".")[2] in _WITHOUT_ARGUMENTS for base in classes[0].bases):
        return {"says": "", "bases": sorted(bases), "arguments": {}}
    if len(makers) != 1 or makers[0].name != "__init__" or makers[0].decorator_list or makers[0].args.vararg:
        return None
    arguments = makers[0].args
    is_open = {"open": True} if arguments.kwarg else {}
    return {"says": "", "bases": sorted(bases), "arguments": dict(_arguments(arguments)), **is_open}


def _file_of(module: str) -> Path | None:
    """Find the file of a module without importing the packages around it."""
    parts = module.split(".")
    for folder in sys.path:
        place = Path(folder or ".", *parts)
        for file in (place / "__init__.py", place.with_name(f"{place.name}.py")):
            if file.is_file():
                return file
    return None


def _parsed(file: Path | None) -> ast.Module | None:
    try:
        return None if file is None else ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _imported(tree: ast.Module) -> Iterator[str]:
    """List the packages that the module imports when it is imported itself."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.partition(".")[0]


def _is_there(package: str) -> bool:
    if package in sys.modules or package in sys.stdlib_module_names:
        return True
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def _arguments(given: ast.arguments) -> Iterator[tuple[str, dict[str, Any]]]:
    positional = [*given.posonlyargs, *given.args]
    first_default = len(positional) - len(given.defaults)
    for index, argument in enumerate(positional):
        if index:  # after self
            yield argument.arg, _described(argument, required=index < first_default)
    for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        yield argument.arg, _described(argument, required=default is None)


def _described(argument: ast.arg, *, required: bool) -> dict[str, Any]:
    schema = _schema(argument.annotation)
    return {"schema": schema, "required": required, "default": None, "says": "", "shown": "anything"}


def _schema(annotation: ast.expr | None) -> dict[str, Any]:
    """Give the type where it is a plain one; ``{}``, which takes anything, where it is not."""
    if isinstance(annotation, ast.Name) and annotation.id in _TYPES:
        return {"type": _TYPES[annotation.id]}
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        kinds = [_schema(annotation.left), _schema(annotation.right)]
        return {"anyOf": kinds} if all(kinds) else {}
    if (
        isinstance(annotation, ast.Subscript)
        and isinstance(annotation.value, ast.Name)
        and annotation.value.id == "list"
    ):
        return {"type": "array", "items": {}}
    if isinstance(annotation, ast.Constant) and annotation.value is None:
        return {"type": "null"}
    return {}
