"""What is done to an image before a model sees it, outside training."""

from __future__ import annotations

from lightkit.images.preprocessing import Preprocessing

__all__ = ["IMAGENET_MEAN", "IMAGENET_STD", "preprocessing_of"]

# Per channel, of the ImageNet training set: what torchvision's and timm's weights were trained with.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

_RESIZE_RATIO = 256 / 224  # torchvision's references/classification: resize to 256, then crop 224 from the centre


def preprocessing_of(image_size: int) -> Preprocessing:
    """Resize the shorter side to 256/224 of ``image_size``, crop the centre, normalise as ImageNet's weights expect."""
    return Preprocessing(
        resize=round(image_size * _RESIZE_RATIO),
        crop=(image_size, image_size),
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
    )
