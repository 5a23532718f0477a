"""Checkpoints read as tensors and plain values: nothing in the file is run unless ``--trust`` allows it."""

from __future__ import annotations

import argparse
import datetime as dt
import decimal
import logging
import pathlib
import pickle
import re
import struct
import uuid
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonargparse
import torch
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning_utilities.core.rank_zero import rank_zero_only
from packaging.version import InvalidVersion, Version
from torch import Tensor, serialization

from lightkit import runs
from lightkit.errors import ConfigError

__all__ = ["CheckpointReader", "check_content", "classes_beside_tensors", "harmless_allowed", "read_checkpoint"]

_REASON = re.compile(r"WeightsUnpickler error:\s*(\S.*)")  # torch 2.15 puts it two lines further down
_log = logging.getLogger("lightkit")

_HARMLESS = (
    *(pathlib.PurePosixPath, pathlib.PosixPath, pathlib.PureWindowsPath, pathlib.WindowsPath),
    *(dt.timedelta, dt.datetime, dt.date, dt.time, dt.timezone),
    *(decimal.Decimal, uuid.UUID),
    *(argparse.Namespace, jsonargparse.Namespace, list, dict, tuple, frozenset, str, int, float, bool, range, slice),
)
"""Classes that people's callbacks keep values in, beside those that torch allows: to build one runs nothing but its own
constructor. numpy's are not among them: to unpickle an array can reach into memory."""
_NOT_READ = (
    *(RuntimeError, EOFError, OSError, ValueError, LookupError, TypeError, AttributeError, AssertionError),
    *(ImportError, OverflowError, MemoryError, struct.error, zipfile.BadZipFile),
)
"""What torch 2.15 raises for files that are cut short, damaged or something else."""
_FORMS: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(
        ("state_dict", "callbacks", "loops", "hyper_parameters", "lightkit_resume"), (Mapping, "a mapping")
    ),
    **dict.fromkeys(("optimizer_states", "lr_schedulers"), (Sequence, "a list")),
    "pytorch-lightning_version": (str, "text"),
}
_LOOPS = ("fit_loop", "validate_loop", "test_loop", "predict_loop")
_TO_GO_ON = ("optimizer_states", "lr_schedulers", "loops")


