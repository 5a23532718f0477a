"""Look up classes and their arguments, in the packaged schema or by import: default, type, help."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from lightkit.config import NAMED_CLASSES, KeyPath, near, shown_path
from lightkit.config.schema import NO_DEFAULT, Argument, ClassDescription, load_schema
from lightkit.config.tree import Leaf, MappingNode, Node, descend
from lightkit.errors import ConfigError


def find_default(tree: Node, path: KeyPath) -> dict[str, Any] | None:
    """Describe what a key has unless something sets it.

    `value`, `set_by`, and the first sentence of its `help`.

    Args:
        tree: The config.
        path: Path of the key, in which ``init_args`` may be left out.

    Returns:
        None where there is no such key. `set_by` has the kind `unset` where the key has no default.

    Raises:
        ConfigError: If its class cannot be imported.
    """
    owner = describe_owner(tree, path[:-1])
    found = owner.arguments.get(str(path[-1]))
    if found is None:
        return None
    value = found.default
    set_by = {"kind": "signature", "name": owner.path}
    if value is NO_DEFAULT:
        value = None
        needs = f"nothing, though {owner.path} needs it" if found.required else ""
        set_by = {"kind": "unset", "name": needs}
    text = " ".join(found.help.split())
    first = text.partition(". ")[0]
    return {"value": value, "set_by": set_by, "help": first if first == text else f"{first}."}


def describe_owner(tree: Node, path: KeyPath, *, imports: bool = True) -> ClassDescription:
    """Describe the section or class whose keys stand below a path.

    It has no keys where it is unknown.

    Args:
        tree: The config, which names the classes.
        path: The path; empty for the top of a config.
        imports: Whether a class that is not known is imported.

    Raises:
        ConfigError: If its class cannot be imported.
    """
    found = _describe_section(*path) if len(path) < 2 else None
    if found is None and path and (name := find_class(tree, path)) is not None:
        bases = load_schema().bases.get(path[0], ())
        found = find_description(name, bases, imports=imports)
    return found or ClassDescription(path="")


def _describe_section(section: Any = None) -> ClassDescription | None:
    """Describe the top of a config or a section of keys and names; None for one of a class."""
    schema = load_schema()
    if section is None:
        arguments = {**{key: Argument() for key in schema.section_names}, **schema.top}
    elif section in schema.sections:
        arguments = {**schema.sections[section].arguments}
    elif section in NAMED_CLASSES:
        names = NAMED_CLASSES[section]
        arguments = {name: Argument(help=f"stands for {cls}") for name, cls in names.items()}
    else:
        return None
    owner = "pytorch_lightning.Trainer" if section == "trainer" else "lightkit"
    return ClassDescription(path=owner, arguments=arguments)


def find_class(tree: Node, path: KeyPath) -> str | None:
    """Find the name of the class at a path.

    Of an entry without a class_path that for which its name stands.
    """
    _, node, rest = descend(tree, path[:-1] if path[-1] == "init_args" else path)
    named = node.entries.get("class_path") if isinstance(node, MappingNode) else node
    if not rest and isinstance(named, Leaf) and isinstance(named.value, str):
        # an interpolation that could not be resolved
        return None if "${" in named.value else named.value
    inside = [key for key in path if key != "init_args"]
    return NAMED_CLASSES.get(inside[0], {}).get(str(inside[1])) if len(inside) == 2 else None


def find_description(
    name: str, bases: Collection[str] = (), *, imports: bool = True
) -> ClassDescription | None:
    """Find the description of a class: that of the schema where it is valid, else by an import.

    Args:
        name: Its path, or its short name.
        bases: Classes that it may derive from, for a short name; any if empty.
        imports: Whether a class that the schema does not describe is imported.

    Returns:
        None where there is none: of an unknown name, and of what only jsonargparse can judge.

    Raises:
        ConfigError: If it cannot be imported.
    """
    schema = load_schema()
    found = schema.find(name, bases or schema.data["names"])
    if found is not None and schema.is_valid_for(found.path):
        return found
    path = name if found is None else found.path
    return describe_imported(path) if imports and "." in path else None


def describe_imported(path: str) -> ClassDescription | None:
    """Import a class and describe it.

    Returns:
        None for a function, and for a signature that only jsonargparse reads.

    Raises:
        ConfigError: If it cannot be imported.
    """
    found = import_class(path)
    from lightkit.cli.class_descriptions import describe_class  # here: it loads torch

    with suppress(Exception):
        return replace(describe_class(found), path=path)
    return None


def import_class(path: str) -> Any:
    """Import a class, or a function that makes one, as jsonargparse does.

    Args:
        path: Its path.

    Raises:
        ConfigError: If there is none, or its module raises an error.
    """
    module, _, name = path.rpartition(".")
    try:
        try:
            return getattr(import_module(module), name)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
            return resolve_name(path)  # a class in a class
    except (Exception, SystemExit) as error:  # the module may be the user's own and raise anything
        raise ConfigError(f"{path} cannot be imported: {_explain_import(path, error)}") from error


def _explain_import(path: str, error: BaseException) -> str:
    """Explain why a class cannot be imported: part of its path is missing, or its module raises."""
    parts = path.split(".")
    is_missing = isinstance(error, (ModuleNotFoundError, AttributeError))
    if is_missing and str(getattr(error, "name", "")).rpartition(".")[2] in parts:
        known = next((n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in sys.modules), 0)
        if known:
            return f"{error}{near(parts[known], vars(sys.modules['.'.join(parts[:known])]))}"
        if Path("src", parts[0]).is_dir():
            return (
                f"{error}, but src/{parts[0]} is there: install it with pip install -e ., or set"
                " PYTHONPATH=src"
            )
        return f"{error}{near(parts[0], [file.stem for file in Path().glob('*.py')])}"
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):
        return text
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_file()
    ]
    return f"{text} ({shown_path(Path(frames[-1].filename))}:{frames[-1].lineno})"


def list_class_names(section: str) -> Iterator[tuple[str, str]]:
    """List a section's classes, each with the shortest name that means it alone, and its help."""
    schema = load_schema()
    named = NAMED_CLASSES.get(section, {})
    bases = schema.bases[section]
    for path, names in schema.names_of(bases).items():
        # which lightkit adds itself
        is_part = named and path.startswith("lightkit.") and path not in named.values()
        if path != bases[0] and not is_part:
            yield names[0], schema.classes[path].help
