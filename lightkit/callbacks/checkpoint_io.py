"""Write checkpoints aside, read them back and rename them, with a digest beside each."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import io
import logging
import os
import zipfile
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning_fabric.plugins.io.xla import XLACheckpointIO
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor

from lightkit import runs
from lightkit.callbacks.checkpoint import Checkpoint
from lightkit.errors import CheckpointError, ConfigError, find_worker_death
from lightkit.launch.watchdog import Heartbeat, heartbeat
from lightkit.torch_files import classes_beside_tensors, harmless_allowed, load_file

_log = logging.getLogger("lightkit")
_HPARAMS = ("hyper_parameters", "datamodule_hyper_parameters")


class CheckpointReader(TorchCheckpointIO):
    """Reads checkpoints as tensors and plain values.

    Whatever a config or a caller says of ``weights_only``.
    """

    def load_checkpoint(
        self,
        path: str | Path,
        map_location: Any = lambda storage, _: storage,
        weights_only: bool | None = None,
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
                return super().load_checkpoint(
                    path, map_location, weights_only=not runs.is_trusting()
                )
        return read_checkpoint(path, map_location=map_location)


class VerifiedCheckpointIO(CheckpointReader):
    """Write a checkpoint so that no kill, full disk or missing permission costs the one before.

    What is written is read back from the disk, has its digest in a second file, and takes the place
    of the one before only then. `last-1.ckpt` is what `last.ckpt` was before.

    Lightning 2.6.6 lets a `PermissionError` pass and goes on without a checkpoint; here it ends the
    run. What is written loads as tensors and plain values: hyper-parameters such as paths are
    written as a config writes them.

    Args:
        mask: Applied to the hyper-parameters before they are written; the command line puts
            references in the place of values that came from the environment.
        on_saved: Called with the path and the checkpoint's epoch and step once the file is in
            place.
        beats: Whether it runs in the thread that trains, whose progress the watchdog watches.
    """

    def __init__(
        self,
        *,
        mask: Callable[[Any], Any] | None = None,
        on_saved: Callable[[Path, int, int], None] | None = None,
        beats: bool = True,
    ) -> None:
        super().__init__()
        self._mask = mask
        self._on_saved = on_saved
        self._heartbeat = heartbeat() if beats else Heartbeat()
        self._reported: set[str] = set()

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        """Write, read back and rename.

        Raises:
            CheckpointError: If the file cannot be written, or is not what was written.
        """
        make_loadable(checkpoint, self._mask)
        if "://" in str(path):  # an object store has no rename; Lightning's own writer knows it
            super().save_checkpoint(checkpoint, path, storage_options)
        else:
            self._save_file(checkpoint, Path(path))
        self._heartbeat.leave()  # the phase of a checkpoint, which `StallWatch` has entered

    def _save_file(self, checkpoint: dict[str, Any], path: Path) -> None:
        def write(aside: Path) -> str:
            # the state was gathered, which of a sharded model takes its time
            self._heartbeat.beat()
            # given a path, torch would put its name into the file
            with _DigestWriter(io.FileIO(aside, "w")) as file:
                torch.save(checkpoint, file)
            return file.hasher.hexdigest()

        try:
            previous = path.with_name("last-1.ckpt") if path.name == "last.ckpt" else None
            runs.write_aside(path, write, previous=previous, on_progress=self._heartbeat.beat)
        except (OSError, RuntimeError) as error:
            death = find_worker_death(error)
            if death is not None:
                raise death from None
            # torch.save hides a full disk behind a RuntimeError of its zip writer.
            reason = error.__context__ if isinstance(error.__context__, OSError) else error
            raise CheckpointError(
                f"The checkpoint {path} cannot be written: {reason}. The one before it, if any, is"
                " untouched. Free space or change the folder's permissions, then run the same"
                " command to resume."
            ) from error
        if new := set(classes_beside_tensors(path)) - self._reported:
            self._reported |= new
            _log.warning(
                "%s holds %s besides tensors and plain values: to go on from it needs --trust."
                " Hyper-parameters, and what callbacks keep in a checkpoint, are best texts,"
                " numbers, lists and dicts of these.",
                path,
                ", ".join(sorted(new)),
            )
        if self._on_saved is not None:
            self._on_saved(path, checkpoint["epoch"], checkpoint["global_step"])

    def link_checkpoint(self, path: Path, name: Path, *, epoch: int, step: int) -> None:
        """Link a checkpoint of this class under another name in its folder.

        Copy it where there are no hard links.

        Args:
            path: The checkpoint.
            name: The other name, which may be taken: it is replaced.
            epoch: Epoch of the checkpoint.
            step: Number of optimizer steps that it holds.

        Raises:
            CheckpointError: If that cannot be written.
        """
        try:
            runs.write_link(path, name)
        except OSError as error:
            raise CheckpointError(
                f"The checkpoint {name} cannot be written: {error}. The one before it, if any, is"
                " untouched. Free space or change the folder's permissions, then run the same"
                " command to resume."
            ) from error
        if self._on_saved is not None:
            self._on_saved(name, epoch, step)

    def remove_checkpoint(self, path: str | Path) -> None:
        """Remove a checkpoint and its digest."""
        super().remove_checkpoint(path)
        runs.sidecar(path).unlink(missing_ok=True)


class _DigestWriter(io.BufferedWriter):
    """A file that computes the sha256 of all that is written to it."""

    def __init__(self, raw: io.RawIOBase) -> None:
        super().__init__(raw)
        self.hasher = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.hasher.update(data)
        return super().write(data)


class VerifiedXLACheckpointIO(VerifiedCheckpointIO, XLACheckpointIO):
    """The same for XLA devices, whose strategies take an `XLACheckpointIO` only.

    Lightning's own writer turns tuples into lists and leaves out parameters that are no plain
    tensors (`xm._maybe_convert_to_cpu` of torch-xla 2.9).
    """


def make_loadable(checkpoint: dict[str, Any], mask: Callable[[Any], Any] | None) -> None:
    """Replace in a checkpoint what does not load as tensors and plain values.

    Mask its hyper-parameters.

    Args:
        checkpoint: As Lightning has made it; changed in place.
        mask: Applied to the hyper-parameters.
    """
    mask_hyperparameters(checkpoint, mask)
    checkpoint |= {key: ordinary(value) for key, value in checkpoint.items() if key != "state_dict"}
    state = checkpoint.get("state_dict", {})
    # in place: it has attributes of its own
    state.update({name: ordinary(value) for name, value in state.items()})


def mask_hyperparameters(checkpoint: dict[str, Any], mask: Callable[[Any], Any] | None) -> None:
    """Replace the hyper-parameters in a checkpoint by plain values, and mask them.

    Args:
        checkpoint: As Lightning has made it; changed in place.
        mask: Applied to the hyper-parameters.
    """
    for key in _HPARAMS:
        if key in checkpoint:
            values = plain(checkpoint[key])
            checkpoint[key] = values if mask is None else mask(values)
    # a class of OmegaConf's, into which Lightning would turn them back
    checkpoint.pop("hparams_type", None)


def plain(value: Any) -> Any:
    """Return a hyper-parameter as a config writes it.

    Text for a path, the name of an enumeration's member, and so on.

    Containers and values are those that ``torch.load(weights_only=True)`` takes; what has no plain
    form is left.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    for kinds, convert in _PLAIN_FORMS:
        if isinstance(value, kinds):
            return convert(value)
    return f"{value.__module__}.{value.__qualname__}" if hasattr(value, "__qualname__") else value


