"""The disk that checkpoints take, beside what is free."""

from __future__ import annotations

import math
import resource
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import ModelCheckpoint

from lightkit.callbacks import Checkpoint
from lightkit.config import KeyPath, Origin, Resolved, dotted, mistake, shown_path
from lightkit.errors import ConfigError
from lightkit.runs.disk import existing_folder, in_bytes

__all__ = ["Kept", "Place", "kept_by", "misfits", "places_of"]


@dataclass(frozen=True)
class Kept:
    """The checkpoints that one callback keeps.

    Args:
        path: What of the config made the callback.
        folder: Where they lie.
        count: How many there are in the end; None where nothing bounds them.
        size_bytes: Size of each.
    """

    path: KeyPath
    folder: Path
    count: int | None
    size_bytes: int


@dataclass(frozen=True)
class Place:
    """A disk with checkpoints.

    Args:
        folder: A folder on it.
        kept: What is kept there.
        free_bytes: What is free of it.
    """

    folder: Path
    kept: tuple[Kept, ...]
    free_bytes: int

    @property
    def count(self) -> int:
        """Number of checkpoints there at the same time: all that are kept, and one that is being written."""
        return sum(kept.count or 1 for kept in self.kept) + 1

    @property
    def needed_bytes(self) -> int:
        """What they take together."""
        return sum((kept.count or 1) * kept.size_bytes for kept in self.kept) + max(k.size_bytes for k in self.kept)

    @property
    def is_bounded(self) -> bool:
        """Whether their number is known."""
        return all(kept.count is not None for kept in self.kept)


def kept_by(
    trainer: Trainer, paths: Mapping[int, KeyPath], folders: Mapping[int, Path], *, sizes: Mapping[bool, int]
) -> list[Kept]:
    """List what the trainer's checkpoint callbacks keep.

    Args:
        trainer: After its batch.
        paths: What of the config made each callback, by its `id`.
        folders: Where each keeps its files, by its `id`.
        sizes: Bytes of a checkpoint, by whether it holds the weights only.
    """
    return [
        Kept(paths.get(id(callback), ("model",)), folders[id(callback)], _count(callback, trainer),
             sizes[bool(callback.save_weights_only)])
        for callback in trainer.checkpoint_callbacks
        if isinstance(callback, ModelCheckpoint) and (callback.save_top_k != 0 or callback.save_last)
    ]  # fmt: skip


def _count(callback: ModelCheckpoint, trainer: Trainer) -> int | None:
    if isinstance(callback, Checkpoint):
        return 3  # best.ckpt, last.ckpt and the one before it
    last = int(callback.save_last is True)
    most = _num_saves(callback, trainer)
    if callback.save_top_k < 0:
        return None if math.isinf(most) else int(most) + last
    return int(min(callback.save_top_k, most)) + last


def _num_saves(callback: ModelCheckpoint, trainer: Trainer) -> float:
    """Count how often a whole training saves; infinite where nobody knows."""
    batches = trainer.num_training_batches
    per_epoch = max(1, math.ceil(batches / trainer.accumulate_grad_batches)) if math.isfinite(batches) else math.inf
    epochs = math.inf if trainer.max_epochs in (None, -1) else float(trainer.max_epochs or 0)
    steps = epochs * per_epoch if epochs else 0.0
    if trainer.max_steps >= 0:
        steps = min(steps, trainer.max_steps)
        epochs = min(epochs, math.ceil(steps / per_epoch))
    every_steps, every_epochs = callback._every_n_train_steps, callback._every_n_epochs
    if callback._train_time_interval is not None:
        return math.inf
    return steps // every_steps if every_steps >= 1 else epochs // max(1, every_epochs)


def places_of(kept: Iterable[Kept]) -> list[Place]:
    """Bring together what lies on the same disk."""
    by_disk: dict[int, list[Kept]] = {}
    for item in kept:
        by_disk.setdefault(existing_folder(item.folder).stat().st_dev, []).append(item)
    return [
        Place(items[0].folder, tuple(items), shutil.disk_usage(existing_folder(items[0].folder)).free)
        for items in by_disk.values()
    ]


def misfits(places: Iterable[Place], resolved: Resolved) -> list[ConfigError]:
    """Tell of each disk that cannot hold its checkpoints, and of a checkpoint larger than a file may be."""
    found = []
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    for place in places:
        path, where = place.kept[0].path, _said_at(place.kept[0].path, resolved)
        largest = max(kept.size_bytes for kept in place.kept)
        if place.needed_bytes > place.free_bytes:
            says = (
                f"{dotted(path)}: {place.count} checkpoints of {in_bytes(largest)}, one of them while it is written, "
                f"need {in_bytes(place.needed_bytes)}, but {in_bytes(place.free_bytes)} are free in "
                f"{shown_path(place.folder)}; make room, keep fewer, or set run.root to a folder on another disk"
            )
            found.append(mistake(says, where))
        elif limit not in (resource.RLIM_INFINITY, -1) and largest > limit:
            says = (
                f"{dotted(path)}: a checkpoint takes {in_bytes(largest)}, but a file of this process may have "
                f"{in_bytes(limit)} at most; raise the limit with ulimit -f"
            )
            found.append(mistake(says, where))
    return found


def _said_at(path: KeyPath, resolved: Resolved) -> Origin | None:
    origin = resolved.origin_of(path)
    return None if origin is None or origin.kind == "default" else origin
