"""The user's own modules that a config leads to, found in their sources without importing any. No torch."""

from __future__ import annotations

import ast
import importlib.util
import re
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import lightkit

__all__ = [
    "FoundClass",
    "OwnCode",
    "base_names",
    "bases_of",
    "declared_places",
    "found_class",
    "own_code",
    "sources_of",
    "texts_in",
]

_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_DECLARED = ("input_places", "input_folders")


@dataclass
class OwnCode:
    """What a config's classes are made of.

    Args:
        files: Sources of the user's own modules.
        installed: Top-level names of installed packages that they, or the config, name.
    """

    files: dict[str, Path] = field(default_factory=dict)
    installed: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class FoundClass:
    """A class in the source of a module of the user's own.

    Args:
        node: Its definition.
        tree: The module.
        module: Name of the module.
    """

    node: ast.ClassDef
    tree: ast.Module
    module: str


def own_code(values: Any) -> OwnCode:
    """Find the modules that any text in a config names, such as a ``class_path``, and all that these import.

    Modules count that are in the working directory, elsewhere on the import path beside the installed packages, or
    installed from a folder (``pip install -e``). An import counts wherever it stands in a file; a module whose name is
    only known when the code runs is not found.

    Args:
        values: The config.
    """
    found = OwnCode()
    waiting = [text.rpartition(".")[0] for text in texts_in(values) if _DOTTED.fullmatch(text)]
    seen: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module in seen or not module:
            continue
        seen.add(module)
        file = _file_of(module)
        if file is None:
            _note_installed(module, found)
            if "." in module and _roots_of(module.partition(".")[0]):  # a class within a module, or a name of a package
                waiting.append(module.rpartition(".")[0])
            continue
        found.files[_shown(file)] = file
        waiting += [module.rpartition(".")[0], *_imports(module, file)]
    return found


def texts_in(values: Any) -> Iterator[str]:
    """Give all texts in plain containers, not their keys."""
    if isinstance(values, str):
        yield values
    elif isinstance(values, dict):
        for child in values.values():
            yield from texts_in(child)
    elif isinstance(values, (list, tuple)):
        for child in values:
            yield from texts_in(child)


def found_class(path: str) -> FoundClass | None:
    """Find the definition of a class of the user's own by its dotted path, also by a package that imports it."""
    return _found_class(path, frozenset())


def declared_places(found: FoundClass) -> tuple[str, ...] | None:
    """Give the arguments that a class names in ``input_places`` or ``input_folders``; None where it says nothing.

    What a class says counts above what those say that it derives from; an empty tuple says that it reads nothing.
    """
    said = [value for node in found.node.body if (value := _declared(node)) is not None]
    if said:
        return tuple(name for names in said for name in names)
    inherited = (declared_places(base) for base in bases_of(found))
    return next((places for places in inherited if places is not None), None)


def base_names(found: FoundClass) -> Iterator[str]:
    """Give the dotted paths of all classes that a class derives from, as far as they are known, nearest first."""
    for base in found.node.bases:
        path = _path_of(ast.unparse(base), found)
        yield path
        if (inner := found_class(path)) is not None:
            yield from base_names(inner)


def bases_of(found: FoundClass) -> Iterator[FoundClass]:
    """Find the classes of the user's own that a class derives from, as they stand in its head."""
    for base in found.node.bases:
        path = _path_of(ast.unparse(base), found)
        if (inner := found_class(path)) is not None and inner.node is not found.node:
            yield inner


def _found_class(path: str, seen: frozenset[str]) -> FoundClass | None:
    module, _, name = path.rpartition(".")
    if path in seen or not module or (file := _file_of(module)) is None or (tree := _parsed(file)) is None:
        return None
    node = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)
    if node is not None:
        return FoundClass(node, tree, module)
    moved = _imported_names(tree, module, is_package=file.name == "__init__.py").get(name)
    return None if moved is None else _found_class(moved, seen | {path})


