"""The folders that a data module reads from: whether they are there, before anything is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from jsonargparse._util import import_object

from lightkit.config import Problems, Resolved
from lightkit.config.origins import near_files
from lightkit.errors import DataError

__all__ = ["check_input_folders"]


def check_input_folders(data: Any, resolved: Resolved) -> None:
    """Check the folders that a data module's class names in ``input_folders``, where the config gives them.

    Args:
        data: The config's ``data`` section as it was parsed.
        resolved: The config.

    Raises:
        DataError: If one is not there, or is no folder.
    """
    if not isinstance(data, Namespace) or not isinstance(data.get("class_path"), str):
        return
    cls, given = import_object(data["class_path"]), data.get("init_args") or {}
    problems = Problems()
    for name in getattr(cls, "input_folders", ()):
        value = given.get(name)
        if value and not (folder := Path(value).expanduser()).is_dir():
            origin = resolved.origin_of(("data", "init_args", name))
            says = f"data.init_args.{name}: {_missing(folder, can_fetch=callable(getattr(cls, 'fetch', None)))}"
            places = [] if origin is None or origin.kind == "default" else [origin]
            problems.add(DataError("\n".join([says, *(place.render() for place in places)]), places=places))
    problems.raise_any()


def _missing(folder: Path, *, can_fetch: bool) -> str:
    if folder.exists():
        return f"expected a folder, got the file {folder}"
    missing = folder
    while not (missing.parent.is_dir() or missing.parent == missing):
        missing = missing.parent
    hint = near_files(missing)
    if not hint and not folder.is_absolute():
        hint = f"; it is looked for in {Path.cwd()}"
    brought = "; `lightkit fetch` with the same -c FILE puts the data there" if can_fetch else ""
    return f"there is no folder {missing}{hint}{brought}"
