"""What Lightning refuses, as a mistake in the config with the place where it was set."""

from __future__ import annotations

import errno
import pickle
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lightning_fabric.utilities.exceptions import MisconfigurationException

from lightkit import runs
from lightkit.config import KeyPath, Resolved, dotted, mistake
from lightkit.errors import ConfigError, LightkitError, exception_chain
from lightkit.runs.disk import free_bytes, in_bytes

__all__ = ["full_disk_told", "refusals_told", "refused", "unwrapped_errors"]

_SECTIONS = ("trainer", "callbacks", "logger", "lr_scheduler", "optimizer")
_NO_METRIC = "Early stopping conditioned on metric"  # EarlyStopping of Lightning 2.6.6, a RuntimeError
_OTHER_WEIGHTS = "Error(s) in loading state_dict"  # torch
_OTHER_OPTIMIZER = "loaded state dict "  # torch's optimizers, of their groups of parameters
_NO_PACKAGE = "Requirement '"  # lightning_utilities, of loggers whose package is not installed
_NO_PLACE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_WRAPPINGS = ("Does not validate against any of the Union", "Parser key ", "Problem with given class_path")


@contextmanager
def refusals_told(resolved: Resolved) -> Iterator[None]:
    """Tell what Lightning refuses in words; everything else that is raised is a crash and passes.

    Raises:
        ConfigError: In the place of Lightning's error.
    """
    try:
        yield
    except MisconfigurationException as error:
        raise refused(error, resolved) from error
    except pickle.UnpicklingError as error:  # of a strategy or a plugin that reads files by itself
        names = runs.classes_named(str(error))
        told = runs.refusal("the checkpoint", names) if names else f"the checkpoint cannot be read: {_first(error)}"
        raise ConfigError(told) from error
    except OSError as error:
        if error.errno not in _NO_PLACE:
            raise
        raise LightkitError(_no_place(error)) from error
    except (RuntimeError, ImportError, ValueError) as error:
        says = str(error)
        if says.startswith(_OTHER_WEIGHTS):
            raise ConfigError(f"the checkpoint does not fit the model: {' '.join(says.split())}") from error
        if says.startswith(_OTHER_OPTIMIZER):
            raise ConfigError(f"the checkpoint does not fit the optimizer: {says}") from error
        if not says.startswith((_NO_METRIC, _NO_PACKAGE)):
            raise
        raise refused(error, resolved) from error


@contextmanager
def full_disk_told() -> Iterator[None]:
    """Tell of a disk that takes no more in words, also where the end of a run could not be written to it either.

    Raises:
        LightkitError: In the place of the system's error: the first that was told.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_PLACE:
            raise
        before = error.__context__
        while before is not None and not isinstance(before, LightkitError):
            before = before.__context__
        raise before or LightkitError(_no_place(error)) from error


def _no_place(error: OSError) -> str:
    """Say that a disk is full or cannot be written, and how to go on."""
    run = runs.current()
    free = None if run is None else free_bytes(run.folder)
    aside = re.fullmatch(r"(.*/)?\.([^/]+)\.[0-9a-f]{8}\.aside", str(error.filename))  # which is made to replace it
    file = (aside[1] or "") + aside[2] if aside else error.filename or "a file of this run"
    left = "" if free is None or run is None else f" ({in_bytes(free)} are free on the disk of {run.folder})"
    return (
        f"{error.strerror}: {file} cannot be written{left}. Make room, or let the disk be written again; then run the "
        "same command to resume."
    )


@contextmanager
def unwrapped_errors() -> Iterator[None]:
    """Let what a constructor raised through, which jsonargparse has wrapped in an error of its own."""
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


def refused(error: Exception, resolved: Resolved) -> ConfigError:
    """Make the error that names the key that Lightning's words are about, where one can be told."""
    says = " ".join(resolved.masked(str(error)).split())
    path = _meant(str(error), resolved)
    if path is None:
        return ConfigError(says)
    return mistake(f"{dotted(path)}: {says}", resolved.origin_of(path))


def _first(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _meant(message: str, resolved: Resolved) -> KeyPath | None:
    """Find the user's key that is named in a message, by its name, its value, or best both."""
    words = {word.rstrip(".") for word in re.findall(r"[\w/.+-]+", message)}
    best, most = None, 0
    for path, origin in resolved.origins.items():
        if origin.kind == "default" or path[0] not in _SECTIONS or len(path) < 2:
            continue
        value = _value(resolved.values, path)
        if isinstance(value, (Mapping, list)):
            continue
        by_value = isinstance(value, str) and len(value) > 2 and value in words
        score = (path[-1] in words) + by_value
        if score > most:
            best, most = path, score
    return best


def _value(values: Any, path: KeyPath) -> Any:
    for part in path:
        values = values[part]
    return values
