"""Errors of Lightning and of a full disk in the user's words, with the place in the config that they are about."""

from __future__ import annotations

import errno
import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager

from lightning_fabric.utilities.exceptions import MisconfigurationException

from lightkit import runs
from lightkit.config import KeyPath, Origin, Resolved, dotted, mistake
from lightkit.config.tree import Leaf, walk
from lightkit.errors import ConfigError, LightkitError, exception_chain
from lightkit.runs.files import free_bytes, in_bytes

_SECTIONS = ("trainer", "callbacks", "logger", "lr_scheduler", "optimizer")
_NO_METRIC = "Early stopping conditioned on metric"  # EarlyStopping of Lightning 2.6.6, a RuntimeError
_OTHER_WEIGHTS = "Error(s) in loading state_dict"  # torch
_OTHER_OPTIMIZER = "loaded state dict "  # torch's optimizers, of their groups of parameters
_NO_PACKAGE = "Requirement '"  # lightning_utilities, of loggers whose package is not installed
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_WRAPPINGS = ("Does not validate against any of the Union", "Parser key ", "Problem with given class_path")


@contextmanager
def explain_lightning_errors(resolved: Resolved) -> Iterator[None]:
    """Replace what Lightning refuses by errors in words; everything else that is raised is a crash and passes.

    Raises:
        ConfigError: In the place of Lightning's error.
    """
    try:
        with explain_checkpoint_mismatch():
            yield
    except MisconfigurationException as error:
        raise locate_lightning_error(error, resolved) from error
    except pickle.UnpicklingError as error:  # of a strategy or a plugin that reads files by itself
        names = runs.classes_named(str(error))
        first = (str(error) or type(error).__name__).splitlines()[0]
        says = runs.refusal("the checkpoint", names) if names else f"the checkpoint cannot be read: {first}"
        raise ConfigError(says) from error
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        raise LightkitError(_describe_full_disk(error)) from error
    except (RuntimeError, ImportError, ValueError) as error:
        says = str(error)
        if says.startswith(_OTHER_OPTIMIZER):
            raise ConfigError(f"the checkpoint does not fit the optimizer: {says}") from error
        if not says.startswith((_NO_METRIC, _NO_PACKAGE)):
            raise
        raise locate_lightning_error(error, resolved) from error


@contextmanager
def explain_checkpoint_mismatch() -> Iterator[None]:
    """Replace torch's error of weights with other names or sizes by one in a line.

    Raises:
        ConfigError: In its place.
    """
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith(_OTHER_WEIGHTS):
            raise
        raise ConfigError(f"the checkpoint does not fit the model: {' '.join(str(error).split())}") from error


@contextmanager
def explain_full_disk() -> Iterator[None]:
    """Replace the system's error of a full disk, also where the end of a run could not be written to it either.

    Raises:
        LightkitError: In the place of the system's error: the first that was raised.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        before = error.__context__
        while before is not None and not isinstance(before, LightkitError):
            before = before.__context__
        raise before or LightkitError(_describe_full_disk(error)) from error


def _describe_full_disk(error: OSError) -> str:
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
def unwrap_errors() -> Iterator[None]:
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
    says = " ".join(resolved.masked(str(error)).split())
    return mistake(f"{dotted(path)}: {says}", origin) if path else ConfigError(says)