class CheckpointReader(TorchCheckpointIO):
    """Reads checkpoints as tensors and plain values, whatever a config or a caller says of ``weights_only``."""

    def load_checkpoint(
        self, path: str | Path, map_location: Any = lambda storage, _: storage, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint.

        Args:
            path: The file, or its address.
            map_location: Where its tensors go, as in ``torch.load``.
            weights_only: Without effect: only ``--trust`` allows more.

        Raises:
            ConfigError: If it cannot be read, is no checkpoint, or needs code.
        """
        if "://" in str(path):  # Lightning's own reader knows object stores
            with harmless_allowed():
                return super().load_checkpoint(path, map_location, weights_only=not runs.is_trusting())
        return read_checkpoint(path, map_location=map_location)


def read_checkpoint(path: str | Path, *, map_location: Any = "cpu", mmap: bool = False) -> dict[str, Any]:
    """Read a checkpoint of Lightning.

    Args:
        path: The file.
        map_location: Where its tensors go, as in ``torch.load``.
        mmap: Leave the tensors on the disk until they are used.

    Raises:
        ConfigError: If it cannot be read, is no checkpoint, or needs code and nothing allows that.
    """
    content = _loaded(path, map_location=map_location, mmap=mmap and zipfile.is_zipfile(path))
    check_content(content, path)
    assert isinstance(content, dict)
    return content


def check_content(content: Any, path: str | Path, *, goes_on: bool = False) -> None:
    """Make sure that what a file holds is a checkpoint.

    Args:
        content: What was read from it.
        path: The file.
        goes_on: Whether a training is to go on from it, which needs more than the model.

    Raises:
        ConfigError: If it is none, or lacks what is needed.
    """
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds a {type(content).__name__}, not a checkpoint of Lightning.")
    if content and all(isinstance(value, Tensor) for value in content.values()):
        raise ConfigError(
            f"{path} is a state dict, tensors alone, not a checkpoint of Lightning. Where the model is an "
            f"ImageClassifier, --model.weights={path} starts from it."
        )
    needed = ("state_dict", "pytorch-lightning_version")
    if missing := [key for key in needed if key not in content]:
        has = ", ".join(sorted(map(str, content))[:10]) or "nothing"
        raise ConfigError(f"{path} is no checkpoint of Lightning: it lacks {' and '.join(missing)}; it has {has}.")
    if fault := _fault_of(content):
        raise ConfigError(f"{path} is no checkpoint of Lightning, or it was altered: {fault}.")
    if goes_on and (missing := [key for key in _TO_GO_ON if key not in content]):
        raise ConfigError(
            f"{path} has the model only (it lacks {', '.join(missing)}), so that no training can go on from it. "
            f"validate, test, predict and export take it."
        )


def _fault_of(content: Mapping[str, Any]) -> str | None:
    """Say which part of a checkpoint has another form than Lightning gives it."""
    for key, (kind, said) in _FORMS.items():
        if key in content and not isinstance(content[key], kind):
            return f"expected {said} for {key}, got a {type(content[key]).__name__}"
    try:
        Version(content["pytorch-lightning_version"])
    except InvalidVersion:
        return f"its pytorch-lightning_version is {content['pytorch-lightning_version']!r}"
    missing = [name for name in _LOOPS if name not in content.get("loops", _LOOPS)]
    return f"its loops lack {', '.join(missing)}" if missing else None


def classes_beside_tensors(path: str | Path) -> list[str]:
    """List the classes and functions that loading a file would call beside harmless ones, without loading it.

    Any thread may ask: nothing is allowed meanwhile.
    """
    harmless = {f"{kind.__module__}.{kind.__qualname__}" for kind in _HARMLESS}
    return sorted({*serialization.get_unsafe_globals_in_checkpoint(str(path))} - harmless)


@contextmanager
def harmless_allowed() -> Iterator[None]:
    """Let ``weights_only=True`` take classes of the standard library that only hold values."""
    before = serialization.get_safe_globals()
    with serialization.safe_globals([kind for kind in _HARMLESS if kind not in before]):
        yield


def _loaded(path: str | Path, *, map_location: Any, mmap: bool) -> Any:
    def load(*, weights_only: bool) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Detected pickle protocol")  # what comes of it is told below
            return torch.load(path, map_location=map_location, mmap=mmap, weights_only=weights_only)

    try:
        with harmless_allowed():
            return load(weights_only=True)
    except pickle.UnpicklingError as error:
        names = _refused(path, error)
        if not runs.is_trusting():
            raise ConfigError(runs.refusal(path, names) if names else _unreadable(path, error)) from error
    except _NOT_READ as error:
        raise ConfigError(_unreadable(path, error)) from error
    _tell_trust(path, names)
    return _read_or_refused(path, lambda: load(weights_only=False))


def _read_or_refused(path: str | Path, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except (*_NOT_READ, pickle.UnpicklingError) as error:
        raise ConfigError(_unreadable(path, error)) from error


def _refused(path: str | Path, error: Exception) -> list[str]:
    """Name what torch refused: all of it where the file's format lets that be listed, else the first."""
    try:
        if found := classes_beside_tensors(path):
            return found
    except (*_NOT_READ, pickle.UnpicklingError):  # not of this format; what torch said is left
        pass
    return runs.classes_named(str(error))


def _unreadable(path: str | Path, error: Exception) -> str:
    reason = _REASON.search(str(error))  # in the midst of advice on weights_only, which is not for a command line
    says = reason[1] if reason else (str(error) or type(error).__name__).splitlines()[0]
    if reason is None and isinstance(error, pickle.UnpicklingError):
        says = "a pickle that torch.save has not written"
    told = f"{path} cannot be read as a checkpoint: it is damaged, cut short, or something else ({says})."
    if reason is None:
        return told
    return (
        f"{told} If it only has another pickle protocol than torch.save's own, or names something beside tensors, "
        f"--trust on the command line reads it: say that where you know who made it."
    )


@rank_zero_only
def _tell_trust(path: str | Path, names: list[str]) -> None:
    if runs.is_first_trusted(path):
        _log.warning(runs.allowance(path, names))
