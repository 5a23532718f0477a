"""Pictures for the loggers that take them: training images as the network sees them, and figures of the reports."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_lightning import Trainer
from torch import Tensor
from torchvision.utils import make_grid

# What torchvision's pretrained weights expect: torchvision.transforms.v2 `ImageClassification` presets
_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_STD = (0.229, 0.224, 0.225)
_MOST_IMAGES = 16


def takers(trainer: Trainer) -> list[Any]:
    """List the loggers that have ``add_picture``; the same in every process of a run."""
    return [logger for logger in trainer.loggers if hasattr(logger, "add_picture")]


def send(trainer: Trainer, name: str, image: Tensor) -> None:
    """Hand a picture to every logger that takes one; to be called by the first process alone."""
    for logger in takers(trainer):
        logger.add_picture(name, image, trainer.global_step)


def grid_of(images: Tensor) -> Tensor:
    """Lay out the first images of a batch in a grid.

    Args:
        images: ``(batch, channels, height, width)``, uint8, or normalised with ImageNet's mean and standard deviation.

    Returns:
        uint8 ``(3, height, width)``.
    """
    shown = images[:_MOST_IMAGES].detach().float().cpu()
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (_IMAGENET_MEAN, _IMAGENET_STD))
    columns = max(1, round(len(shown) ** 0.5))
    shown = shown / 255 if images.dtype == torch.uint8 else shown * std + mean
    grid = make_grid(shown, nrow=columns, padding=2, pad_value=1.0)
    pixels: Tensor = (grid.clamp(0, 1) * 255).round().to(torch.uint8)
    return pixels
