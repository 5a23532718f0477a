"""Errors of jsonargparse in the user's words, with the place in the config that they are about. No torch."""

from __future__ import annotations

import errno
import importlib
import inspect
import pickle
import re
import sys
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pydoc import locate
from types import ModuleType
from typing import Any

from lightkit import runs
from lightkit.config import KeyPath, Origin, Resolved, dotted, error_at, near
from lightkit.config.loader import Consequence, original_path
from lightkit.config.origins import cut, no_class, shown_path
from lightkit.config.schema import join_alternatives, load_schema, type_words
from lightkit.config.tree import Leaf, walk
from lightkit.errors import ConfigError, LightkitError, exception_chain

# What jsonargparse 4.53 writes.
_KEY = re.compile(r'Parser key "([^"]+)"')
_UNKNOWN_KEY = re.compile(r"does not accept option '([^']+)'|Key '([\w.+-]+)' is not expected")
_MISSING = re.compile(r"the following arguments are required: (.+)")
_CLASS = re.compile(r"Problem with given class_path '([^']+)':\n((?:[ ]{8}.*\n?|\n)*)")
_UNKNOWN_ARGUMENT = re.compile(r"Option '([^']+)' is not accepted")
_NO_CLASS = re.compile(r"Expected a dot import path string: (\S+)")
_WRONG_BASE = re.compile(r"Import path (\S+) does not correspond to a subclass of (\w+)")
_EXPECTED = re.compile(r"Expected a <class '(?:\w+\.)*(\w+)'>|Expected a typing\.Literal(\[[^\]]*\])")
_GIVEN = re.compile(r"(?:Given value|Got value): (.*)")


def explain_parser_error(
    error: Exception, resolved: Resolved, *, keys: Iterable[str], classes: Collection[str]
) -> ConfigError:
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
        return _make_error(resolved.lightkit_path(key), f"no such key{near(key, keys)}", resolved, at_key=True)
    keys_named = _KEY.findall(message)
    if (match := _MISSING.search(message)) and not keys_named:
        missing = match[1].replace(f"{resolved.subcommand}.", "")
        if _was_removed(missing, (), resolved):
            return Consequence(missing)
        return ConfigError(f"{missing}: missing; set it in a file given with -c, or with --{missing}=VALUE")
    if not keys_named:
        return ConfigError(message)
    path = resolved.lightkit_path(keys_named[0])
    if match := _CLASS.search(message):
        return _explain_class(_find_entry(path, match[1], resolved), match[1], match[2], resolved)
    if match := _NO_CLASS.search(message):
        name = match[1]
        is_other = name in classes
        text = f"{name} is a class of another kind than goes here" if is_other else no_class(name, near(name, classes))
        return _make_error((*_find_entry(path, name, resolved), "class_path"), text, resolved)
    if match := _WRONG_BASE.search(message):
        class_path, base = match.groups()
        thing, kind = locate(class_path), "no "
        if thing is not None and not isinstance(thing, type):
            kind = f"{'a function' if callable(thing) else f'the value {cut(str(thing))}'}, not a "
        text = f"{class_path} is {kind}{base}"
        return _make_error((*_find_entry(path, class_path, resolved), "class_path"), text, resolved)
    value = _value_at(resolved, path)
    named = value.get("class_path") if isinstance(value, Mapping) else None
    if isinstance(named, str) and (failure := _find_import_failure(named)):
        return _make_error((*path, "class_path"), f"{named} cannot be imported: {failure}", resolved)
    return _make_error(path, _describe_type_error(message), resolved)


def explain_exit_at_import(end: SystemExit, resolved: Resolved) -> ConfigError:
    """Name the class whose module ends the program when it is imported."""
    modules = {frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(end.__traceback__)}
    for path, node in walk(resolved.tree):
        value = getattr(node, "value", None)
        if path[-1:] == ("class_path",) and isinstance(value, str) and value.rpartition(".")[0] in modules:
            text = f"{value} cannot be imported: its module calls sys.exit({end.code})"
            return _make_error(path, text, resolved)
    return ConfigError(f"a module that the config imports calls sys.exit({end.code})")


def add_place(error: LightkitError, resolved: Resolved) -> LightkitError:
    """Add the place of the first dotted key that the error names and the user has set, unless it shows one.

    What came from the environment is a reference in it.
    """
    error = error.reworded(resolved.masked)
    keys = [] if "-->" in str(error) else re.findall(r"(?<![\w.])[a-z_]+(?:\.\w+)+", str(error))
    origins = [resolved.origins.get(resolved.lightkit_path(key)) for key in keys]
    places = [origin.render() for origin in origins if origin is not None and origin.kind != "default"]
    return error.reworded(lambda text: f"{text}\n{places[0]}") if places else error


def list_loaded_classes(bases: Iterable[str]) -> set[str]:
    """List the public names of all loaded classes that derive from one of the bases, which are given by their paths."""
    names: set[str] = set()
    pending = [getattr(sys.modules.get(path.rpartition(".")[0]), path.rpartition(".")[2], None) for path in bases]
    while pending:
        if isinstance(base := pending.pop(), type):
            children: list[type] = base.__subclasses__()
            names |= {child.__name__ for child in children}
            pending += children
    return {name for name in names if not name.startswith("_")}


