"""The defaults of the arguments of a user's own class, read in its source. No torch."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from lightkit.cli.own_code import FoundClass, bases_of

__all__ = ["UNKNOWN", "default_arguments"]

UNKNOWN: Final = object()
"""What stands for a default that only running the code gives."""
_NUMBER = re.compile(r"(int|float|bool)( \| None)?")
_PATHS = ("Path", "pathlib.Path")


def default_arguments(found: FoundClass) -> dict[str, Any]:
    """Give the defaults of a class's arguments that stand in its ``__init__``, or in that of what it derives from.

    Literals are known, paths of literals as text (``Path("stuff")``), and names that the module gives either; what
    else could be a path is `UNKNOWN`.
    """
    makers = [node for node in found.node.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    own = {} if not makers else dict(_own_defaults(makers[0].args, found.tree))
    if makers and makers[0].args.kwarg is None:
        return own
    inherited = [default_arguments(base) for base in bases_of(found)]
    return {name: value for each in [*reversed(inherited), own] for name, value in each.items()}


def _own_defaults(arguments: ast.arguments, tree: ast.Module) -> list[tuple[str, Any]]:
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = [*zip(positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=True)]
    pairs += [(name, value) for name, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if value]
    return [(name.arg, _default(name, value, tree)) for name, value in pairs]


def _default(name: ast.arg, node: ast.expr, tree: ast.Module) -> Any:
    value = _value(node, tree, frozenset())
    is_number = name.annotation is not None and _NUMBER.fullmatch(ast.unparse(name.annotation)) is not None
    return None if value is UNKNOWN and is_number else value


def _value(node: ast.expr, tree: ast.Module, seen: frozenset[str]) -> Any:
    if isinstance(node, ast.Name) and node.id not in seen:
        given = [value for value in map(_assigned(node.id), tree.body) if value is not None]
        return _value(given[0], tree, seen | {node.id}) if len(given) == 1 else UNKNOWN
    if isinstance(node, ast.Call) and ast.unparse(node.func) in _PATHS and not node.keywords:
        return _joined([_value(part, tree, seen) for part in node.args])
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return _joined([_value(node.left, tree, seen), _value(node.right, tree, seen)])
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return UNKNOWN


def _joined(parts: list[Any]) -> Any:
    return str(Path(*parts)) if all(isinstance(part, str) for part in parts) else UNKNOWN


def _assigned(name: str) -> Callable[[ast.stmt], ast.expr | None]:
    """Make a reader of lines such as ``ROOT = "data"``."""

    def read(node: ast.stmt) -> ast.expr | None:
        if not isinstance(node, (ast.Assign, ast.AnnAssign)):
            return None
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return node.value if any(isinstance(target, ast.Name) and target.id == name for target in targets) else None

    return read
