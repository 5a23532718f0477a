"""The names that stand for classes in a config: their paths, and the last parts of these where one class has them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from jsonargparse._typehints import get_all_subclass_paths, resolve_class_path_by_name
from jsonargparse._util import import_object

from lightkit.cli.schemas import import_path, paths_to

__all__ = ["aliases", "short_names"]


def aliases(classes: dict[str, type]) -> dict[str, str]:
    """Give the other paths that lead to classes, each with the one that they are known by."""
    return {other: path for path, cls in sorted(classes.items()) for other in sorted(paths_to(cls)) if other != path}


def short_names(classes: dict[str, type], bases: list[type]) -> dict[str, dict[str, Any]]:
    """Give the names that mean one class alone below each that is asked for; where several have one, all paths."""
    known = {cls: path for path, cls in classes.items()}
    names: dict[str, dict[str, Any]] = {}
    for base in bases:
        found = defaultdict(list)
        for path in get_all_subclass_paths(base, include_abstract=True):
            cls = import_object(path)
            found[cls.__name__].append(known.get(cls, path))
        names[import_path(base)] = {name: _meant(base, name, paths, known) for name, paths in sorted(found.items())}
    return names


def _meant(base: type, name: str, paths: list[str], known: dict[type, str]) -> str | list[str]:
    try:
        path = resolve_class_path_by_name(base, name)
    except ValueError:  # several classes have the name
        return sorted(paths)
    return known.get(import_object(path), path)