def list_known_classes() -> set[str]:
    """List the public names of all loaded classes that a config may name."""
    return list_loaded_classes(base for bases in load_schema().data["bases"].values() for base in bases)


def _explain_class(path: KeyPath, class_path: str, inside: str, resolved: Resolved) -> ConfigError:
    """Explain an error in a class's arguments.

    Args:
        path: Place of the class.
        class_path: Its name.
        inside: What jsonargparse says of it.
        resolved: The config.
    """
    name = class_path.rpartition(".")[2]
    keys = _KEY.findall(inside)
    if keys and (nested := _CLASS.search(inside)):
        place = (*path, "init_args", *keys[0].split("."))
        return _explain_class(_find_entry(place, nested[1], resolved), nested[1], nested[2], resolved)
    given = _value_at(resolved, path)
    for index, entry in enumerate(given) if isinstance(given, list) else [(None, given)]:
        if isinstance(entry, Mapping) and "init_args" in entry and "class_path" not in entry:
            place = path if index is None else (*path, index)
            text = "expected a class_path beside init_args: whose arguments are these?"
            return _make_error(place, text, resolved)
    if match := _UNKNOWN_ARGUMENT.search(inside):
        arguments = inspect.signature(locate(class_path) or object).parameters  # type: ignore[arg-type]
        text = f"{name} has no such argument{near(match[1], [*arguments])}"
        return _make_error((*path, "init_args", match[1]), text, resolved, at_key=True)
    if match := _MISSING.search(inside):
        error = _make_error(path, f"{name} needs {match[1]}", resolved)
        is_removed = _was_removed(match[1], (*path, "init_args"), resolved)
        return Consequence(str(error), places=error.places) if is_removed else error
    if keys:
        return _make_error((*path, "init_args", *keys[0].split(".")), _describe_type_error(inside), resolved)
    arguments = _value_at(resolved, (*path, "init_args"))
    if arguments is not None and not isinstance(arguments, Mapping):
        text = f"expected a mapping of {name}'s arguments, got {arguments!r}"
        return _make_error((*path, "init_args"), text, resolved)
    first = inside.strip().partition("\n")[0]
    failure = _find_import_failure(class_path) or f"{first}{_suggest_import(class_path)}"
    return _make_error((*path, "class_path"), f"{class_path} cannot be imported: {failure}", resolved)


def _make_error(path: KeyPath, text: str, resolved: Resolved, *, at_key: bool = False) -> ConfigError:
    origin = resolved.origin_of(path)
    place = origin.at_key() if origin is not None and at_key else origin
    return error_at(f"{dotted(original_path(path, resolved.removed))}: {text}", place)


def _was_removed(missing: str, section: KeyPath, resolved: Resolved) -> bool:
    """Check whether a missing key was left out because it was wrong or could not be read."""
    names = [tuple(name.strip().split(".")) for name in missing.split(",")]
    section = original_path(section, resolved.removed)
    return resolved.is_incomplete or any((*section, *name) in resolved.removed for name in names)


def _value_at(resolved: Resolved, path: KeyPath) -> Any:
    value: Any = resolved.values
    for part in path:
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def _find_entry(path: KeyPath, class_path: str, resolved: Resolved) -> KeyPath:
    """Find the entry of a list or of named entries that has the class; other sections are the entry themselves."""
    for section in [path, path[1:]] if path[:1] == ("trainer",) and len(path) == 2 else [path]:
        entries = _value_at(resolved, section)
        pairs = entries.items() if isinstance(entries, Mapping) else enumerate(entries or ())
        for name, entry in pairs if isinstance(entries, (Mapping, list)) else ():
            named = entry.get("class_path") if isinstance(entry, Mapping) else entry
            is_same = isinstance(named, str) and named.rpartition(".")[2] == class_path.rpartition(".")[2]
            if is_same and name != "class_path":
                return (*section, name)
    return path


def _find_import_failure(class_path: str) -> str | None:
    """Describe the error inside the module of a class, with its line; None if the module has none."""
    module = class_path.rpartition(".")[0]
    try:
        importlib.import_module(module or "builtins")
    except Exception as error:  # noqa: BLE001 (a module may raise anything, and the user reads it)
        if isinstance(error, SyntaxError):
            return f"{type(error).__name__}: {error}"
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_file()]
        where = [frame for frame in frames[1:] if "importlib" not in Path(frame.filename).parts]
        if where:
            place = f"{shown_path(Path(where[-1].filename))}:{where[-1].lineno}"
            return f"{type(error).__name__}: {error} ({place})"
    return None


