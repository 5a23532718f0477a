"""What a data module needs: packages, folders and files that are there, before anything is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from jsonargparse._util import import_object

from lightkit.config import Problems, Resolved
from lightkit.config.origins import near_files
from lightkit.errors import ConfigError, DataError

__all__ = ["check_input_folders", "check_packages"]


def check_packages(data: Any, resolved: Resolved) -> None:
    """Call a data module's class method ``check_installed``, if it has one.

    Args:
        data: The config's ``data`` section as it was parsed.
        resolved: The config.

    Raises:
        ConfigError: As the method does, with the place that names the class.
    """
    if not isinstance(data, Namespace) or not isinstance(data.get("class_path"), str):
        return
    check = getattr(import_object(data["class_path"]), "check_installed", None)
    if not callable(check):
        return
    try:
        check()
    except ConfigError as error:
        origin = resolved.origin_of(("data", "class_path"))
        places = [] if origin is None or origin.kind == "default" else [origin]
        raise ConfigError("\n".join([str(error), *(place.render() for place in places)]), places=places) from error


def check_input_folders(data: Any, resolved: Resolved) -> None:
    """Check what a data module's class names in ``input_folders`` and ``input_paths``, where the config gives them.

    A path may be a folder or a file; an address, such as ``s3://bucket/table``, is not asked for.

    Args:
        data: The config's ``data`` section as it was parsed.
        resolved: The config.

    Raises:
        DataError: If one is not there, or is a file in place of a folder.
    """
    if not isinstance(data, Namespace) or not isinstance(data.get("class_path"), str):
        return
    cls, given = import_object(data["class_path"]), data.get("init_args") or {}
    problems = Problems()
    paths = tuple(getattr(cls, "input_paths", ()))
    for name in (*getattr(cls, "input_folders", ()), *paths):
        value = given.get(name)
        if value and (missing := _missing(str(value), may_be_file=name in paths)):
            origin = resolved.origin_of(("data", "init_args", name))
            fetch = "; `lightkit fetch` with the same -c FILE puts the data there" if _can_fetch(cls, missing) else ""
            said = [] if origin is None or origin.kind == "default" else [origin]
            says = f"data.init_args.{name}: {missing}{fetch}"
            problems.add(DataError("\n".join([says, *(place.render() for place in said)]), places=said))
    problems.raise_any()


def _can_fetch(cls: type, missing: str) -> bool:
    return callable(getattr(cls, "fetch", None)) and not missing.startswith("expected")


def _missing(value: str, *, may_be_file: bool) -> str | None:
    """Say what is missing; None where nothing is."""
    if may_be_file and "://" in value:
        return None
    place = Path(value).expanduser()
    if place.is_dir() or (may_be_file and place.exists()):
        return None
    if place.exists():
        return f"expected a folder, got the file {place}"
    kind = "folder or file" if may_be_file else "folder"
    while not (place.parent.is_dir() or place.parent == place):
        place, kind = place.parent, "folder"
    hint = near_files(place)
    if not hint and not place.is_absolute():
        hint = f"; it is looked for in {Path.cwd()}"
    return f"there is no {kind} {place}{hint}"
