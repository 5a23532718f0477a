"""What the data modules do to an image, put together from torchvision's own transforms.

What theirs is held against.
"""

from __future__ import annotations

from typing import Any

import torch
from torchvision.transforms import v2

from lightkit.images.preprocessing import IMAGENET_MEAN, IMAGENET_STD, preprocessing_of


def train_transform(
    image_size: int,
    *,
    crop_scale: tuple[float, float] = (0.35, 1.0),
    color_jitter: float = 0.0,
    rand_augment: bool = False,
) -> v2.Compose:
    """Random resized crop and flip, then what is asked for, then normalisation.

    Args:
        image_size: Side of the square result, in pixels.
        crop_scale: Least and greatest share of the image's area that a crop keeps.
        color_jitter: Strength of the change of brightness, contrast and saturation; the hue changes
            by a quarter of it, at most by 0.5. 0 leaves it out.
        rand_augment: Apply RandAugment (Cubuk et al. 2019) with torchvision's defaults.

    Returns:
        From a PIL image in RGB to a normalised float32 tensor of shape
        ``(3, image_size, image_size)``.
    """
    steps: list[Any] = [
        v2.RandomResizedCrop(image_size, scale=crop_scale, antialias=True),
        v2.RandomHorizontalFlip(),
    ]
    if rand_augment:
        steps.append(v2.RandAugment())
    if color_jitter > 0:
        strength = color_jitter
        steps.append(v2.ColorJitter(strength, strength, strength, hue=min(strength / 4, 0.5)))
    return v2.Compose([*steps, *_normalised()])


def eval_transform(image_size: int) -> v2.Compose:
    """Resize the shorter side to 256/224 of ``image_size``, crop the centre, normalise.

    Result as in training.
    """
    said = preprocessing_of(image_size)
    return v2.Compose(
        [v2.Resize(said.resize, antialias=True), v2.CenterCrop(said.crop), *_normalised()]
    )


def _normalised() -> list[Any]:
    return [
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(mean=IMAGENET_MEAN, std=IMAGENET_STD),
    ]
