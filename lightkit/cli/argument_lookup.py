"""Look up classes and their arguments, in the packaged schema or by import: default, type, help."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Collection, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from lightkit.config import NAMED_CLASSES, KeyPath, near, shown_path
from lightkit.config.accelerator.vocabulary import KEY_HELP
from lightkit.config.schema import load_schema
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
    owner, arguments = list_arguments(tree, path[:-1])
    found = arguments.get(str(path[-1]))
    if found is None:
        return None
    set_by = {
        "kind": "unset",
        "name": f"nothing, though {owner} needs it" if found.get("required") else "",
    }
    if "default" in found:
        set_by = {"kind": "signature", "name": owner}
    text = " ".join(str(found.get("help") or "").split())
    first = text.partition(". ")[0]
    return {
        "value": found.get("default"),
        "set_by": set_by,
        "help": first if first == text else f"{first}.",
    }


def list_arguments(
    tree: Node, path: KeyPath, *, imports: bool = True
) -> tuple[str, Mapping[str, Any]]:
    """Return whose the keys below a path are, and the description of each: schema, default, help.

    Args:
        tree: The config, which names the classes.
        path: The path; empty for the top of a config.
        imports: Whether a class that is not known is imported.

    Raises:
        ConfigError: If its class cannot be imported.
    """
    schema = load_schema()
    sections = schema.data["sections"]
    if not path:
        return "lightkit", {**{key: {"help": ""} for key in schema.sections}, **schema.data["top"]}
    if path == ("accelerator",):  # each key is as in the section, as in the trainer, or a number
        known = {**sections["trainer"]["arguments"], **sections["accelerator"]["arguments"]}
        number = {"schema": {"type": "integer"}}
        return "lightkit", {
            key: {**known.get(key, number), "help": text} for key, text in KEY_HELP.items()
        }
    if len(path) == 1 and path[0] in sections:
        return "pytorch_lightning.Trainer" if path[0] == "trainer" else "lightkit", sections[
            path[0]
        ]["arguments"]
    name = find_class(tree, path)
    if path[0] in NAMED_CLASSES and len(path) == 1:
        return "lightkit", {
            name: {"help": f"stands for {cls}"} for name, cls in NAMED_CLASSES[path[0]].items()
        }
    if name is None:
        return "", {}
    found, description = describe_class(
        name, schema.data["bases"].get(path[0], ()), imports=imports
    )
    return found, description["arguments"]


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


def describe_class(
    name: str, bases: Collection[str], *, imports: bool = True
) -> tuple[str, Mapping[str, Any]]:
    """Return the path and the description of a class.

    Both are empty where it is unknown and not imported.

    Args:
        name: Its path, or its short name.
        bases: Classes that it may derive from, for a short name.
        imports: Whether a class that the schema does not describe is imported.

    Raises:
        ConfigError: If it cannot be imported, or is no class.
    """
    schema = load_schema()
    path = schema.path_of(name, bases or list(schema.data["names"])) or name
    if path in schema.classes and schema.is_valid_for(path):
        return path, schema.classes[path]
    if "." not in path or not imports:
        return "", {"arguments": {}}
    if not isinstance(cls := import_class(path), type):
        raise ConfigError(f"{path} is not a class")
    from lightkit.cli import class_descriptions  # here, because it loads torch and Lightning

    return path, class_descriptions.describe_class(cls)


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
    bases = schema.data["bases"][section]
    for path, names in schema.names_of(bases).items():
        # which lightkit adds itself
        is_part = named and path.startswith("lightkit.") and path not in named.values()
        if path != bases[0] and not is_part:
            yield names[0], schema.classes[path]["help"]
