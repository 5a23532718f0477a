"""What the source of somebody's class says, and of the modules of the same author's that it imports."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any

__all__ = ["OURS", "home_of", "is_ours", "parts_of", "says", "source_modules"]

OURS = ("lightkit", "pytorch_lightning", "lightning_fabric", "torch", "torchmetrics", "torchvision", "builtins")
"""Packages whose code is nobody's own, and looks at no file of a run."""
_INSTALLED = {"site-packages", "dist-packages"}
_UNKNOWN = None
_MOST_MODULES, _MOST_DEPTH = 100, 4


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
    if is_named and hasattr(value, "__objclass__"):  # a method of a class in C, such as `str.upper`
        value = value.__objclass__
    return getattr(value if is_named else type(value), "__module__", None) or ""


def parts_of(thing: Any) -> list[Any]:
    """Give the values of a thing's attributes, and what lists, mappings and partial functions among them hold."""
    found, left = [], [(value, 0) for value in getattr(thing, "__dict__", {}).values()]
    while left:
        value, depth = left.pop()
        found.append(value)
        if depth < _MOST_DEPTH:
            left += [(held, depth + 1) for held in _held(value)]
    return found


def _held(value: Any) -> list[Any]:
    if isinstance(value, functools.partial):
        return [*value.args, *value.keywords.values()]
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    return list(value) if isinstance(value, list | tuple | set | frozenset) else []


def source_modules(part: Any, *beside: Any) -> set[str]:
    """Name the modules of a thing's class and of what that inherits, but for `OURS`.

    Args:
        part: Of any class.
        beside: Their modules as well, but for Python's own, and for things of installed packages that cannot be called.
    """
    homes = {kind.__module__ for kind in type(part).__mro__}
    for value in beside:
        home = home_of(value)
        if not _is_pythons(home) and (callable(value) or not _is_installed(home)):
            homes.add(home)
    return {home for home in homes if not is_ours(home)}


def says(modules: Iterable[str], pattern: re.Pattern[str]) -> bool:
    """Tell whether the source of one of these modules matches, or that of a module of its author's that it imports.

    What is installed is another author's, unless it is of the same package. A module without a source, and one that is
    not imported yet, may say anything; so may one of very many.
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
    try:
        return inspect.getsource(sys.modules[module])
    except (OSError, TypeError, KeyError):  # typed into a session, compiled, gone, or to be imported later
        return _UNKNOWN


def _imported(source: str, module: str) -> Iterator[str]:
    """Name the modules that a source imports anywhere in it."""
    package = getattr(sys.modules.get(module), "__package__", None) or ""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (package or not node.level):  # else that import fails
            whole = resolve_name(f"{'.' * node.level}{node.module or ''}", package)
            yield whole
            yield from (f"{whole}.{alias.name}" for alias in node.names if _is_module(whole, alias.name))


def _is_module(parent: str, name: str) -> bool:
    """Tell a module from other names; what its package does not know yet is one that is imported later."""
    package = sys.modules.get(parent)
    return f"{parent}.{name}" in sys.modules or (hasattr(package, "__path__") and not hasattr(package, name))


def _is_of_author(name: str, module: str) -> bool:
    if is_ours(name) or _is_pythons(name):
        return False
    return name.partition(".")[0] == module.partition(".")[0] or not _is_installed(name)


def _is_pythons(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def _is_installed(module: str) -> bool:
    top = module.partition(".")[0]
    spec = getattr(sys.modules.get(top), "__spec__", None) or find_spec(top)
    places = [] if spec is None else [spec.origin or "", *(spec.submodule_search_locations or ())]
    return any(_INSTALLED & set(Path(place).parts) for place in places)
