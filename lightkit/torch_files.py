"""Load files of ``torch.save`` without running the code that they may hold."""

from __future__ import annotations

import argparse
import datetime as dt
import decimal
import pathlib
import pickle
import re
import struct
import uuid
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jsonargparse
import torch
from lightning_utilities.core.rank_zero import rank_zero_only
from torch import serialization

from lightkit import runs
from lightkit.errors import ConfigError

# torch 2.15 puts it two lines further down
_REASON = re.compile(r"WeightsUnpickler error:\s*(\S.*)")

_HARMLESS = (
    *(pathlib.PurePosixPath, pathlib.PosixPath, pathlib.PureWindowsPath, pathlib.WindowsPath),
    *(dt.timedelta, dt.datetime, dt.date, dt.time, dt.timezone),
    *(decimal.Decimal, uuid.UUID),
    *(
        argparse.Namespace,
        jsonargparse.Namespace,
        list,
        dict,
        tuple,
        frozenset,
        str,
        int,
        float,
        bool,
        range,
        slice,
    ),
)
"""Classes that users' callbacks keep values in, added to those that torch allows: building one runs
its own constructor alone. numpy's are not among them: to unpickle an array can reach into
memory."""
_NOT_READ = (
    *(
        RuntimeError,
        EOFError,
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        AssertionError,
    ),
    *(ImportError, OverflowError, MemoryError, struct.error, zipfile.BadZipFile),
)
"""What torch 2.15 raises for files that are cut short, damaged or something else."""


def load_file(path: str | Path, *, kind: str = "checkpoint", key: str = "", **settings: Any) -> Any:
    """Load a file of ``torch.save`` without code.

    With it if ``--trust`` allows that, after one warning.

    Args:
        path: The file.
        kind: Expected content, for the error.
        key: Beginning of the error, such as the setting that names the file.
        settings: Of ``torch.load``.

    Raises:
        ConfigError: If it cannot be read, or needs code and nothing allows that.
    """
    for weights_only in (True, False):
        try:
            with warnings.catch_warnings(), harmless_allowed():
                # the error below has the consequence
                warnings.filterwarnings("ignore", "Detected pickle protocol")
                return torch.load(path, weights_only=weights_only, **settings)
        except (*_NOT_READ, pickle.UnpicklingError) as error:
            names: list[str] = []
            if weights_only and isinstance(error, pickle.UnpicklingError):
                # all of them, where the file's format has a list
                with suppress(*_NOT_READ, pickle.UnpicklingError):
                    names = classes_beside_tensors(path)
                names = names or runs.find_class_names(str(error))
            if not (
                weights_only and isinstance(error, pickle.UnpicklingError) and runs.is_trusting()
            ):
                text = (
                    runs.refusal(path, names)
                    if names
                    else explain_unreadable(path, error, kind=kind)
                )
                raise ConfigError(f"{key}{text}") from error
        rank_zero_only(runs.warn_of_trust)(path, names)
    raise AssertionError  # the second attempt returns or raises


def explain_unreadable(path: str | Path, error: Exception, *, kind: str) -> str:
    """Format the error for a file that torch cannot load as a ``kind``."""
    # in the midst of advice on weights_only, which is not for a command line
    reason = _REASON.search(str(error))
    text = reason[1] if reason else (str(error) or type(error).__name__).splitlines()[0]
    hint = " If you know who made it, --trust on the command line may read it." if reason else ""
    return (
        f"{path} cannot be read as a {kind}: it is damaged, cut short, or something else"
        f" ({text}).{hint}"
    )


def classes_beside_tensors(path: str | Path) -> list[str]:
    """List the classes and functions that loading a file would call.

    Without the harmless ones, and without loading it.

    Any thread may ask: nothing is allowed meanwhile.
    """
    harmless = {f"{kind.__module__}.{kind.__qualname__}" for kind in _HARMLESS}
    return sorted({*serialization.get_unsafe_globals_in_checkpoint(str(path))} - harmless)


@contextmanager
def harmless_allowed() -> Iterator[None]:
    """Make ``weights_only=True`` accept classes of the standard library that only hold values."""
    before = serialization.get_safe_globals()
    with serialization.safe_globals([kind for kind in _HARMLESS if kind not in before]):
        yield
