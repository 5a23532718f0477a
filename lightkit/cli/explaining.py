"""What jsonargparse says of a wrong config, in the user's words and with the place where it was set."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from lightkit.config import KeyPath, Origin, Resolved, dotted, mistake, near
from lightkit.config.loader import Consequence, original_path
from lightkit.config.origins import cut, no_class, shown_path
from lightkit.config.schema import join_alternatives, type_words
from lightkit.errors import ConfigError, LightkitError

__all__ = ["exit_at_import", "explained", "located", "subclass_names"]

_KEY = re.compile(r'Parser key "([^"]+)"')
_UNKNOWN_KEY = re.compile(r"does not accept option '([^']+)'|Key '([\w.+-]+)' is not expected")
_MISSING = re.compile(r"the following arguments are required: (.+)")
_CLASS = re.compile(r"Problem with given class_path '([^']+)':\n((?:[ ]{8}.*\n?|\n)*)")
_UNKNOWN_ARGUMENT = re.compile(r"Option '([^']+)' is not accepted")
_NO_CLASS = re.compile(r"Expected a dot import path string: (\S+)")
_WRONG_BASE = re.compile(r"Import path (\S+) does not correspond to a subclass of (\w+)")
_EXPECTED = re.compile(r"Expected a <class '(?:\w+\.)*(\w+)'>|Expected a typing\.Literal(\[[^\]]*\])")
_GIVEN = re.compile(r"(?:Given value|Got value): (.*)")


def explained(error: Exception, resolved: Resolved, *, keys: Iterable[str], classes: Collection[str]) -> ConfigError:
    """Turn a parser's error into one that names the user's key and shows where it was set.

    Args:
        error: What jsonargparse raised.
        resolved: The config that was parsed.
        keys: Dotted keys that the parser knows, for near names.
        classes: Names of the classes that could be meant, for near names.
    """
    message = resolved.masked(str(error))
    if match := _UNKNOWN_KEY.search(message):
        key = next(filter(None, match.groups())).removeprefix(f"{resolved.subcommand}.")
        return _at(resolved.lightkit_path(key), f"no such key{near(key, keys)}", resolved, key_itself=True)
    if (match := _MISSING.search(message)) and not _KEY.search(message):
        missing = match.group(1).replace(f"{resolved.subcommand}.", "")
        if _was_removed(missing, (), resolved):
            return Consequence(missing)
        return ConfigError(f"{missing}: missing; set it in a file given with -c, or with --{missing}=VALUE")
    keys_said = _KEY.findall(message)
    if not keys_said:
        return ConfigError(message)
    return _of_key(keys_said[0], message, resolved, classes)


def located(error: LightkitError, resolved: Resolved) -> LightkitError:
    """Add the place of the first dotted key that the error names and the user has set, unless it shows one.

    What came from the environment is a reference in it.
    """
    error = error.reworded(resolved.masked)
    says = str(error)
    for key in re.findall(r"(?<![\w.])[a-z_]+(?:\.\w+)+", says) if "-->" not in says else ():
        origin = resolved.origins.get(resolved.lightkit_path(key))
        if origin is not None and origin.kind != "default":
            return error.reworded(partial(_shown_at, origin))
    return error


def _shown_at(origin: Origin, says: str) -> str:
    return f"{says}\n{origin.render()}"


def subclass_names(base: type) -> set[str]:
    """List the public names of all classes that are known by now to derive from ``base``."""
    children: list[type] = base.__subclasses__()
    names = {name for child in children for name in {child.__name__, *subclass_names(child)}}
    return {name for name in names if not name.startswith("_")}


def _of_key(key: str, message: str, resolved: Resolved, classes: Collection[str]) -> ConfigError:
    path = resolved.lightkit_path(key)
    if match := _CLASS.search(message):
        class_path, inside = match.groups()
        return _of_class(_entry_path(path, class_path, resolved), class_path, inside, resolved)
    if match := _NO_CLASS.search(message):
        name = match.group(1)
        is_other = name in classes
        says = f"{name} is a class of another kind than goes here" if is_other else no_class(name, near(name, classes))
        return _at((*_entry_path(path, name, resolved), "class_path"), says, resolved)
    if match := _WRONG_BASE.search(message):
        class_path, base = match.groups()
        says = f"{class_path} is {_kind_of(class_path)}{base}"
        return _at((*_entry_path(path, class_path, resolved), "class_path"), says, resolved)
    value = _said(resolved, path)
    said = value.get("class_path") if isinstance(value, Mapping) else None
    if isinstance(said, str) and (failure := _import_failure(said)):
        return _at((*path, "class_path"), f"{said} cannot be imported: {failure}", resolved)
    return _at(path, _expectation(message), resolved)


def _of_class(path: KeyPath, class_path: str, inside: str, resolved: Resolved) -> ConfigError:
    name = class_path.rpartition(".")[2]
    if (keys := _KEY.findall(inside)) and (nested := _CLASS.search(inside)):
        place = (*path, "init_args", *keys[0].split("."))
        return _of_class(_entry_path(place, nested[1], resolved), nested[1], nested[2], resolved)
    if (classless := _without_class(path, resolved)) is not None:
        return _at(classless, "expected a class_path beside init_args: whose arguments are these?", resolved)
    if match := _UNKNOWN_ARGUMENT.search(inside):
        argument = match.group(1)
        says = f"{name} has no such argument{near(argument, _arguments_of(class_path))}"
        return _at((*path, "init_args", argument), says, resolved, key_itself=True)
    if match := _MISSING.search(inside):
        error = _at(path, f"{name} needs {match.group(1)}", resolved)
        is_removed = _was_removed(match.group(1), (*path, "init_args"), resolved)
        return Consequence(str(error), places=error.places) if is_removed else error
    if keys:
        return _at((*path, "init_args", *keys[0].split(".")), _expectation(inside), resolved)
    given = _said(resolved, (*path, "init_args"))
    if given is not None and not isinstance(given, Mapping):
        says = f"expected a mapping of {name}'s arguments, got {given!r}"
        return _at((*path, "init_args"), says, resolved)
    failure = _import_failure(class_path) or f"{inside.strip().partition(chr(10))[0]}{_near_import(class_path)}"
    return _at((*path, "class_path"), f"{class_path} cannot be imported: {failure}", resolved)


def _was_removed(missing: str, section: KeyPath, resolved: Resolved) -> bool:
    """Tell whether something among what is missing has been left out, because it was wrong or could not be read."""
    names = [tuple(name.strip().split(".")) for name in missing.split(",")]
    section = original_path(section, resolved.removed)
    return resolved.is_incomplete or any((*section, *name) in resolved.removed for name in names)


def _said(resolved: Resolved, path: KeyPath) -> Any:
    value: Any = resolved.values
    for part in path:
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def exit_at_import(end: SystemExit, resolved: Resolved) -> ConfigError:
    """Name the class whose module ends the program when it is imported."""
    modules = {frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(end.__traceback__)}
    for path, value in _class_paths(resolved.values, ()):
        if value.rpartition(".")[0] in modules:
            return _at(path, f"{value} cannot be imported: its module calls sys.exit({end.code})", resolved)
    return ConfigError(f"a module that the config imports calls sys.exit({end.code})")


def _class_paths(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    if isinstance(value, str) and path[-1:] == ("class_path",):
        yield path, value
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, child in pairs:
        yield from _class_paths(child, (*path, key))


def _import_failure(class_path: str) -> str | None:
    """Say what is wrong inside the module of a class, and on which line; None where the module is not at fault."""
    module = class_path.rpartition(".")[0]
    try:
        importlib.import_module(module or "builtins")
    except Exception as error:  # noqa: BLE001 (whatever the module raises is told)
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_file()]
        where = [frame for frame in frames[1:] if "importlib" not in Path(frame.filename).parts]
        if isinstance(error, SyntaxError):
            return f"{type(error).__name__}: {error}"
        return (
            f"{type(error).__name__}: {error} ({shown_path(Path(where[-1].filename))}:{where[-1].lineno})"
            if where
            else None
        )
    return None


def _near_import(class_path: str) -> str:
    """Hint at the part of a class's path that is not there: its name, a package, or the module of a file beside."""
    parts = class_path.split(".")
    known = next((n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in sys.modules), 0)
    if known == 0:
        return near(parts[0], [file.stem for file in Path().glob("*.py")])
    inside = vars(sys.modules[".".join(parts[:known])])
    is_last = known == len(parts) - 1
    kind = type if is_last else ModuleType
    return near(parts[known], [name for name, value in inside.items() if isinstance(value, kind)])


