"""Write checkpoints aside, read them back and rename them, with a digest beside each."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import logging
import os
import uuid
import zipfile
import zlib
from argparse import Namespace
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric.plugins.io.xla import XLACheckpointIO
from lightning_utilities.core.apply_func import apply_to_collection
from pytorch_lightning.strategies import Strategy
from torch import Tensor
from torch.optim import Optimizer

from lightkit import runs
from lightkit.callbacks.safe_loading import CheckpointReader, classes_beside_tensors
from lightkit.errors import CheckpointError
from lightkit.runs.disk import check_room, free_bytes, in_bytes

__all__ = [
    "VerifiedCheckpointIO",
    "VerifiedXLACheckpointIO",
    "first_size_of",
    "plain",
    "size_of",
    "without_numpy_scalars",
    "writes_digests",
]

LAST, LAST_BUT_ONE = "last.ckpt", "last-1.ckpt"
_FEW = 3
_log = logging.getLogger("lightkit")
_HPARAMS = ("hyper_parameters", "datamodule_hyper_parameters")
_FACTS = ("epoch", "global_step")
# Whose `save_checkpoint` leaves the file to the trainer's `CheckpointIO`.
_BY_PLUGIN = ("pytorch_lightning.strategies.strategy", "pytorch_lightning.strategies.xla")


class VerifiedCheckpointIO(CheckpointReader):
    """Write a checkpoint so that a kill, a full disk or a missing permission never costs the one before.

    What does not fit on the disk is not begun. What is written is read back from the disk, and has its digest beside
    it. `last-1.ckpt` is what `last.ckpt` was before.

    Lightning 2.6.6 lets a `PermissionError` pass and goes on without a checkpoint; here it ends the run. What is
    written loads as tensors and plain values: hyper-parameters such as paths are written as a config writes them.

    Args:
        mask: Applied to the hyper-parameters before they are written; the command line puts references in the place
            of values that came from the environment.
        on_saved: Called with the path and the checkpoint's epoch and step once the file is in place.
        on_taken: Called when the training can go on.
    """

    def __init__(
        self,
        *,
        mask: Callable[[Any], Any] | None = None,
        on_saved: Callable[[Path, Mapping[str, Any]], None] | None = None,
        on_taken: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self._mask = mask
        self._on_saved, self._on_taken = on_saved, on_taken
        self._told: set[str] = set()
        self._written: dict[Path, tuple[int, int, int]] = {}
        self._is_tight = False

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Write, read back and rename.

        Raises:
            CheckpointError: If the file cannot be written, or is not what was written.
        """
        for key in _HPARAMS:
            if key in checkpoint:
                values = plain(checkpoint[key])
                checkpoint[key] = values if self._mask is None else self._mask(values)
        checkpoint.pop("hparams_type", None)  # a class of OmegaConf's, into which Lightning would turn them back
        checkpoint |= {key: without_numpy_scalars(value) for key, value in checkpoint.items() if key != "state_dict"}
        if "://" in str(path):  # an object store has no rename; Lightning's own writer knows it
            super().save_checkpoint(checkpoint, path, storage_options)
        else:
            self._save_file(checkpoint, Path(path))
        if self._on_taken is not None:
            self._on_taken()

    def _save_file(self, checkpoint: dict[str, Any], path: Path) -> None:
        with _told(path):
            check_room(path, size_of(checkpoint))
            runs.write_aside(path, partial(_save, checkpoint), check=lambda written: self._check(written, path))
        self._written[path] = _state(path)
        self._tell_classes(path)
        self._tell_room(path)
        if self._on_saved is not None:
            self._on_saved(path, {key: checkpoint[key] for key in _FACTS if key in checkpoint})

    def _check(self, aside: Path, path: Path) -> None:
        """Read back what was written; only then let `last-1.ckpt` be what `last.ckpt` has been."""
        _read_back(aside)
        if path.name == LAST:
            is_known = path.is_file() and self._written.get(path) == _state(path)
            runs.keep(path, path.with_name(LAST_BUT_ONE), is_known=is_known)

    def _tell_room(self, path: Path) -> None:
        """Say once that the disk is nearly full, while there is time."""
        size, free = path.stat().st_size, free_bytes(path)
        if not self._is_tight and free is not None and free < _FEW * size:
            self._is_tight = True
            _log.warning(
                "%s are free on the disk of %s, less than %d checkpoints of %s take.",
                in_bytes(free),
                path.parent,
                _FEW,
                in_bytes(size),
            )

    def _tell_classes(self, path: Path) -> None:
        """Say it while the training runs, not when it is to go on: what somebody's code keeps is left as it is."""
        if new := set(classes_beside_tensors(path)) - self._told:
            self._told |= new
            _log.warning(
                "%s holds %s beside tensors and plain values: to go on from it needs --trust. Hyper-parameters, and "
                "what callbacks keep in a checkpoint, are best texts, numbers, lists and dicts of these.",
                path,
                ", ".join(sorted(new)),
            )

    def remove_checkpoint(self, path: str | Path) -> None:
        """Remove a checkpoint and its digest."""
        super().remove_checkpoint(path)
        runs.sidecar(path).unlink(missing_ok=True)


class VerifiedXLACheckpointIO(VerifiedCheckpointIO, XLACheckpointIO):
    """The same for XLA devices, whose strategies take an `XLACheckpointIO` only.

    The tensors go to the CPU first, so that the file loads where there is no XLA. Lightning's own writer also turns
    tuples into lists and leaves out parameters that are no plain tensors (`xm._maybe_convert_to_cpu` of torch-xla 2.9).
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Move the tensors to the CPU, write, read back and rename.

        Raises:
            CheckpointError: If the file cannot be written, or is not what was written.
        """
        on_cpu = apply_to_collection(checkpoint, torch.Tensor, lambda tensor: tensor.cpu())
        super().save_checkpoint(on_cpu, path, storage_options)


