"""What a sample's image becomes before it is put into a batch: a random part of it in training, else its centre.

All is uint8 here. Batches are scaled and normalised on the device, by `lightkit.data.on_device`.
"""

from __future__ import annotations

import math
import random
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import v2

from lightkit.data.pixels import Box, Pixels
from lightkit.data.sampling import SampleKey, sample_randomness, stable_seed
from lightkit.images.preprocessing import Preprocessing

__all__ = ["EvalView", "TrainView", "View", "training_view"]

_RATIOS = (3 / 4, 4 / 3)  # width to height: torchvision's RandomResizedCrop, after Szegedy et al. 2014
_NUM_TRIES = 10


class View(Protocol):
    """From an image to a sample's pixels."""

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of what it gives."""

    @property
    def for_training(self) -> bool:
        """Whether a model learns from it, for which BatchNorm may need two samples in a batch."""

    def empty(self, num: int, /) -> Tensor:
        """Give a tensor for ``num`` of them, not filled yet."""

    def __call__(self, pixels: Pixels, seed: int, key: SampleKey, /) -> Tensor:
        """Give uint8 ``(3, height, width)``.

        Raises:
            UnreadableImageError: If the image cannot be read or decoded.
        """


class _ImageView:
    size: tuple[int, int]

    def empty(self, num: int) -> Tensor:
        """Give uint8 ``(num, 3, height, width)``, with the channels last in memory."""
        return torch.empty(num, *self.size, 3, dtype=torch.uint8).permute(0, 3, 1, 2)


class TrainView(_ImageView):
    """Random resized crop and flip, then what is asked for; the randomness is from (seed, epoch, index) alone.

    Args:
        image_size: Side of the square result, in pixels.
        crop_scale: Least and greatest share of the image's area that a crop keeps.
        color_jitter: Strength of the change of brightness, contrast and saturation; the hue changes by a quarter of it,
            at most by 0.5. 0 leaves it out.
        rand_augment: Apply RandAugment (Cubuk et al. 2019) with torchvision's defaults.
    """

    for_training = True

    def __init__(
        self,
        image_size: int,
        *,
        crop_scale: tuple[float, float] = (0.35, 1.0),
        color_jitter: float = 0.0,
        rand_augment: bool = False,
    ) -> None:
        self.size = (image_size, image_size)
        self.crop_scale = crop_scale
        steps: list[Any] = [v2.RandAugment()] if rand_augment else []
        if color_jitter > 0:
            strength = color_jitter
            steps.append(v2.ColorJitter(strength, strength, strength, hue=min(strength / 4, 0.5)))
        self._further = v2.Compose(steps) if steps else None

    def __call__(self, pixels: Pixels, seed: int, key: SampleKey) -> Tensor:
        """Give one crop."""
        draw = random.Random(stable_seed(seed, key.epoch, key.index))  # noqa: S311
        image = pixels.cropped(_random_box(draw, pixels.size, self.crop_scale), self.size)
        if draw.random() < 0.5:
            image = image.flip(2)
        if self._further is None:
            return image
        with sample_randomness(seed, key):
            augmented: Tensor = self._further(image)
        return augmented


class EvalView(_ImageView):
    """The resized centre.

    Args:
        preprocessing: Says the sizes.
        for_training: It is for a training without augmentation.
    """

    def __init__(self, preprocessing: Preprocessing, *, for_training: bool = False) -> None:
        self.size, self.for_training = preprocessing.crop, for_training
        self._preprocessing = preprocessing

    def __call__(self, pixels: Pixels, seed: int, key: SampleKey) -> Tensor:
        """Give the centre, to the last bit what the preprocessing makes of the whole image."""
        return torch.from_numpy(np.array(self._preprocessing.cropped(pixels.whole()))).permute(2, 0, 1)


def training_view(preprocessing: Preprocessing, *, augment: bool, **augmentation: Any) -> TrainView | EvalView:
    """Give what training sees of an image: a random part of it, or without augmentation what evaluation sees.

    Args:
        preprocessing: Of evaluation.
        augment: Whether anything is random.
        augmentation: As for `TrainView`.
    """
    if not augment:
        return EvalView(preprocessing, for_training=True)
    return TrainView(preprocessing.crop[0], **augmentation)


def _random_box(draw: random.Random, size: tuple[int, int], scale: tuple[float, float]) -> Box:
    """Choose as torchvision's RandomResizedCrop (0.29) does."""
    height, width = size
    low, high = map(math.log, _RATIOS)
    for _ in range(_NUM_TRIES):
        area = height * width * draw.uniform(*scale)
        ratio = math.exp(draw.uniform(low, high))
        box_width, box_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < box_width <= width and 0 < box_height <= height:
            top, left = draw.randint(0, height - box_height), draw.randint(0, width - box_width)
            return Box(top, left, box_height, box_width)
    return _central_box(height, width)


def _central_box(height: int, width: int) -> Box:
    """The largest in the middle whose sides are not too unlike, for an image that is very wide or very high."""
    box_width = min(width, max(1, round(height * _RATIOS[1])))
    box_height = min(height, max(1, round(width / _RATIOS[0])))
    return Box((height - box_height) // 2, (width - box_width) // 2, box_height, box_width)