def _kind_of(class_path: str) -> str:
    """Begin the sentence that a thing is not what is asked for."""
    module, _, name = class_path.rpartition(".")
    thing = getattr(sys.modules.get(module), name, None)
    if thing is None or isinstance(thing, type):
        return "no "
    return f"{'a function' if callable(thing) else f'the value {cut(str(thing))}'}, not a "


def _without_class(path: KeyPath, resolved: Resolved) -> KeyPath | None:
    """Find the place of arguments that stand there without the name of their class."""
    given = _said(resolved, path)
    entries = enumerate(given) if isinstance(given, list) else [(None, given)]
    for index, entry in entries:
        if isinstance(entry, Mapping) and "init_args" in entry and "class_path" not in entry:
            return path if index is None else (*path, index)
    return None


def _entry_path(path: KeyPath, class_path: str, resolved: Resolved) -> KeyPath:
    """Find the entry of a list or of named entries that has the class; other sections are the entry themselves."""
    sections = [path, path[1:]] if path[:1] == ("trainer",) and len(path) == 2 else [path]
    for section in sections:
        entries: Any = resolved.values
        for part in section:
            entries = entries.get(part, {}) if isinstance(entries, Mapping) else {}
        pairs: Any = (
            entries.items() if isinstance(entries, Mapping) else enumerate(entries if isinstance(entries, list) else ())
        )
        for name, entry in pairs:
            said = entry.get("class_path") if isinstance(entry, Mapping) else entry
            if (
                isinstance(said, str)
                and said.rpartition(".")[2] == class_path.rpartition(".")[2]
                and name != "class_path"
            ):
                return (*section, name)
    return path


def _expectation(text: str) -> str:
    """Write `expected an integer or null, got 'ten'`."""
    given = _GIVEN.findall(text)
    expected = []
    for kind, literal in _EXPECTED.findall(text):
        expected += [value.strip() for value in literal.strip("[]").split(",")] if literal else [type_words(kind)]
    if not expected:
        lines = [line.strip(" -") for line in text.splitlines() if not _KEY.search(line)]
        return " ".join(line for line in lines if line)
    got = f", got {given[-1]!r}" if given else ""
    return f"expected {join_alternatives(expected)}{got}"


def _arguments_of(class_path: str) -> list[str]:
    module, _, name = class_path.rpartition(".")
    try:
        found = getattr(__import__(module, fromlist=[name]), name)
        return list(inspect.signature(found).parameters)
    except (ImportError, AttributeError, TypeError, ValueError):
        return []


def _at(path: KeyPath, says: str, resolved: Resolved, *, key_itself: bool = False) -> ConfigError:
    origin = resolved.origin_of(path)
    return mistake(
        f"{dotted(original_path(path, resolved.removed))}: {says}", origin.at_key() if origin and key_itself else origin
    )
