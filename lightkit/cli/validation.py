"""Validate a config without torch, as far as its classes are described; the rest needs imports."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from lightkit.cli.config_loader import WITH_MODEL, LoadedConfig
from lightkit.cli.parser_errors import list_subclass_names
from lightkit.cli.path_checks import check_paths
from lightkit.config import KeyPath, Problems, Resolved
from lightkit.config.loader import drop_paths
from lightkit.config.origins import near_files, shown_path
from lightkit.config.schema import ConfigSchema, load_schema
from lightkit.config.validation import ValidationResult, validate_values
from lightkit.errors import ConfigError, DataError

__all__ = ["validate", "validate_signatures"]


def validate(
    command: str, loaded: LoadedConfig, resolved: Resolved, problems: Problems
) -> tuple[Resolved, ValidationResult]:
    """Find what is wrong with keys, values, files and folders.

    Args:
        command: Command that runs.
        loaded: The command line and its config.
        resolved: The config with today's hardware keys.
        problems: Takes the mistakes.

    Returns:
        The config without what is wrong; and what was found, with the places that only an import can judge.
    """
    check_paths(command, resolved, loaded.arguments.options.get("ckpt_path"), problems)
    catalogue = load_schema().with_apart()
    findings = _findings(loaded.resolved, catalogue, problems)
    for _, problem in findings.problems:
        problems.add(problem)
    if command in WITH_MODEL and not problems.is_incomplete and loaded.resolved.values.get("model") is None:
        problems.add(_missing_model(loaded, command))
    return drop_paths(resolved, {path for path, _ in findings.problems}), findings


def _missing_model(loaded: LoadedConfig, command: str) -> ConfigError:
    """Say how to name the model; where there is a checkpoint, by the config of its run."""
    from_files = any(origin.file is not None for origin in loaded.resolved.origins.values())
    empty = "" if from_files or not loaded.arguments.files else f"; {', '.join(loaded.arguments.files)} sets nothing"
    checkpoint = loaded.arguments.options.get("ckpt_path", loaded.resolved.values.get("ckpt_path"))
    by_run = "name a run with --run, or " if command == "export" else ""
    if checkpoint is not None:
        empty += f"; --ckpt_path {checkpoint} brings weights, not the config"
        folder = Path(str(checkpoint)).resolve().parent.parent
        run = shown_path(folder) if (folder / "manifest.json").is_file() else "RUN"
        by_run = f"use -c {run}/config.yaml, or " if command == "fit" else f"use --run {run}, or "
    return ConfigError(f"model: missing{empty}; {by_run}set it in a file given with -c, or with --model=VALUE")


def validate_signatures(resolved: Resolved, problems: Problems) -> Resolved:
    """Judge by the signatures of the config's own classes, too, and give the config without what is wrong.

    jsonargparse finds the same mistakes, but stops at the first of a class.

    Args:
        resolved: The config.
        problems: Takes the mistakes.
    """
    from lightkit.cli.class_descriptions import describe_classes  # here: it loads torch, as above

    catalogue, tried = load_schema().with_apart(), set[str]()
    while True:
        findings = _findings(resolved, catalogue, problems)
        names = {name for path in findings.unjudged if (name := _class_at(resolved, path)) is not None}
        if names <= tried:
            break
        catalogue = catalogue.with_imported(describe_classes(names - tried))
        tried |= names
    for _, problem in findings.problems:
        problems.add(problem)
    return drop_paths(resolved, {path for path, _ in findings.problems})


def _findings(resolved: Resolved, catalogue: ConfigSchema, problems: Problems) -> ValidationResult:
    found = validate_values(resolved, catalogue, is_complete=not problems.is_incomplete, is_loaded=_is_loaded)
    for name, origin in found.outdated.items():
        says = f"{name}: written for Lightning 1.x or the package lightning; `lightkit upgrade {name}` rewrites it"
        problems.add(ConfigError(says, places=[origin]))
    return found


def _is_loaded(name: str, bases: Collection[str]) -> bool:
    """Tell whether jsonargparse or Lightning takes a short name for something that this process has loaded."""
    for path in bases:
        module, _, short = path.rpartition(".")
        base = getattr(sys.modules.get(module), short, None)
        if isinstance(base, type) and name in list_subclass_names(base):
            return True
    registered = getattr(sys.modules.get("pytorch_lightning.strategies"), "StrategyRegistry", ())
    return "pytorch_lightning.strategies.Strategy" in bases and name.lower() in registered


def _class_at(resolved: Resolved, path: KeyPath) -> str | None:
    """Give the name of the class at a place that could not be judged."""
    value: Any = resolved.values
    for part in path:
        value = value[part]
    named = value.get("class_path") if isinstance(value, dict) else value
    return named if isinstance(named, str) else None


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
