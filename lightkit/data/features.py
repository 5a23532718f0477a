"""Whether features of a frozen backbone are given in place of images, and where they are kept."""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Mapping
from typing import Any

from pytorch_lightning import LightningDataModule, LightningModule, Trainer
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor

from lightkit.data.feature_rows import FeatureRows
from lightkit.data.feature_samples import ComputesFeatures, FeatureSamples
from lightkit.data.images_ahead import BatchesAhead, ImagesAhead
from lightkit.data.on_device import normalised
from lightkit.data.samples import ImageSamples
from lightkit.data.workers import Ahead, local_ranks
from lightkit.hardware.processor import available_memory_bytes
from lightkit.images.preprocessing import Preprocessing
from lightkit.runs.disk import in_bytes

__all__ = ["Features", "may_be_kept"]

log = logging.getLogger("lightkit.data")

_SHARE_OF_MEMORY = 0.25
_ON_THE_WAY = (
    "train_dataloader", "val_dataloader",
    "on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer",
)  # fmt: skip
_OURS = ("lightkit", "pytorch_lightning")


_Found = tuple[ComputesFeatures, Tensor]
"""What computes features, and those of an example."""


def may_be_kept(data: LightningDataModule) -> bool:
    """Tell whether features may be kept in place of the images of a data module; known before its model is built."""
    trainer = data.trainer
    if trainer is None or trainer.state.fn != TrainerFn.FITTING or _own_methods(data):
        return False
    return bool(getattr(trainer.lightning_module, "may_keep_features", False))


class Features:
    """What a data module knows of its model's features in a fit.

    The model is whatever the trainer has; it gives a `ComputesFeatures` where it has a method ``frozen_features`` that
    does not give None.
    """

    def __init__(self) -> None:
        self._kept: dict[str, FeatureSamples] = {}
        self.forget()

    def forget(self) -> None:
        """Give the memory of all features back, and look anew in the next fit."""
        for kept in self._kept.values():
            kept.forget()
        self._kept = {}
        self._asked: tuple[weakref.ref[Trainer], weakref.ref[LightningModule]] | None = None
        self._found: _Found | None = None
        self._rows: dict[str, FeatureRows] = {}

    def instead_of(
        self,
        samples: ImageSamples,
        loading: Mapping[str, Any],
        *,
        split: str,
        preprocessing: Preprocessing,
        data: LightningDataModule,
        num_images: int,
    ) -> tuple[ImageSamples | FeatureSamples, dict[str, Any]]:
        """Give the features of a split, and how they are loaded; the samples themselves where there are none.

        Args:
            samples: The split's images, without randomness.
            loading: What their loader is told; the images are loaded by as many processes.
            split: Name of the split.
            preprocessing: Of all images.
            data: Whose images these are; its trainer has the model.
            num_images: Of all splits of which features are kept.
        """
        if not self.are_there(data, preprocessing.crop, num_images=num_images):
            return samples, dict(loading)
        assert self._found is not None
        (computes, example), trainer = self._found, data.trainer
        assert trainer is not None
        if split not in self._rows:
            self._rows[split] = FeatureRows(len(samples), example)
        ahead, ranks = Ahead(loading["num_workers"], loading["prefetch_factor"]), local_ranks(trainer)
        kept = FeatureSamples(
            samples, computes, self._rows[split],
            images=ImagesAhead(samples, ahead, ranks), batches=BatchesAhead(samples, ahead, ranks),
            on_device=lambda images: normalised(images.to(trainer.lightning_module.device), preprocessing, trainer),
            batch_size=loading["batch_size"], num_batches=lambda: _num_batches(trainer, split),
        )  # fmt: skip
        self._kept[split] = kept
        return kept, {**loading, "num_workers": 0}

    def are_there(self, data: LightningDataModule, size: tuple[int, int], *, num_images: int) -> bool:
        """Tell whether a fit's model gives features of images of this size, and there is room for so many."""
        trainer = data.trainer
        if trainer is None or trainer.state.fn != TrainerFn.FITTING:
            return False
        module = trainer.lightning_module
        if self._asked is None or self._asked[0]() is not trainer or self._asked[1]() is not module:
            self.forget()
            self._asked = (weakref.ref(trainer), weakref.ref(module))
            self._found = _looked_for(data, trainer, size, num_images=num_images)
        return self._found is not None


def _looked_for(
    data: LightningDataModule, trainer: Trainer, size: tuple[int, int], *, num_images: int
) -> _Found | None:
    """Ask the trainer's model for what computes features, and those of an example."""
    module = trainer.lightning_module
    if own := _own_methods(data):
        if trainer.is_global_zero and getattr(module, "may_keep_features", False):
            log.info(
                "data: what the frozen backbone makes of an image is computed at each step: %s of %s's own may get "
                "images", ", ".join(own), type(data).__name__,
            )  # fmt: skip
        return None
    computes: ComputesFeatures | None = getattr(module, "frozen_features", lambda: None)()
    example = None if computes is None else computes.example(size)
    if computes is None or example is None:
        return None
    needed = example.numel() * example.element_size() * num_images
    room = int(available_memory_bytes() * _SHARE_OF_MEMORY / local_ranks(trainer))
    if needed > room:
        log.warning(
            "data: what the frozen backbone makes of the %d images would take %s, and there are %s for it; it is "
            "computed at each step", num_images, in_bytes(needed), in_bytes(room),
        )  # fmt: skip
        return None
    if trainer.is_global_zero:
        each = " x ".join(f"{number:,}" for number in example.shape[1:])
        log.info(
            "data: what the frozen backbone makes of the %d images is computed once and kept (%s numbers each, %s)",
            num_images, each, in_bytes(needed),
        )  # fmt: skip
    return computes, example


def _num_batches(trainer: Trainer, split: str) -> float:
    """Give the number of batches after which a fit's loop asks an epoch for no more."""
    loop = trainer.fit_loop
    if split != "train":
        return max(loop.epoch_loop.val_loop.max_batches, default=math.inf)
    if trainer.max_steps == -1:
        return loop.max_batches
    num_left = max(1, trainer.max_steps - trainer.global_step) * trainer.accumulate_grad_batches
    return min(loop.max_batches, loop.epoch_loop.batch_progress.current.ready + num_left)


def _own_methods(data: LightningDataModule) -> list[str]:
    """Name the methods on a batch's way to the model that are neither lightkit's nor Lightning's."""
    return [name for name in _ON_THE_WAY if not _is_ours(getattr(data, name))]


def _is_ours(method: Any) -> bool:
    function = getattr(method, "__func__", None)
    return function is not None and function.__module__.partition(".")[0] in _OURS
