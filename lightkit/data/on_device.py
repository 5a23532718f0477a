"""Scaling and normalising uint8 images on the device that takes them: a quarter of the bytes on the way there."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from pytorch_lightning import LightningDataModule, LightningModule, Trainer
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch import Tensor

from lightkit.images.preprocessing import Preprocessing

__all__ = ["after_transfer", "normalised"]

_NUM_AXES = 4
_NUM_WITHOUT_WEIGHTS = 2


def after_transfer(data: LightningDataModule, batch: Any, dataloader_idx: int, preprocessing: Preprocessing) -> Any:
    """Give what a data module's ``on_after_batch_transfer`` gives: the batch normalised, then what the model's does.

    Lightning calls one of the two hooks alone, the data module's, and warns that the model's is left out; it is not.

    A model gets the weights that only tell which samples stand in for others, where its class says ``takes_weights =
    True``; others get images and labels alone, as in any other batch.
    """
    batch = normalised(batch, preprocessing, data.trainer)
    module = None if data.trainer is None else data.trainer.lightning_module
    if module is not None and not getattr(module, "takes_weights", False) and not getattr(data, "has_weights", False):
        batch = _without_weights(batch)
    if module is not None and is_overridden("on_after_batch_transfer", module, parent=LightningModule):
        return module.on_after_batch_transfer(batch, dataloader_idx)
    return batch


def normalised(batch: Any, preprocessing: Preprocessing, trainer: Trainer | None) -> Any:
    """Give a batch with its images as the model takes them; equal to the last bit to what `Preprocessing` makes.

    Args:
        batch: A tuple or list whose first tensor is uint8 images ``(batch, channels, height, width)``, or such a tensor
            alone. Any other is given back as it is.
        preprocessing: Tells mean and standard deviation.
        trainer: Its precision decides the dtype. Lightning converts a batch's floats before the transfer, when these
            are none yet, so it is done here as it does it. Without a trainer: float32.
    """
    if isinstance(batch, Tensor):
        return _floats(batch, preprocessing, trainer) if _are_images(batch) else batch
    if type(batch) in (tuple, list) and batch and _are_images(batch[0]):
        return type(batch)([_floats(batch[0], preprocessing, trainer), *batch[1:]])
    return batch


def _without_weights(batch: Any) -> Any:
    is_weighted = type(batch) in (tuple, list) and len(batch) > _NUM_WITHOUT_WEIGHTS
    return batch[:_NUM_WITHOUT_WEIGHTS] if is_weighted else batch


def _are_images(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.uint8 and value.ndim == _NUM_AXES


def _floats(images: Tensor, preprocessing: Preprocessing, trainer: Trainer | None) -> Tensor:
    mean, std = _constants(preprocessing.mean, preprocessing.std, images.device)
    floats = torch.empty(images.shape, dtype=torch.float32, device=images.device)
    # One image at a time stays in a core's cache, which saves a quarter of the time (32 images of 224 pixels, channels
    # last). A GPU gets the whole batch, as starting each step would cost it more than the step.
    parts = zip(floats, images, strict=True) if images.device.type == "cpu" else [(floats, images)]
    for part, pixels in parts:
        part.copy_(pixels).mul_(1 / 255).sub_(mean).div_(std)  # in this order, not divided by 255: see `Preprocessing`
    if trainer is None:
        return floats
    converted: Tensor = trainer.precision_plugin.convert_input(floats)
    return converted


@lru_cache(maxsize=8)  # a copy to a GPU waits for all that it has to do; once, not each batch
def _constants(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(mode=False):  # the sanity check comes first, and training could not take its tensors
        first, second = (
            torch.tensor(values, dtype=torch.float32, device=device).view(-1, 1, 1) for values in (mean, std)
        )
    return first, second