def _path_of(name: str, found: FoundClass) -> str:
    """Give the dotted path of a name as it is known in a class's module."""
    first, _, rest = name.partition(".")
    file = _file_of(found.module)
    names = _imported_names(found.tree, found.module, is_package=file is not None and file.name == "__init__.py")
    path = names.get(first, f"{found.module}.{first}")
    return f"{path}.{rest}" if rest else path


def _declared(node: ast.stmt) -> tuple[str, ...] | None:
    """Read a line such as ``input_places = ("root",)`` of a class."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    value = getattr(node, "value", None)
    if not any(isinstance(target, ast.Name) and target.id in _DECLARED for target in targets) or value is None:
        return None
    try:
        names = ast.literal_eval(value)
    except ValueError:
        return None
    return tuple(map(str, names)) if isinstance(names, (tuple, list)) else None


def _imports(module: str, file: Path) -> Iterator[str]:
    """List the modules that a file may import; of ``from a import b``, a and a.b."""
    tree = _parsed(file)
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            yield base
            yield from (f"{base}.{alias.name}" if base else alias.name for alias in node.names if alias.name != "*")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _DOTTED.fullmatch(node.value):
            yield node.value  # as importlib.import_module("models.heads") takes it


def _imported_names(tree: ast.Module, module: str, *, is_package: bool) -> dict[str, str]:
    package = module if is_package else module.rpartition(".")[0]
    names: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Import):
            tops = {alias.name.partition(".")[0] for alias in node.names if not alias.asname}
            names |= {top: top for top in tops} | {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            names |= {alias.asname or alias.name: f"{base}.{alias.name}".strip(".") for alias in node.names}
    return names


def _absolute(node: ast.ImportFrom, package: str) -> str:
    above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
    return ".".join([*filter(None, above), *([node.module] if node.module else [])])


def _note_installed(module: str, found: OwnCode) -> None:
    top = module.partition(".")[0]
    if (
        top not in sys.stdlib_module_names
        and top != "lightkit"
        and not _roots_of(top)
        and _spec_origin(top) is not None
    ):
        found.installed.add(top)


def _file_of(module: str) -> Path | None:
    """Find the source of a module of the user's own."""
    parts = module.split(".")
    for root in _roots_of(parts[0]):
        place = Path(root, *parts)
        for file in (place / "__init__.py", place.with_name(f"{place.name}.py")):
            if file.is_file():
                return file
    return None


def _roots_of(top: str) -> tuple[str, ...]:
    """Give the folders of the user's in which a top-level module or package is."""
    return _cached_roots(top, str(Path.cwd()), tuple(sys.path))


@cache
def _cached_roots(top: str, working_directory: str, path: tuple[str, ...]) -> tuple[str, ...]:
    if top in sys.stdlib_module_names or top == "lightkit":
        return ()
    own = dict.fromkeys([working_directory, *(folder or working_directory for folder in path)])
    roots = [
        folder for folder in own
        if not _is_installed(Path(folder)) and (Path(folder, top).is_dir() or Path(folder, f"{top}.py").is_file())
    ]  # fmt: skip
    if not roots and (origin := _spec_origin(top)) is not None and not _is_installed(origin):
        roots = [str(origin.parent.parent if origin.name == "__init__.py" else origin.parent)]  # installed with -e
    return tuple(roots)


@cache
def _spec_origin(top: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(top)  # of a top-level name: this imports nothing
    except (ImportError, ValueError, AttributeError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin and spec.has_location else None


def _is_installed(place: Path) -> bool:
    return any(place.is_relative_to(folder) for folder in _installed_folders())


@cache
def _installed_folders() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    named = {*(paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")), *site.getsitepackages()}
    return tuple(Path(folder) for folder in (*named, site.getusersitepackages()))


@cache
def _parsed(file: Path) -> ast.Module | None:
    try:
        return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # importing it tells


def _shown(file: Path) -> str:
    """Name a file as seen from the working directory, elsewhere in full."""
    return str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else str(file)


def sources_of(package: Iterable[str] = lightkit.__path__) -> list[Path]:
    """List the sources of a package, by default lightkit's own, in a settled order."""
    return sorted(file for folder in package for file in Path(folder).rglob("*.py"))
