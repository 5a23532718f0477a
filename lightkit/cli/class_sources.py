"""Source files of the classes that a config names.

Also the defaults of their arguments, without an import. No torch.
"""

from __future__ import annotations

import ast
import importlib.util
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

_MAX_FILES = 2000  # of a package
_PATHS = ("Path", "PurePath", "pathlib.Path", "pathlib.PurePath")


def find_own_files(class_path: str) -> dict[str, Path]:
    """Find the Python files of a class of the user's own.

    By their paths below the folder that they are imported from.

    They are those of its package; of a single module those next to it; and of a folder without an
    ``__init__.py``, which may hold data too, its module alone. The standard library, and an
    installed package, which has a version, have none.

    Args:
        class_path: Path of the class, such as ``my_package.data.Rows``.
    """
    module = _find_module_file(class_path)
    spec = _find_top(class_path.partition(".")[0])
    if module is None or spec is None or _is_installed(spec):
        return {}
    folders = _list_folders(spec)
    if not folders:
        folder = module.parent
        files = sorted(folder.glob("*.py"))
    elif spec.origin is None:
        folder = next(each for each in folders if module.is_relative_to(each)).parent
        files = [module]
    else:
        folder = folders[0].parent
        files = sorted(folders[0].rglob("*.py"))[:_MAX_FILES]
    return {file.relative_to(folder).as_posix(): file for file in files if file.is_file()}


def list_default_texts(class_path: str) -> dict[str, str]:
    """List the defaults of the constructor of a class that are texts or paths.

    By the names of their arguments.

    A constructor of a base class counts where that stands in the same file. Empty where the source
    is not found.

    Args:
        class_path: Path of the class.
    """
    file = _find_module_file(class_path)
    if file is None:
        return {}
    with suppress(OSError, SyntaxError, ValueError):
        classes = {
            node.name: node
            for node in ast.parse(file.read_text(encoding="utf-8")).body
            if isinstance(node, ast.ClassDef)
        }
        return dict(_list_defaults(classes, class_path.rpartition(".")[2]))
    return {}


def _find_top(name: str) -> ModuleSpec | None:
    """Find a module or package at the top, also of an editable installation.

    Nothing is imported.
    """
    with suppress(ImportError, AttributeError, ValueError):
        return importlib.util.find_spec(name)
    return None


def _list_folders(spec: ModuleSpec) -> list[Path]:
    """List the folders of a package; none of a module."""
    return [Path(folder) for folder in spec.submodule_search_locations or ()]


def _is_installed(spec: ModuleSpec) -> bool:
    """Return whether a module is of the standard library, built in, or installed."""
    places = _list_folders(spec)
    if spec.has_location and spec.origin:
        places.append(Path(spec.origin))
    paths = sysconfig.get_paths()
    folders = [Path(paths[key]).resolve() for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    for place in map(Path.resolve, places):
        if {"site-packages", "dist-packages"} & {*place.parts}:
            return True
        if any(place.is_relative_to(folder) for folder in folders):
            return True
    return not places


def _find_module_file(class_path: str) -> Path | None:
    """Find the file of a class's module; None where it is none of Python source."""
    top, *inner = class_path.split(".")[:-1] or [""]
    spec = _find_top(top)
    if spec is None:
        return None
    files = [Path(str(spec.origin))]
    if inner:
        # by hand: the search of importlib would import the packages in between
        modules = [folder.joinpath(*inner) for folder in _list_folders(spec)]
        files = [
            file for each in modules for file in (each.with_suffix(".py"), each / "__init__.py")
        ]
    return next((file for file in files if file.suffix == ".py" and file.is_file()), None)


def _list_defaults(classes: Mapping[str, ast.ClassDef], name: str) -> Iterator[tuple[str, str]]:
    """List the defaults of a class's constructor.

    Without one, list those of its first base in the same file which has one.
    """
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        found = classes.get(waiting.pop(0))
        if found is None or found.name in seen:
            continue
        seen.add(found.name)
        for node in found.body:
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                yield from _list_texts_of(node.args)
                return
        waiting += [base.id for base in found.bases if isinstance(base, ast.Name)]


def _list_texts_of(arguments: ast.arguments) -> Iterator[tuple[str, str]]:
    ordered = [*arguments.posonlyargs, *arguments.args]
    pairs: list[tuple[ast.arg, Any]] = list(
        zip(ordered[len(ordered) - len(arguments.defaults) :], arguments.defaults, strict=True)
    )
    pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    for argument, default in pairs:
        is_path = (
            isinstance(default, ast.Call)
            and ast.unparse(default.func) in _PATHS
            and len(default.args) == 1
        )
        value = default.args[0] if is_path else default
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield argument.arg, value.value
