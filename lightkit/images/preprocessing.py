"""From an image file's pixels to a model's input."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

# Per channel, of the ImageNet training set: what torchvision's and timm's weights were trained
# with.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
# torchvision's references/classification: resize to 256, then crop 224 from the centre
_RESIZE_RATIO = 256 / 224


@dataclass(frozen=True)
class Preprocessing:
    """Resize the shorter side, crop the centre, scale to 0..1, normalise.

    Args:
        resize: Length of the shorter side after resizing, in pixels; bilinear with antialiasing, as
            Pillow does it. The longer side is ``int(resize * longer / shorter)``.
        crop: Height and width of the centre crop, in pixels.
        mean: Subtracted from each channel, after the division by 255.
        std: Divides each channel after that.
        channel_order: Of the input's channels.
        interpolation: How it is resized.
        is_whole: Resize all of the image to the crop's height and width, of any shape, and crop
            nothing, as for masks.
    """

    resize: int
    crop: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    channel_order: str = "RGB"
    interpolation: str = "bilinear, antialiased, as Pillow's Image.resize"
    is_whole: bool = False

    def __call__(self, image: Image.Image) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Prepare one image.

        Args:
            image: In RGB, of any size.

        Returns:
            float32 ``(channels, height, width)``, equal to the last bit to what torchvision's
            `Resize`, `CenterCrop`, `ToDtype` and `Normalize` of the data modules make of it.
        """
        return self.normalised(self.cropped(image))

    def normalised(self, crop: Image.Image) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Prepare an image that `cropped` has cropped; the result is as of a call."""
        import numpy as np  # here, because metadata are read without it

        pixels = np.asarray(crop, dtype=np.float32).transpose(2, 0, 1)
        # torchvision multiplies; a division differs in the last bit
        scaled = pixels * np.float32(1 / 255)
        mean, std = (
            np.asarray(values, dtype=np.float32)[:, None, None] for values in (self.mean, self.std)
        )
        prepared: np.ndarray[Any, np.dtype[np.float32]] = np.ascontiguousarray(
            (scaled - mean) / std
        )
        return prepared

    def cropped(self, image: Image.Image) -> Image.Image:
        """Resize an image and crop its centre, still in whole numbers from 0 to 255."""
        if self.is_whole:
            return resize_whole(image, self.crop)
        image = resize_shorter_side(image, self.resize)
        top, left = (
            _start(have, want) for have, want in zip(reversed(image.size), self.crop, strict=True)
        )
        return image.crop((left, top, left + self.crop[1], top + self.crop[0]))

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Preprocessing:
        """Convert from plain values of JSON; fields of later versions are ignored.

        Raises:
            KeyError: If a field is missing.
            TypeError: If a field has another type or an impossible value; with a message.
        """
        resize, crop, mean, std = (record[name] for name in ("resize", "crop", "mean", "std"))
        if not (
            _is_length(resize)
            and isinstance(crop, list | tuple) and len(crop) == 2 and all(map(_is_length, crop))
            and _are_numbers(mean) and _are_numbers(std) and len(mean) == len(std) > 0 and all(std)
        ):  # fmt: skip
            raise TypeError(
                "preprocessing: expected resize, a length in pixels, crop, two of them, mean and"
                f" std, a number of each channel, those of std other than 0; got {resize!r},"
                f" {crop!r}, {mean!r}, {std!r}"
            )
        known = {name: record[name] for name in cls.__dataclass_fields__ if name in record}
        return cls(**{**known, **{name: tuple(known[name]) for name in ("crop", "mean", "std")}})


def preprocessing_of(image_size: int) -> Preprocessing:
    """Resize the shorter side to 256/224 of ``image_size``, crop the centre, normalise.

    As ImageNet's weights expect.
    """
    return Preprocessing(
        resize=round(image_size * _RESIZE_RATIO),
        crop=(image_size, image_size),
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
    )


def _is_length(value: Any) -> bool:
    return type(value) is int and value > 0


def _are_numbers(values: Any) -> bool:
    return isinstance(values, list | tuple) and all(
        type(value) in (int, float) and math.isfinite(value) for value in values
    )


def resize_shorter_side(image: Image.Image, shorter: int) -> Image.Image:
    """Resize an image so that its shorter side has so many pixels.

    The image itself if it has them already.
    """
    from PIL import Image  # as above

    height, width = compute_resized_size(image.height, image.width, shorter)
    if (width, height) == image.size:
        return image
    return image.resize((width, height), Image.Resampling.BILINEAR)


def resize_whole(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Resize all of an image to a height and width; the image itself if it has them already."""
    from PIL import Image  # as above

    if (image.height, image.width) == size:
        return image
    return image.resize((size[1], size[0]), Image.Resampling.BILINEAR)


def compute_resized_size(height: int, width: int, shorter: int) -> tuple[int, int]:
    """Compute height and width after `resize_shorter_side`."""
    least = min(height, width)
    return shorter * height // least, shorter * width // least


def _start(have: int, want: int) -> int:
    """Compute the start of a crop.

    Below zero if the image is smaller, which gives black (torchvision's rule).
    """
    return -((want - have) // 2) if want > have else round((have - want) / 2)
