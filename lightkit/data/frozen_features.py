"""Features of a frozen backbone in place of images: computed once before training, and kept on disk.

A file has a row of features for each sample of a split, and behind them a flag for each row that is computed. It is
named by the digests of the frozen weights, the preprocessing and the images, so that another training with the same
backbone begins with it, and computing goes on where a killed process has stopped.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from filelock import FileLock
from pytorch_lightning import LightningDataModule, Trainer
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lightkit.data.decoded_cache import make_room, planned_reads
from lightkit.data.image_dataset import Batch, ImageSamples
from lightkit.data.loader import Ahead, ahead_that_fits, local_ranks, worker_options
from lightkit.data.progress import show_progress
from lightkit.data.sampler import SampleKey
from lightkit.data.transforms import normalised
from lightkit.hardware.cache_folder import cache_folder
from lightkit.images.image_file import UnreadableImageError
from lightkit.images.preprocessing import Preprocessing
from lightkit.runs.files import in_bytes

log = logging.getLogger("lightkit.data")

_BLOCK = 32
"""Images computed at a time; always as many, so that the same kernels compute them to the last bit."""
_SAVE_EVERY_S = 1.0
_SUFFIX = ".features"
_ON_THE_WAY = (
    "train_dataloader", "val_dataloader",
    "on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer",
)  # fmt: skip


class ComputesFeatures(Protocol):
    """What a model returns from ``frozen_features`` where the features of an image are the same in each epoch."""

    def example(self, size: tuple[int, int], /) -> Tensor | None:
        """Return the features ``(1, ...)`` of one image of this height and width; None where there are none."""

    def digest(self) -> str:
        """Return a digest of all that decides the features of an image, but the image."""

    def is_frozen(self) -> bool:
        """Tell, quickly, whether the backbone is still not trained."""

    def compute(self, images: Tensor, /) -> Tensor:
        """Compute the features of normalised images."""


class FeatureSamples(ImageSamples):
    """The features of a split, read in whole batches as `ImageSamples` reads images.

    Args:
        samples: The images; read in place of features once the backbone is trained.
        backbone: Has computed the features.
        rows: Features ``(num_samples, ...)``.
        unreadable: Reasons why samples have no features, by index.
    """

    def __init__(
        self, samples: ImageSamples, backbone: ComputesFeatures, rows: Tensor, unreadable: dict[int, str]
    ) -> None:
        super().__init__(samples.source, samples.view, seed=samples.seed, defects=samples.defects)
        self.samples, self._backbone, self._rows, self._unreadable = samples, backbone, rows, unreadable
        self._is_off = False

    def __getitems__(self, keys: Sequence[SampleKey | int]) -> Batch:
        """Read a batch of features and labels; of images, in this process, once the backbone is trained."""
        if not self._is_off and not self._backbone.is_frozen():
            self._is_off = True
            if self.view.for_training:
                log.warning(
                    "data: not all of the backbone is frozen any more; its features are computed at each step, and "
                    "this process loads the images. With model.init_args.features: each_step, workers load them."
                )
        return self.samples.__getitems__(keys) if self._is_off else super().__getitems__(keys)

    def read(self, key: SampleKey) -> Tensor:
        """Read the features of one image.

        Raises:
            UnreadableImageError: If the image could not be read.
        """
        if reason := self._unreadable.get(key.index):
            name = self.source.name(key.index)
            raise UnreadableImageError(f"{name}: this image cannot be decoded ({reason}).", reason=reason)
        return self._rows[key.index]


class _Blocks(Dataset[Any]):
    """Blocks of images by their indices, without those that cannot be read."""

    def __init__(self, samples: ImageSamples) -> None:
        self.samples = samples

    def __getitem__(self, indices: Sequence[int]) -> tuple[list[int], Tensor, dict[int, str]]:
        read, unreadable = list[int](), dict[int, str]()
        images = torch.zeros(_BLOCK, *self.samples.view.size, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
        for index in indices:
            try:
                images[len(read)] = self.samples.read(SampleKey(index, epoch=0))
                read.append(index)
            except UnreadableImageError as error:  # noqa: PERF203
                unreadable[index] = error.reason
        return read, images, unreadable


def find_frozen_backbone(
    data: LightningDataModule, size: tuple[int, int], *, num_images: int, batch_size: int
) -> tuple[ComputesFeatures, Tensor] | None:
    """Find what computes the features of a fit's model, and the features of an example; None where there are none.

    Args:
        data: The data module; its trainer has the model.
        size: Height and width of the images.
        num_images: In training.
        batch_size: Of one process.
    """
    trainer = data.trainer
    if trainer is None or trainer.state.fn != TrainerFn.FITTING:
        return None
    module = trainer.lightning_module
    own = [name for name in _ON_THE_WAY if not _is_ours(getattr(data, name))]
    reason = f"{', '.join(own)} of {type(data).__name__}'s own may get images" if own else ""
    if not own and planned_reads(trainer, num_images, batch_size) < num_images:
        reason = "this training does not read each image"
    if reason:
        if trainer.is_global_zero and getattr(module, "may_keep_features", False):
            log.info("data: features of the frozen backbone are computed at each step: %s", reason)
        return None
    backbone: ComputesFeatures | None = getattr(module, "frozen_features", lambda: None)()
    example = None if backbone is None else backbone.example(size)
    return None if backbone is None or example is None else (backbone, example)


def _is_ours(method: Any) -> bool:
    function = getattr(method, "__func__", None)
    return function is not None and function.__module__.partition(".")[0] in ("lightkit", "pytorch_lightning")


def compute_features(
    samples: ImageSamples, backbone: ComputesFeatures, example: Tensor, *, preprocessing: Preprocessing,
    trainer: Trainer, num_workers: int, prefetch_factor: int,
) -> FeatureSamples | None:  # fmt: skip
    """Find the features of a split on disk, and compute what is missing; called by all ranks together.

    Args:
        samples: The split's images, without randomness.
        backbone: Computes features.
        example: Features ``(1, ...)`` of any image.
        preprocessing: Of the images.
        trainer: Knows the device and the ranks, among which those of this machine divide the work.
        num_workers: Processes that load the images.
        prefetch_factor: Blocks that each of them prepares ahead.

    Returns:
        The features; None, with a warning, where the disk has no room for them on one of the ranks.
    """
    strategy, ranks, num, cache = trainer.strategy, local_ranks(trainer), len(samples), cache_folder()
    decided_by = "\0".join((backbone.digest(), str(preprocessing), samples.source.digest()))
    name = f"{hashlib.sha256(decided_by.encode()).hexdigest()[:40]}{_SUFFIX}"
    path = None if cache is None else cache / "features" / name
    num_bytes = num * (example.numel() * example.element_size() + 1)
    has_room = torch.tensor(float(path is not None and _make_file(path, num_bytes)), device=strategy.root_device)
    if strategy.reduce(has_room, reduce_op="sum") < trainer.world_size:
        if trainer.is_global_zero:
            log.warning(
                "data: features of the frozen backbone are computed at each step, as there is no room for %s in %s",
                in_bytes(num_bytes), path.parent if path else "a cache folder",
            )  # fmt: skip
        return None
    assert path is not None
    rows = torch.from_file(str(path), shared=True, size=num * example.numel(), dtype=example.dtype)
    rows = rows.view(num, *example.shape[1:])
    is_done = np.memmap(path, np.bool_, "r+", offset=num_bytes - num)
    strategy.barrier("features")  # before another rank computes
    num_found, unreadable, began_s = int(is_done.sum()), dict[int, str](), time.monotonic()
    for is_own in (True, False):  # then those that another rank could not read
        missing = np.flatnonzero(~is_done).tolist()
        blocks = [missing[at : at + _BLOCK] for at in range(0, len(missing), _BLOCK)]
        blocks = blocks[trainer.local_rank % ranks :: ranks] if is_own else blocks
        ahead = Ahead(min(num_workers, len(blocks)), prefetch_factor)
        ahead = ahead_that_fits(ahead, batch_bytes=_BLOCK * samples.sample_bytes, ranks=ranks)
        loader: DataLoader[Any] = DataLoader(
            _Blocks(samples), batch_size=None, sampler=blocks, collate_fn=ImageSamples.collate,  # type: ignore[arg-type]
            generator=torch.Generator().manual_seed(samples.seed), **worker_options(ahead, keep=False),
        )  # fmt: skip
        shown = show_progress(
            loader, sum(map(len, blocks)), "features computed", size=lambda block: len(block[0]) + len(block[2])
        )
        with path.open("r+b") as file:
            pending, saved_s = list[int](), time.monotonic()
            for number, (indices, images, reasons) in enumerate(shown, 1):
                unreadable |= reasons
                if indices:
                    features = backbone.compute(normalised(images.to(strategy.root_device), preprocessing, trainer))
                    rows[indices] = features[: len(indices)].to(rows)
                    pending += indices
                if number == len(blocks) or time.monotonic() - saved_s >= _SAVE_EVERY_S:
                    os.fsync(file)  # features are on the disk before their flags
                    is_done[pending] = True
                    pending, saved_s = [], time.monotonic()
        strategy.barrier("features")
    if trainer.is_global_zero:
        log.info(
            "data: features of the frozen backbone: %d images, %d found, %d computed (%.1f s), %s in %s",
            num, num_found, int(is_done.sum()) - num_found, time.monotonic() - began_s,
            in_bytes(num_bytes), path.parent,
        )  # fmt: skip
    return FeatureSamples(samples, backbone, rows, unreadable)


def _make_file(path: Path, num_bytes: int) -> bool:
    """Make a file of zeros with all of its room, unless it is there; return whether it is."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            if path.exists() and path.stat().st_size == num_bytes:
                os.utime(path)  # those unused longest are removed first
                return True
            path.unlink(missing_ok=True)
            if make_room(path.parent, num_bytes, suffix=_SUFFIX) < num_bytes:
                return False
            aside = path.with_suffix(".aside")
            with aside.open("wb") as file:
                if sys.platform == "linux":  # a full disk is an error now, and no crash of a mapped page later
                    os.posix_fallocate(file.fileno(), 0, num_bytes)
                else:
                    file.truncate(num_bytes)
            aside.rename(path)
    except OSError as error:
        log.warning("data: %s cannot be used (%s)", path, error.strerror or error)
        return False
    return True
