"""The classes that a section can hold: what there is to choose from, and the arguments of one."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from lightkit.cli.config_loader import NAMED_CLASSES
from lightkit.config import near
from lightkit.config.schema import ConfigSchema
from lightkit.errors import ConfigError

__all__ = ["entries_of", "imported", "names_of", "path_and_description", "section_of"]


def entries_of(section: str) -> Mapping[str, str]:
    """Give the classes that stand for the name of an entry that has no class_path."""
    return NAMED_CLASSES.get(section, {})


def names_of(section: str, catalogue: ConfigSchema) -> Iterator[tuple[str, str]]:
    """List the classes that a section can hold, each with the shortest name that means it alone, and what it is."""
    bases = catalogue.data["bases"][section]
    named = entries_of(section)
    for path, description in catalogue.classes.items():
        is_part = bool(named) and path.startswith("lightkit.") and path not in named.values()  # lightkit adds it itself
        if {*description["bases"]} & {*bases} and path != bases[0] and not (description.get("abstract") or is_part):
            short = path.rpartition(".")[2]
            is_meant = catalogue.path_of(short, bases) == path and not catalogue.namesakes(short, bases)
            yield short if is_meant else path, description["says"]


def path_and_description(section: str, name: str, catalogue: ConfigSchema) -> tuple[str, Mapping[str, Any]]:
    """Find a class, by its entry's name, its short name or its path; only one that is not known is imported.

    Args:
        section: Top-level key under which it goes.
        name: What the user calls it.
        catalogue: The classes that are known.

    Raises:
        ConfigError: If there is no such class, or it does not go under that key.
    """
    bases = catalogue.data["bases"][section]
    said = entries_of(section).get(name, name)
    path = catalogue.path_of(said, bases)
    if path is None and (same := catalogue.namesakes(said, bases)):
        raise ConfigError(f"--help {section}: several classes are called {name!r}; say which: {', '.join(same)}")
    if path is None and "." not in said:
        known = [*entries_of(section), *(name for name, _ in names_of(section, catalogue))]
        says = f"--help {section}: there is no class {name!r}{near(name, known)}"
        raise ConfigError(f"{says}\n--help {section} lists what there is; one of your own is my_module.{name}")
    description = catalogue.classes[path] if path is not None and catalogue.counts(path) else imported(path or said)
    if not {*description["bases"]} & {*bases}:
        expected = " or ".join(base.rpartition(".")[2] for base in bases)
        raise ConfigError(f"--help {section}: {path or said} is no {expected}{_elsewhere(description, catalogue)}")
    return path or said, description


def section_of(path: str, catalogue: ConfigSchema) -> str | None:
    """Find the top-level key under which a class goes, by its path; import it where it is not known.

    Raises:
        ConfigError: If it cannot be imported.
    """
    known = catalogue.path_of(path)
    description = catalogue.classes[known] if known is not None else imported(path)
    return _section_among(description["bases"], catalogue)


def _elsewhere(description: Mapping[str, Any], catalogue: ConfigSchema) -> str:
    found = _section_among(description["bases"], catalogue)
    return f"; it goes under {found}" if found else ""


def _section_among(bases: Collection[str], catalogue: ConfigSchema) -> str | None:
    sections: Mapping[str, Collection[str]] = catalogue.data["bases"]
    return next((section for section, known in sections.items() if {*known} & {*bases}), None)


def imported(path: str) -> Mapping[str, Any]:
    """Describe a class from itself.

    Args:
        path: Its path.

    Raises:
        ConfigError: If it cannot be imported.
    """
    module, _, name = path.rpartition(".")
    try:
        members = vars(importlib.import_module(module))
    except ImportError as error:
        raise ConfigError(f"--help: {path} cannot be imported: {error}") from error
    if not isinstance(cls := members.get(name), type):
        classes = [known for known, member in members.items() if isinstance(member, type)]
        raise ConfigError(f"--help: {module} has no class {name!r}{near(name, classes)}")
    from lightkit.cli.class_descriptions import describe_class  # here, because it loads torch and Lightning

    return describe_class(cls)
