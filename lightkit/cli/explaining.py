"""What jsonargparse says of a wrong config, in the user's words and with the place where it was set."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any

from lightkit.config import KeyPath, Resolved, dotted, mistake, near
from lightkit.errors import ConfigError, LightkitError

__all__ = ["explained", "located", "subclass_names"]

_KEY = re.compile(r'Parser key "([^"]+)"')
_UNKNOWN_KEY = re.compile(r"does not accept option '([^']+)'|Key '([\w.+-]+)' is not expected")
_MISSING = re.compile(r"the following arguments are required: (.+)")
_CLASS = re.compile(r"Problem with given class_path '([^']+)':\n((?:[ ]{8}.*\n?|\n)*)")
_UNKNOWN_ARGUMENT = re.compile(r"Option '([^']+)' is not accepted")
_NO_CLASS = re.compile(r"Expected a dot import path string: (\S+)")
_WRONG_BASE = re.compile(r"Import path (\S+) does not correspond to a subclass of (\w+)")
_EXPECTED = re.compile(r"Expected a <class '(?:\w+\.)*(\w+)'>|Expected a typing\.Literal(\[[^\]]*\])")
_GIVEN = re.compile(r"(?:Given value|Got value): (.*)")
_WORDS = {"int": "an integer", "float": "a number", "str": "text", "bool": "true or false", "NoneType": "null",
          "list": "a list", "dict": "a mapping"}  # fmt: skip


def explained(error: Exception, resolved: Resolved, *, keys: Iterable[str], classes: Iterable[str]) -> ConfigError:
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
        return ConfigError(f"{missing}: missing; set it in a file given with -c, or with --{missing}=VALUE")
    keys_said = _KEY.findall(message)
    if not keys_said:
        return ConfigError(message)
    return _of_key(keys_said[0], message, resolved, classes)


def located(error: LightkitError, resolved: Resolved) -> LightkitError:
    """Add the place to an error that begins with the dotted key that it is about, unless it shows one."""
    match = re.match(r"([a-z_]+(?:\.\w+)+): ", str(error))
    origin = resolved.origin_of(match.group(1)) if match else None
    if origin is None or origin.kind == "default" or "-->" in str(error):
        return error
    return type(error)(f"{error}\n{origin.render()}")


def subclass_names(base: type) -> set[str]:
    """List the names of all classes that are known by now to derive from ``base``."""
    children: list[type] = base.__subclasses__()
    return {name for child in children for name in {child.__name__, *subclass_names(child)}}


def _of_key(key: str, message: str, resolved: Resolved, classes: Iterable[str]) -> ConfigError:
    path = resolved.lightkit_path(key)
    if match := _CLASS.search(message):
        class_path, inside = match.groups()
        return _of_class(_entry_path(path, class_path, resolved), class_path, inside, resolved)
    if match := _NO_CLASS.search(message):
        name = match.group(1)
        says = f"no class {name!r}{near(name, classes)}; a class of your own is named with its module: my_models.{name}"
        return _at((*_entry_path(path, name, resolved), "class_path"), says, resolved)
    if match := _WRONG_BASE.search(message):
        class_path, base = match.groups()
        return _at((*_entry_path(path, class_path, resolved), "class_path"), f"{class_path} is no {base}", resolved)
    return _at(path, _expectation(message), resolved)


def _of_class(path: KeyPath, class_path: str, inside: str, resolved: Resolved) -> ConfigError:
    name = class_path.rpartition(".")[2]
    if match := _UNKNOWN_ARGUMENT.search(inside):
        argument = match.group(1)
        says = f"{name} has no such argument{near(argument, _arguments_of(class_path))}"
        return _at((*path, "init_args", argument), says, resolved, key_itself=True)
    if match := _MISSING.search(inside):
        return _at(path, f"{name} needs {match.group(1)}", resolved)
    if keys := _KEY.findall(inside):
        return _at((*path, "init_args", *keys[0].split(".")), _expectation(inside), resolved)
    return _at((*path, "class_path"), f"{class_path} cannot be imported: {' '.join(inside.split())}", resolved)


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
        expected += [value.strip() for value in literal.strip("[]").split(",")] if literal else [_WORDS.get(kind, kind)]
    if not expected:
        lines = [line.strip(" -") for line in text.splitlines() if not _KEY.search(line)]
        return " ".join(line for line in lines if line)
    got = f", got {given[-1]!r}" if given else ""
    return f"expected {' or '.join(dict.fromkeys(expected))}{got}"


def _arguments_of(class_path: str) -> list[str]:
    module, _, name = class_path.rpartition(".")
    try:
        found = getattr(__import__(module, fromlist=[name]), name)
        return list(inspect.signature(found).parameters)
    except (ImportError, AttributeError, TypeError, ValueError):
        return []


def _at(path: KeyPath, says: str, resolved: Resolved, *, key_itself: bool = False) -> ConfigError:
    origin = resolved.origin_of(path)
    return mistake(f"{dotted(path)}: {says}", origin.at_key() if origin and key_itself else origin)