_PLAIN_FORMS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (enum.Enum, lambda value: value.name),
    ((np.generic, np.ndarray), lambda value: value.tolist()),
    ((torch.Size, torch.dtype), lambda value: value),
    *((kind, kind) for kind in (bool, str, bytes, int, float)),  # of a subclass, too
    (Namespace, lambda value: plain(vars(value))),
    # OmegaConf interpolates
    (Mapping, lambda value: {plain(key): plain(child) for key, child in value.items()}),
    (tuple, lambda value: tuple(map(plain, value))),
    ((Sequence, set, frozenset), lambda value: list(map(plain, value))),
    (os.PathLike, os.fspath),
)


def ordinary(value: Any) -> Any:
    """Replace numpy's numbers within plain containers by Python's.

    Replace tensors by contiguous ones, XLA's on the CPU.

    A learning rate that was found, or a metric that a callback keeps, may be a number of numpy's.
    An XLA tensor would load only where there is XLA.
    """
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Tensor):
        value = value.cpu() if value.device.type == "xla" else value
        return value.contiguous() if value.layout == torch.strided else value
    if type(value) is dict:
        return {key: ordinary(child) for key, child in value.items()}
    return type(value)(map(ordinary, value)) if type(value) in (list, tuple) else value


_TO_GO_ON = ("optimizer_states", "lr_schedulers", "loops")


