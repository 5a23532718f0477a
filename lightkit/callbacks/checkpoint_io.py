"""Checkpoints written aside, read back and renamed, with a digest beside each."""

from __future__ import annotations

import logging
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins.io.xla import XLACheckpointIO
from lightning_utilities.core.apply_func import apply_to_collection
from pytorch_lightning.strategies import Strategy

from lightkit import runs
from lightkit.callbacks.checkpoint_reading import CheckpointReader, classes_beside_tensors
from lightkit.callbacks.plain_values import plain, without_numpy_scalars
from lightkit.callbacks.sizes import size_of
from lightkit.errors import CheckpointError
from lightkit.runs.disk import check_room, free_bytes, in_bytes

__all__ = ["VerifiedCheckpointIO", "VerifiedXLACheckpointIO", "copier_of", "writes_digests"]

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

    While training goes on, it waits for the content to be written aside only; flushing, reading back, the digest and
    the renaming are the writer's. What fails there is raised by whoever asks the writer, and before each checkpoint
    from then on. Of one path a second checkpoint waits until the first is in place, as do loading and removing.

    Lightning 2.6.6 lets a `PermissionError` pass and goes on without a checkpoint; here it ends the run. What is
    written loads as tensors and plain values: hyper-parameters such as paths are written as a config writes them.

    Args:
        mask: Applied to the hyper-parameters before they are written; the command line puts references in the place
            of values that came from the environment.
        on_saved: Called with the path and the checkpoint's epoch and step once the file is in place, maybe in a thread.
        on_taken: Called when the training can go on.
        writer: Puts the files in place; one that does so at once by default.
    """

    def __init__(
        self,
        *,
        mask: Callable[[Any], Any] | None = None,
        on_saved: Callable[[Path, Mapping[str, Any]], None] | None = None,
        on_taken: Callable[[], None] | None = None,
        writer: runs.Writer | None = None,
    ) -> None:
        super().__init__()
        self._mask = mask
        self._on_saved, self._on_taken = on_saved, on_taken
        self.writer = runs.Writer() if writer is None else writer
        self._waiting: set[Path] = set()
        self._facts: dict[Path, dict[str, Any]] = {}
        self._told: set[str] = set()
        self._written: dict[Path, tuple[int, int, int]] = {}
        self._is_tight = False

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Write, read back and rename.

        Raises:
            CheckpointError: If the file, or one before it, cannot be written or is not what was written.
        """
        self.writer.check(again=True)  # who has caught it must not take the next checkpoint for written
        for key in _HPARAMS:
            if key in checkpoint:
                values = plain(checkpoint[key])
                checkpoint[key] = values if self._mask is None else self._mask(values)
        checkpoint.pop("hparams_type", None)  # a class of OmegaConf's, into which Lightning would turn them back
        checkpoint |= {key: without_numpy_scalars(value) for key, value in checkpoint.items() if key != "state_dict"}
        if "://" in str(path):  # an object store has no rename; Lightning's own writer knows it
            self.writer.drain()
            super().save_checkpoint(checkpoint, path, storage_options)
        else:
            self._save_file(checkpoint, Path(path))
        if self._on_taken is not None:
            self._on_taken()

    def save_copy(self, path: Path, *, of: Path) -> None:
        """Write into another file what this has written into one; all of it is the writer's to do.

        Args:
            path: The other file.
            of: The file, which may still be on its way.

        Raises:
            CheckpointError: If a file before it cannot be written or is not what was written.
        """
        self.writer.check(again=True)
        if path in self._waiting:
            self.writer.drain()
        self._waiting.add(path)
        self.writer.put(partial(self._copy, of, path, self._facts[of]), otherwise=partial(self._waiting.discard, path))
        if self._on_taken is not None:
            self._on_taken()

    def _save_file(self, checkpoint: dict[str, Any], path: Path) -> None:
        if path in self._waiting:
            self.writer.drain()
        with _told(path):
            aside = self._aside(checkpoint, path)
        self._waiting.add(path)
        self._facts[path] = facts = {key: checkpoint[key] for key in _FACTS if key in checkpoint}
        self.writer.put(partial(self._finish, aside, path, facts), otherwise=partial(self._give_up, aside, path))

    def _aside(self, checkpoint: dict[str, Any], path: Path) -> Path:
        """Write the content; where there is no room, again when those before it have replaced theirs."""
        others = bool(self._waiting)  # by the time it fails they may be in place, and there may be room again
        try:
            check_room(path, size_of(checkpoint))
            return runs.written_aside(path, partial(_save, checkpoint))
        except (OSError, RuntimeError, CheckpointError):
            if not others:
                raise
        self.writer.drain()
        check_room(path, size_of(checkpoint))
        return runs.written_aside(path, partial(_save, checkpoint))

    def _copy(self, of: Path, path: Path, facts: Mapping[str, Any]) -> None:
        try:
            with _told(path):
                check_room(path, of.stat().st_size)
                aside = runs.written_aside(path, partial(shutil.copyfile, of))
        except BaseException:
            self._waiting.discard(path)
            raise
        self._finish(aside, path, facts)

    def _finish(self, aside: Path, path: Path, facts: Mapping[str, Any]) -> None:
        try:
            with _told(path):
                runs.put_in_place(aside, path, check=lambda written: self._check(written, path))
        finally:
            self._waiting.discard(path)
        self._written[path] = _state(path)
        self._tell_classes(path)
        self._tell_room(path)
        if self._on_saved is not None:
            self._on_saved(path, facts)

    def _give_up(self, aside: Path, path: Path) -> None:
        aside.unlink(missing_ok=True)
        self._waiting.discard(path)

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

    def load_checkpoint(self, path: str | Path, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Read a checkpoint, as `CheckpointReader` does, once all are in place.

        Raises:
            CheckpointError: If one could not be written.
            ConfigError: If it cannot be read, is no checkpoint, or needs code.
        """
        self.writer.drain()
        return super().load_checkpoint(path, *args, **kwargs)

    def remove_checkpoint(self, path: str | Path) -> None:
        """Remove a checkpoint and its digest, once all are in place."""
        self.writer.drain()
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


def copier_of(strategy: Strategy) -> VerifiedCheckpointIO | None:
    """Give what may copy a strategy's checkpoints; None where more than a file may come of one, as with a subclass."""
    plugin = strategy.checkpoint_io
    is_known = type(plugin) in (VerifiedCheckpointIO, VerifiedXLACheckpointIO)
    return plugin if is_known and isinstance(plugin, VerifiedCheckpointIO) and writes_digests(strategy) else None


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
