"""What a data module needs before anything is built: its packages, and folders and files that must exist. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from lightkit.config import Problems, Resolved
from lightkit.config.origins import near_files
from lightkit.config.schema import load_schema
from lightkit.errors import ConfigError, DataError


def check_data(data: Any, resolved: Resolved) -> None:
    """Call a data module's class method ``check_installed`` and check the paths that its class names.

    Args:
        data: The config's ``data`` section as jsonargparse parsed it.
        resolved: The config.

    Raises:
        ConfigError: As ``check_installed`` does, with the place that names the class.
        DataError: If a path in ``input_folders`` or ``input_paths`` does not exist, or is a file in place of a folder.
    """
    class_path = data.get("class_path") if hasattr(data, "get") else None
    if not isinstance(class_path, str):
        return
    module, _, name = class_path.rpartition(".")
    cls = getattr(import_module(module), name)
    if callable(check := getattr(cls, "check_installed", None)):
        try:
            check()
        except ConfigError as error:
            origin = resolved.origin_of(("data", "class_path"))
            places = [] if origin is None or origin.kind == "default" else [origin]
            raise ConfigError("\n".join([str(error), *(place.render() for place in places)]), places=places) from error
    paths = dict.fromkeys(getattr(cls, "input_folders", ()), "folder")
    paths |= dict.fromkeys(getattr(cls, "input_paths", ()), "any")
    _check_paths(paths, data.get("init_args") or {}, resolved, can_fetch=callable(getattr(cls, "fetch", None)))


def check_known_data(resolved: Resolved) -> None:
    """Check the paths of a data module that the schema describes, without importing it.

    Raises:
        DataError: If one does not exist, or is a file in place of a folder.
    """
    section = resolved.values.get("data")
    named = section.get("class_path") if isinstance(section, dict) else section
    schema = load_schema()
    path = schema.path_of(str(named), schema.data["bases"]["data"])
    if not isinstance(section, dict) or path is None:
        return
    described = schema.classes[path]
    defaults = {name: argument.get("default") for name, argument in described["arguments"].items()}
    given = {**defaults, **(section.get("init_args") or {})}
    _check_paths(described.get("paths", {}), given, resolved, can_fetch=bool(described.get("fetch")))


def _check_paths(paths: Mapping[str, str], given: Mapping[str, Any], resolved: Resolved, *, can_fetch: bool) -> None:
    """Check the arguments that name files; an address, such as ``s3://bucket/table``, is not asked for."""
    problems = Problems()
    for name, kind in paths.items():
        value = given.get(name)
        if value and (missing := _describe_missing(str(value), may_be_file=kind == "any")):
            origin = resolved.origin_of(("data", "init_args", name))
            fetch = "; `lightkit fetch` with the same -c FILE puts the data there" if can_fetch else ""
            fetch = "" if missing.startswith("expected") else fetch
            places = [] if origin is None or origin.kind == "default" else [origin]
            says = f"data.init_args.{name}: {missing}{fetch}"
            problems.add(DataError("\n".join([says, *(place.render() for place in places)]), places=places))
    problems.raise_any()


def _describe_missing(value: str, *, may_be_file: bool) -> str | None:
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
