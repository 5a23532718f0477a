"""What the source of somebody's class says, and of the modules of the same author's that it imports."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any

__all__ = ["OURS", "home_of", "is_ours", "own_modules", "says"]

OURS = ("lightkit", "pytorch_lightning", "lightning_fabric", "torch", "torchmetrics", "torchvision", "builtins")
"""Packages whose code is nobody's own, and looks at no file of a run."""
_INSTALLED = {"site-packages", "dist-packages"}
_UNKNOWN = None
_MOST_MODULES = 100


def is_ours(module: str) -> bool:
    """Tell a module of `OURS`."""
    return module.partition(".")[0] in OURS


def home_of(value: Any) -> str:
    """Name the module of what is called in the end; that of its class where it is no function."""
    while isinstance(value, functools.partial):
        value = value.func
    if inspect.isbuiltin(value):  # such as `time.time`, and methods of lists
        return "builtins"
    is_named = inspect.isroutine(value) or inspect.isclass(value)
    return (value if is_named else type(value)).__module__ or ""


def own_modules(part: Any, *, with_parts: bool = False) -> set[str]:
    """Name the modules of a thing's class and of what that inherits, but for `OURS`.

    Args:
        part: Of any class.
        with_parts: Those of its attributes' values as well, but for Python's own, and for things of installed packages
            that cannot be called.
    """
    homes = {kind.__module__ for kind in type(part).__mro__}
    if with_parts:
        of_values = {home_of(value): callable(value) for value in vars(part).values()}
        homes |= {
            home for home, is_called in of_values.items()
            if not _is_pythons(home) and (is_called or not _is_installed(home))
        }  # fmt: skip
    return {home for home in homes if not is_ours(home)}


def says(modules: Iterable[str], pattern: re.Pattern[str]) -> bool:
    """Tell whether the source of one of these modules matches, or that of a module of its author's that it imports.

    What is installed is another author's, unless it is of the same package. A module without a source, and one that
    cannot be found, may say anything; so may one of very many.
    """
    known = set(modules)
    left = list(known)
    while left:
        source = _source_of(module := left.pop())
        if source is _UNKNOWN or pattern.search(source) or len(known) > _MOST_MODULES:
            return True
        found = {name for name in _imported(source, module) if _is_of_author(name, module)} - known
        known |= found
        left += found
    return False


def _source_of(module: str) -> str | None:
    package = module.rpartition(".")[0]
    try:
        if module in sys.modules:
            return inspect.getsource(sys.modules[module])
        if package and package not in sys.modules:  # to find it would import that
            return _UNKNOWN
        spec = find_spec(module)  # of a module that is imported within a function, later
        return Path(spec.origin).read_text(encoding="utf-8") if spec is not None and spec.origin else _UNKNOWN
    except (OSError, TypeError, ImportError, ValueError):  # typed into a session, compiled, or gone
        return _UNKNOWN


def _imported(source: str, module: str) -> Iterator[str]:
    """Name the modules that a source imports anywhere in it."""
    package = getattr(sys.modules.get(module), "__package__", None) or module.rpartition(".")[0]
    for node in ast.walk(_tree_of(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            name = f"{'.' * node.level}{node.module or ''}"
            whole = resolve_name(name, package) if node.level else name
            yield whole
            yield from (f"{whole}.{alias.name}" for alias in node.names if _is_module(f"{whole}.{alias.name}"))


def _tree_of(source: str) -> ast.AST:
    try:
        return ast.parse(source)
    except SyntaxError:  # who imports it will see
        return ast.Module([], [])


def _is_module(name: str) -> bool:
    if name in sys.modules:
        return True
    parent = sys.modules.get(name.rpartition(".")[0])
    return hasattr(parent, "__path__") and find_spec(name) is not None


def _is_of_author(name: str, module: str) -> bool:
    top = name.partition(".")[0]
    if is_ours(name) or _is_pythons(name):
        return False
    return top == module.partition(".")[0] or not _is_installed(name)


def _is_pythons(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def _is_installed(module: str) -> bool:
    try:
        spec = find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return False
    places = [] if spec is None else [spec.origin or "", *(spec.submodule_search_locations or ())]
    return any(_INSTALLED & set(Path(place).parts) for place in places)