def read_checkpoint(
    path: str | Path, *, map_location: Any = "cpu", mmap: bool = False, goes_on: bool = False
) -> dict[str, Any]:
    """Read a checkpoint of Lightning.

    Args:
        path: The file.
        map_location: Where its tensors go, as in ``torch.load``.
        mmap: Leave the tensors on the disk until they are used.
        goes_on: Whether a training is to go on from it, which needs more than the model.

    Raises:
        ConfigError: If it cannot be read, is no checkpoint or lacks what is needed, or needs code
            and nothing allows that.
    """
    if Path(path).is_dir():
        raise ConfigError(runs.refuse_folder(path))
    loaded = load_file(path, map_location=map_location, mmap=mmap and zipfile.is_zipfile(path))
    content = loaded if isinstance(loaded, dict) else {type(loaded).__name__: loaded}
    _require_checkpoint(content, path)
    if goes_on and (missing := [key for key in _TO_GO_ON if key not in content]):
        raise ConfigError(
            f"{path} has the model only (it lacks {', '.join(missing)}), so that no training can go"
            " on from it. validate, test, predict and export take it."
        )
    return content


def _require_checkpoint(content: Mapping[Any, Any], path: str | Path) -> None:
    """Check that the content of a file is that of a checkpoint of Lightning.

    Raises:
        ConfigError: If it is a state dict, or lacks what each checkpoint has.
    """
    if content and all(isinstance(value, Tensor) for value in content.values()):
        raise ConfigError(
            f"{path} is a state dict, tensors alone, not a checkpoint of Lightning. Where the model"
            f" is an ImageClassifier, --model.weights={path} starts from it."
        )
    needed = {"state_dict": Mapping, "pytorch-lightning_version": str}
    if missing := [key for key, kind in needed.items() if not isinstance(content.get(key), kind)]:
        has = ", ".join(sorted(map(str, content))[:10]) or "nothing"
        raise ConfigError(
            f"{path} is not a checkpoint of Lightning: it lacks"
            f" {' and '.join(missing)}; it has {has}."
        )


def digest_weights(path: str | Path) -> str:
    """Compute the SHA-256 of a checkpoint's weights alone.

    Of names, types, shapes and values, in the order of the names.

    Two trainings that come to the same weights have the same, while their files differ in
    callbacks, paths and times.

    Args:
        path: The file.

    Raises:
        ConfigError: If it cannot be read, or is no checkpoint.
    """
    hashed = hashlib.sha256()
    for name, value in sorted(read_checkpoint(path, mmap=True)["state_dict"].items()):
        hashed.update(f"{name}\0".encode())
        if isinstance(value, Tensor):
            hashed.update(f"{value.dtype} {tuple(value.shape)}\0".encode())
            memory: Any = (
                value.detach().contiguous().flatten().view(torch.uint8).numpy()
                if value.numel()
                else b""
            )
            hashed.update(memory)
        else:  # of `get_extra_state`
            hashed.update(repr(value).encode())
    return hashed.hexdigest()


def missing_checkpoint(trainer: Trainer) -> str | None:
    """Describe a checkpoint that a callback counts as its own and that is not there.

    None where all are.
    """
    for callback in trainer.checkpoint_callbacks:
        if not isinstance(callback, ModelCheckpoint):
            continue
        for name in (callback.best_model_path, callback.last_model_path, *callback.best_k_models):
            if name and "://" not in name and not Path(name).exists():
                return f"{name} is missing"
        lacks_best = (
            isinstance(callback, Checkpoint)
            and callback.keeps_best
            and not callback.best_model_path
        )
        if lacks_best and trainer.global_step:
            best = Path(str(callback.dirpath), "best.ckpt")
            monitor = callback.monitor
            return (
                f"{best} was not written: {monitor}, which"
                " callbacks.checkpoint monitors, was never finite"
            )
    return None