def _suggest_import(class_path: str) -> str:
    """Hint at the part of a class's path that does not exist: its name, a package, or the module of a file beside."""
    parts = class_path.split(".")
    known = next((n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in sys.modules), 0)
    if known == 0:
        return near(parts[0], [file.stem for file in Path().glob("*.py")])
    inside = vars(sys.modules[".".join(parts[:known])])
    kind = type if known == len(parts) - 1 else ModuleType
    return near(parts[known], [name for name, value in inside.items() if isinstance(value, kind)])


def _describe_type_error(text: str) -> str:
    """Write `expected an integer or null, got 'ten'`."""
    expected = []
    for kind, literal in _EXPECTED.findall(text):
        expected += [value.strip() for value in literal.strip("[]").split(",")] if literal else [type_words(kind)]
    if not expected:
        lines = [line.strip(" -") for line in text.splitlines() if not _KEY.search(line)]
        return " ".join(line for line in lines if line)
    given = _GIVEN.findall(text)
    got = f", got {given[-1]!r}" if given else ""
    return f"expected {join_alternatives(expected)}{got}"


_SECTIONS = ("trainer", "callbacks", "logger", "lr_scheduler", "optimizer")
_NO_METRIC = "Early stopping conditioned on metric"  # EarlyStopping of Lightning 2.6.6, a RuntimeError
OTHER_WEIGHTS = "Error(s) in loading state_dict"  # torch
_OTHER_OPTIMIZER = "loaded state dict "  # torch's optimizers, of their groups of parameters
_NO_PACKAGE = "Requirement '"  # lightning_utilities, of loggers whose package is not installed
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_WRAPPINGS = ("Does not validate against any of the Union", "Parser key ", "Problem with given class_path")


@contextmanager
def explain_lightning_errors(resolved: Resolved) -> Iterator[None]:
    """Replace what Lightning refuses by errors in words, and show where their keys are set; a crash passes.

    Raises:
        LightkitError: In the place of Lightning's error, or of one without its place.
    """
    from lightning_fabric.utilities.exceptions import MisconfigurationException  # here: it loads torch

    try:
        yield
    except LightkitError as error:
        raise add_place(error, resolved) from error
    except MisconfigurationException as error:
        raise locate_lightning_error(error, resolved) from error
    except pickle.UnpicklingError as error:  # of a strategy or a plugin that reads files by itself
        names = runs.find_class_names(str(error))
        first = (str(error) or type(error).__name__).splitlines()[0]
        text = runs.refusal("the checkpoint", names) if names else f"the checkpoint cannot be read: {first}"
        raise ConfigError(text) from error
    except (RuntimeError, ImportError, ValueError) as error:
        text = str(error)
        if text.startswith((OTHER_WEIGHTS, _OTHER_OPTIMIZER)):
            part = "model" if text.startswith(OTHER_WEIGHTS) else "optimizer"
            raise ConfigError(f"the checkpoint does not fit the {part}: {' '.join(text.split())}") from error
        if not text.startswith((_NO_METRIC, _NO_PACKAGE)):
            raise
        raise locate_lightning_error(error, resolved) from error


@contextmanager
def explain_full_disk() -> Iterator[None]:
    """Replace the system's error of a disk that is full or cannot be written.

    Raises:
        LightkitError: In its place, with how to go on.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        aside = re.fullmatch(r"(.*/)?\.([^/]+)\.[0-9a-f]{8}\.aside", str(error.filename))  # which is made to replace it
        file = (aside[1] or "") + aside[2] if aside else error.filename or "a file of this run"
        raise LightkitError(
            f"{error.strerror}: {file} cannot be written. Make room, or let the disk be written again; then run the "
            "same command to resume."
        ) from error


@contextmanager
def unwrap_errors() -> Iterator[None]:
    """Let what a constructor raised through, which jsonargparse has wrapped in an error of its own."""
    from lightning_fabric.utilities.exceptions import MisconfigurationException  # here: it loads torch

    try:
        yield
    except ValueError as error:
        causes = list(exception_chain(error))
        told = (cause for cause in causes if isinstance(cause, (LightkitError, MisconfigurationException)))
        raised = (cause for cause in causes if not str(cause).startswith(_WRAPPINGS))
        original = next(told, next(raised, error))
        if original is error:
            raise
        raise original from original.__cause__


def locate_lightning_error(error: Exception, resolved: Resolved) -> ConfigError:
    """Name the user's key that Lightning's message is about, found by its name, its value, or best both."""
    words = {word.rstrip(".") for word in re.findall(r"[\w/.+-]+", str(error))}
    best: tuple[int, KeyPath, Origin | None] = (0, (), None)
    for path, node in walk(resolved.tree):
        is_set = len(path) > 1 and path[0] in _SECTIONS and isinstance(node, Leaf) and node.origin.kind != "default"
        value = getattr(node, "value", None)
        by_value = isinstance(value, str) and len(value) > 2 and value in words
        score = is_set * (by_value + (bool(path) and path[-1] in words))
        if score > best[0]:
            best = (score, path, node.origin)
    _, path, origin = best
    text = " ".join(resolved.masked(str(error)).split())
    return error_at(f"{dotted(path)}: {text}", origin) if path else ConfigError(text)
