"""Features of a frozen backbone in place of images: computed once before training, and kept on disk.

There is one file a split, see `lightkit.data.image_cache`, named by the digests of the frozen weights, the
preprocessing and the images: another training with the same backbone begins with it, and computing goes on where a
killed process has stopped.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
import torch
from pytorch_lightning import LightningDataModule, Trainer
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lightkit.data.image_cache import RowCache, count_planned_reads, open_rows
from lightkit.data.image_dataset import Batch, ImageSamples, normalised
from lightkit.data.loader import Ahead, ahead_that_fits, local_ranks, worker_options
from lightkit.data.sampler import SampleKey
from lightkit.images.image_file import UnreadableImageError
from lightkit.images.preprocessing import Preprocessing
from lightkit.images.progress import show_progress
from lightkit.runs.files import in_bytes

log = logging.getLogger("lightkit.data")

_BLOCK = 32
"""Images computed at a time; always as many, so that the same kernels compute them to the last bit."""
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


FrozenBackbone = tuple[ComputesFeatures, Tensor]
"""What computes features, and those of an example, ``(1, ...)``."""


class FeatureSamples(ImageSamples):
    """The features of a split, read in whole batches as `ImageSamples` reads images.

    Args:
        samples: The images; read in place of features once the backbone is trained.
        backbone: Has computed the features.
        rows: Bytes of the features of each image; an image that could not be read has none.
    """

    def __init__(self, samples: ImageSamples, backbone: FrozenBackbone, rows: RowCache) -> None:
        super().__init__(samples.source, samples.view, seed=samples.seed, defects=samples.defects)
        self.samples, self._rows = samples, rows
        self._backbone, self._example = backbone
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
        row = self._rows[key.index]
        if row is None:
            self.samples.read(key)  # raises the reason
            raise UnreadableImageError(f"{self.source.name(key.index)}: this image could not be read before training.")
        return torch.from_numpy(row).view(self._example.dtype).view(self._example.shape[1:])


class _Blocks(Dataset[Any]):
    """Blocks of images by their indices, and which of them could be read; these come first."""

    def __init__(self, samples: ImageSamples) -> None:
        self.samples = samples

    def __getitem__(self, indices: Sequence[int]) -> tuple[Sequence[int], list[int], Tensor]:
        read = list[int]()
        images = torch.zeros(_BLOCK, *self.samples.view.size, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
        for index in indices:
            with suppress(UnreadableImageError):
                images[len(read)] = self.samples.read(SampleKey(index, epoch=0))
                read.append(index)
        return indices, read, images


def find_frozen_backbone(
    data: LightningDataModule, size: tuple[int, int], *, num_images: int, batch_size: int
) -> FrozenBackbone | None:
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
    if not own and count_planned_reads(trainer, num_images, batch_size) < num_images:
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
    samples: ImageSamples, frozen: FrozenBackbone, *, preprocessing: Preprocessing, trainer: Trainer,
    num_workers: int, prefetch_factor: int,
) -> FeatureSamples | None:  # fmt: skip
    """Find the features of a split on disk, and compute what is missing; called by all ranks together.

    Args:
        samples: The split's images, without randomness.
        frozen: Computes features.
        preprocessing: Of the images.
        trainer: Knows the device and the ranks, among which those of this machine divide the work.
        num_workers: Processes that load the images.
        prefetch_factor: Blocks that each of them prepares ahead.

    Returns:
        The features; None, with a warning, where the disk has no room for them on one of the ranks.
    """
    (backbone, example), strategy, ranks, num = frozen, trainer.strategy, local_ranks(trainer), len(samples)
    decided_by = "\0".join((backbone.digest(), str(preprocessing), samples.source.digest()))
    key = hashlib.sha256(decided_by.encode()).hexdigest()
    rows: RowCache | None = None
    try:
        rows = open_rows("features", key, np.full(num, example.numel() * example.element_size()))
    except OSError as error:
        log.warning(
            "data: features of the frozen backbone are computed at each step, as they cannot be kept on disk: %s",
            error.strerror or error,
        )  # fmt: skip
    has_room = torch.tensor(float(rows is not None), device=strategy.root_device)
    if strategy.reduce(has_room, reduce_op="sum") < trainer.world_size or rows is None:
        return None
    began_s, missing = time.monotonic(), rows.find_missing()
    strategy.barrier("features")  # before another rank computes
    # by numbers of images: what each rank finds missing differs while another training computes the same
    own = [index for index in missing if index // _BLOCK % ranks == trainer.local_rank % ranks]
    blocks = [own[at : at + _BLOCK] for at in range(0, len(own), _BLOCK)]
    ahead = Ahead(min(num_workers, len(blocks)), prefetch_factor)
    ahead = ahead_that_fits(ahead, batch_bytes=_BLOCK * samples.sample_bytes, ranks=ranks)
    loader: DataLoader[Any] = DataLoader(
        _Blocks(samples), batch_size=None, sampler=blocks, collate_fn=ImageSamples.collate,  # type: ignore[arg-type]
        generator=torch.Generator().manual_seed(samples.seed), **worker_options(ahead, keep=False),
    )  # fmt: skip
    for indices, read, images in show_progress(loader, len(own), "features computed", size=lambda block: len(block[0])):
        found: dict[int, Any] = {}
        if read:
            computed = backbone.compute(normalised(images.to(strategy.root_device), preprocessing, trainer))
            computed = computed[: len(read)].to("cpu", example.dtype).reshape(len(read), -1)
            found = dict(zip(read, computed.view(torch.uint8).numpy(), strict=True))
        for index in indices:
            rows[index] = found.get(index)
    strategy.barrier("features")
    if trainer.is_global_zero:
        log.info(
            "data: features of the frozen backbone: %d images, %d found, %d computed (%.1f s), %s in %s",
            num, num - len(missing), len(missing), time.monotonic() - began_s, in_bytes(int(rows.sizes.sum())),
            rows.path.parent,
        )  # fmt: skip
    return FeatureSamples(samples, frozen, rows)
