"""Write checkpoints aside, read them back and rename them, with a digest beside each."""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import decimal
import enum
import logging
import os
import pathlib
import pickle
import re
import struct
import uuid
import warnings
import zipfile
import zlib
from argparse import Namespace
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jsonargparse
import numpy as np
import torch
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning_fabric.plugins.io.xla import XLACheckpointIO
from lightning_utilities.core.apply_func import apply_to_collection
from lightning_utilities.core.rank_zero import rank_zero_only
from packaging.version import InvalidVersion, Version
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.strategies import Strategy
from torch import Tensor, serialization
from torch.optim import Optimizer

from lightkit import runs
from lightkit.callbacks.checkpoint import Checkpoint
from lightkit.errors import CheckpointError, ConfigError
from lightkit.hardware.processor import available_memory_bytes, memory_bytes
from lightkit.runs.files import check_room, free_bytes, in_bytes

LAST, LAST_BUT_ONE = "last.ckpt", "last-1.ckpt"
_FEW = 3
_log = logging.getLogger("lightkit")
_HPARAMS = ("hyper_parameters", "datamodule_hyper_parameters")
_FACTS = ("epoch", "global_step")
# Whose `save_checkpoint` leaves the file to the trainer's `CheckpointIO`.
_BY_PLUGIN = ("pytorch_lightning.strategies.strategy", "pytorch_lightning.strategies.xla")


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


def missing_checkpoint(trainer: Trainer) -> str | None:
    """Say which checkpoint should be there and is not, or is not what was written; None where all are.

    Every file that a checkpoint callback counts as its own is looked at, wherever it is. Of those that another
    `CheckpointIO` or the strategy has written, which need be no files, it is only asked that they are there.
    """
    is_kept = runs.verify if writes_digests(trainer.strategy) else Path.exists
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, Checkpoint):
            if trainer.global_step:
                best = [callback.last_path.with_name("best.ckpt")] if callback.keeps_best else []
                for path in (callback.last_path, *best):
                    if not is_kept(path):
                        return f"{path} {_fault(callback, path)}"
        elif isinstance(callback, ModelCheckpoint):
            if (broken := next(_broken(callback), None)) is not None:
                return broken
            if _lacks_last(callback, trainer):
                return (
                    f"{type(callback).__name__} with save_last has written no checkpoint: its monitor "
                    f"({callback.monitor}) was never logged, or no validation came before which it saves"
                )
    return None


def _fault(callback: Checkpoint, path: Path) -> str:
    """Say what is wrong with a checkpoint of ours."""
    if callback.monitor is None or path.exists() or callback.best_k_models:
        return "is missing or is not what was written"
    return f"was not written: {callback.monitor}, which callbacks.checkpoint monitors, was NaN in each epoch"


def _broken(callback: ModelCheckpoint) -> Iterator[str]:
    counted = [callback.best_model_path, callback.last_model_path, *callback.best_k_models]
    for name in dict.fromkeys(path for path in counted if path and "://" not in path):
        path = Path(name)
        if not path.exists():
            yield f"{path} is missing"
        elif path.is_file() and runs.sidecar(path).exists() and not runs.verify(path):
            yield f"{path} is not what was written"


def _lacks_last(callback: ModelCheckpoint, trainer: Trainer) -> bool:
    if callback.save_last is not True or callback.last_model_path or callback._train_time_interval is not None:
        return False
    every_steps, every_epochs = callback._every_n_train_steps, callback._every_n_epochs
    if every_steps >= 1:
        return trainer.global_step >= every_steps
    return 1 <= every_epochs <= trainer.current_epoch


_LITTLE_MEMORY = 0.05
_log = logging.getLogger("lightkit")


class DiskSpaceMonitor(Callback):
    """Refuse a training whose first checkpoint fits on no disk, and say once when there is little memory left.

    Args:
        run: The run whose folder has the checkpoints.
    """

    def __init__(self, run: runs.Run) -> None:
        self._run = run
        self._has_told = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at the disk before anything is trained.

        Raises:
            CheckpointError: If it cannot take a checkpoint.
        """
        keepers = [each for each in trainer.checkpoint_callbacks if isinstance(each, ModelCheckpoint)]
        if not keepers or getattr(trainer, "fast_dev_run", False):
            return
        size, fault = first_size_of(pl_module.state_dict(), trainer.optimizers), None
        if trainer.is_global_zero:
            try:
                check_room(self._run.checkpoints / "last.ckpt", size)
            except CheckpointError as error:
                fault = str(error)
        if (fault := trainer.strategy.broadcast(fault)) is not None:
            raise CheckpointError(fault)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at the memory."""
        if self._has_told or not trainer.is_global_zero:
            return
        free, all_of_it = available_memory_bytes(), memory_bytes()
        if free < _LITTLE_MEMORY * all_of_it:
            self._has_told = True
            _log.warning(
                "%s of memory are left of %s: the system may soon end a process. Fewer data.init_args.num_workers or a "
                "smaller batch take less.",
                in_bytes(free),
                in_bytes(all_of_it),
            )
