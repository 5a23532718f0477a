"""Pictures for the loggers that take them: training images as the network sees them, and a confusion matrix."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from pytorch_lightning import Trainer
from torch import Tensor
from torchmetrics.classification import MulticlassConfusionMatrix
from torchvision.utils import make_grid

__all__ = ["TakesPictures", "confusion_matrix", "grid_of", "send", "takers"]

# What torchvision's pretrained weights expect: torchvision.transforms.v2 `ImageClassification` presets
_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_STD = (0.229, 0.224, 0.225)
_MOST_IMAGES = 16
_MOST_LABELLED_CLASSES = 30  # beyond, names and numbers overlap


@runtime_checkable
class TakesPictures(Protocol):
    """A logger that can show pictures."""

    def add_picture(self, name: str, image: Tensor, step: int) -> None:
        """Show a uint8 image ``(3, height, width)``."""


def takers(trainer: Trainer) -> list[TakesPictures]:
    """List the loggers that take pictures; the same in every process of a run."""
    return [logger for logger in trainer.loggers if isinstance(logger, TakesPictures)]


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


def confusion_matrix(metric: MulticlassConfusionMatrix, class_names: Sequence[str], *, counts: Tensor) -> Tensor:
    """Draw how often each class was taken for which.

    Args:
        metric: Draws it.
        class_names: In the order of the labels.
        counts: Its computed value, ``(num_classes, num_classes)``.

    Returns:
        uint8 ``(3, height, width)``.
    """
    # matplotlib, whose drawing parts only runs with pictures need
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    few = len(class_names) <= _MOST_LABELLED_CLASSES
    inches = min(12.0, 4.0 + 0.5 * len(class_names))
    canvas = FigureCanvasAgg(Figure(figsize=(inches, inches), layout="constrained"))  # no pyplot: nothing to close
    axes = canvas.figure.add_subplot()
    with warnings.catch_warnings():
        # torchmetrics 1.9 hands matplotlib a tensor, whose __array__ (torch 2.15) has no copy argument yet
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
        metric.plot(counts, ax=axes, add_text=few, labels=list(class_names) if few else None)
    if not few:
        axes.set_xticks([])
        axes.set_yticks([])
    canvas.draw()  # type: ignore[no-untyped-call]
    pixels = torch.frombuffer(bytearray(canvas.buffer_rgba()), dtype=torch.uint8)  # type: ignore[no-untyped-call]
    width, height = canvas.get_width_height()
    return pixels.view(height, width, 4)[:, :, :3].permute(2, 0, 1).contiguous()