def writes_digests(strategy: Strategy) -> bool:
    """Tell whether checkpoints have a digest beside them: those that a strategy leaves to a `VerifiedCheckpointIO`."""
    by_plugin = type(strategy).save_checkpoint.__module__ in _BY_PLUGIN
    return by_plugin and isinstance(strategy.checkpoint_io, VerifiedCheckpointIO)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Say of what goes wrong which checkpoint it is, and what to do."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # torch.save reports a full disk as a RuntimeError of its zip writer
        raise CheckpointError(
            f"The checkpoint {path} cannot be written: {error}. The one before it, if any, is untouched. "
            f"Free space or change the folder's permissions, then run the same command to resume."
        ) from error


def _save(checkpoint: dict[str, Any], path: Path) -> None:
    with path.open("wb") as file:  # given a path, torch.save would put its name into the archive
        torch.save(checkpoint, file)


def _state(path: Path) -> tuple[int, int, int]:
    """Tell a file that nobody has replaced or changed since."""
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _read_back(path: Path) -> None:
    runs.forget_cached(path)
    try:
        with zipfile.ZipFile(path) as archive:  # torch writes a CRC-32 for each member
            broken = archive.testzip()
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError) as error:  # whichever part is damaged
        raise OSError(f"it does not read back as it was written ({error})") from error
    if broken is not None:
        raise OSError(f"{broken} in it does not read back as it was written")


_AS_TEXT = (os.PathLike, dt.timedelta, decimal.Decimal, uuid.UUID)
_AS_THEY_ARE = (torch.Tensor, torch.dtype, torch.device, str, bytes, bool, int, float, complex, type(None))


def plain(value: Any) -> Any:
    """Give what stands for a value in a config: text for a path, the name of an enumeration's member, and so on.

    Containers and values are those that ``torch.load(weights_only=True)`` takes; what has no plain form is left.
    """
    if isinstance(value, enum.Enum):
        return value.name
    if type(value) in _AS_THEY_ARE:
        return value
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Namespace):
        return plain(vars(value))
    if isinstance(value, Mapping):  # also an OmegaConf DictConfig, which resolves what it interpolates
        return {plain(key): plain(child) for key, child in value.items()}
    return _plain_sequence(value)


def _plain_sequence(value: Any) -> Any:
    if isinstance(value, torch.Size):
        return value
    if isinstance(value, tuple):
        return tuple(plain(child) for child in value)
    if isinstance(value, (set, frozenset)):
        children = [plain(child) for child in value]
        return set(children) if all(isinstance(child, Hashable) for child in children) else children
    if isinstance(value, (list, range)) or type(value).__module__ == "omegaconf.listconfig":
        return [plain(child) for child in value]
    if isinstance(value, (dt.datetime, dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, _AS_TEXT):
        return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
    kinds: tuple[type[Any], ...] = (str, bytes, bool, int, float, complex)
    for kind in kinds:  # of a class of somebody's own
        if isinstance(value, kind):
            return kind(value)
    if callable(value) and hasattr(value, "__qualname__") and hasattr(value, "__module__"):
        return f"{value.__module__}.{value.__qualname__}"
    return value


def without_numpy_scalars(value: Any) -> Any:
    """Put Python's numbers in the place of numpy's within plain containers; the very object where there are none.

    A learning rate that was found, or a metric that a callback keeps, may be one.
    """
    if isinstance(value, np.generic):
        return value.item()
    if type(value) is dict:
        changed = {key: without_numpy_scalars(child) for key, child in value.items()}
        return changed if any(changed[key] is not child for key, child in value.items()) else value
    if type(value) in (list, tuple):
        children = [without_numpy_scalars(child) for child in value]
        same = all(new is old for new, old in zip(children, value, strict=True))
        return value if same else type(value)(children)
    return value


_PER_TENSOR_BYTES = 384  # its name and its place in the pickle, and twice in the archive's lists, aligned to 64
_AT_LEAST_BYTES = 64 << 10  # all that is no tensor: counters, hyper-parameters, what callbacks keep
_MARGIN = 1.01


def size_of(checkpoint: Mapping[str, Any]) -> int:
    """Estimate the file of a checkpoint, a little too large rather than too small.

    torch writes each storage once, and the whole of it where a tensor is a view of a part.
    """
    storages: dict[Any, int] = {}
    num_tensors = 0
    for tensor in _tensors(checkpoint):
        num_tensors += 1
        key, size = _storage(tensor)
        storages[key] = size
    return int(sum(storages.values()) * _MARGIN) + num_tensors * _PER_TENSOR_BYTES + _AT_LEAST_BYTES


def first_size_of(state_dict: Mapping[str, Any], optimizers: list[Optimizer]) -> int:
    """Estimate the first checkpoint of a training whose optimizers have not stepped yet.

    Those that have betas keep two values for each weight, those with a momentum one; for others none are counted.
    """
    kept = 0
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            values = 2 if "betas" in group else int(bool(group.get("momentum")))
            kept += values * sum(weight.numel() * weight.element_size() for weight in group["params"])
    return size_of(state_dict) + kept


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _storage(tensor: Tensor) -> tuple[Any, int]:
    try:
        storage = tensor.untyped_storage()
        return (tensor.device, storage.data_ptr()), storage.nbytes()
    except (NotImplementedError, RuntimeError):  # a kind of tensor without a storage of its own
        return id(tensor), tensor.numel() * tensor.element_size()
