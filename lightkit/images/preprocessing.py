"""From an image file's pixels to what a model takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

__all__ = ["Preprocessing", "resized", "resized_size"]

_NUM_SIDES = 2


@dataclass(frozen=True)
class Preprocessing:
    """Resize the shorter side, crop the centre, scale to 0..1, normalise.

    Args:
        resize: Length of the shorter side after resizing, in pixels; bilinear with antialiasing, as Pillow does it.
            The longer side is ``int(resize * longer / shorter)``.
        crop: Height and width of the centre crop, in pixels.
        mean: Subtracted from each channel, after the division by 255.
        std: Divides each channel after that.
        channel_order: Of the input's channels.
        interpolation: How it is resized.
    """

    resize: int
    crop: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    channel_order: str = "RGB"
    interpolation: str = "bilinear, antialiased, as Pillow's Image.resize"

    def __call__(self, image: Image.Image) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Give the input for one image.

        Args:
            image: In RGB, of any size.

        Returns:
            float32 ``(channels, height, width)``, equal to the last bit to what torchvision's `Resize`, `CenterCrop`,
            `ToDtype` and `Normalize` of the data modules make of it.
        """
        import numpy as np  # here, for what says a preprocessing need not do it

        pixels = np.asarray(self.cropped(image), dtype=np.float32).transpose(2, 0, 1)
        scaled = pixels * np.float32(1 / 255)  # torchvision multiplies; a division differs in the last bit
        mean, std = (np.asarray(values, dtype=np.float32)[:, None, None] for values in (self.mean, self.std))
        normalised: np.ndarray[Any, np.dtype[np.float32]] = np.ascontiguousarray((scaled - mean) / std)
        return normalised

    def cropped(self, image: Image.Image) -> Image.Image:
        """Give the resized centre of an image, still in whole numbers from 0 to 255."""
        image = resized(image, self.resize)
        top, left = (_start(have, want) for have, want in zip(reversed(image.size), self.crop, strict=True))
        return image.crop((left, top, left + self.crop[1], top + self.crop[0]))

    def as_dict(self) -> dict[str, Any]:
        """Give it as JSON holds it."""
        return asdict(self)

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Preprocessing:
        """Give what `as_dict` wrote; fields that this version does not know are left out.

        Raises:
            KeyError: If a field that each has is missing.
            TypeError: If one is of another type, or cannot be; in words.
        """
        known = {name: record[name] for name in cls.__dataclass_fields__ if name in record}
        for name, (is_right, expected) in _rules(record).items():
            if not is_right(record[name]):
                raise TypeError(f"preprocessing, {name}: expected {expected}, got {record[name]!r}")
        lists = {name: tuple(known[name]) for name in ("crop", "mean", "std")}
        return cls(**{**known, **lists})


def resized(image: Image.Image, shorter: int) -> Image.Image:
    """Give an image whose shorter side has so many pixels; the image itself where it has them already."""
    from PIL import Image  # here, for what says a preprocessing need not have it

    height, width = resized_size(image.height, image.width, shorter)
    if (width, height) == image.size:
        return image
    return image.resize((width, height), Image.Resampling.BILINEAR)


def resized_size(height: int, width: int, shorter: int) -> tuple[int, int]:
    """Give height and width after `resized`."""
    least = min(height, width)
    return shorter * height // least, shorter * width // least


def _rules(record: Mapping[str, Any]) -> dict[str, tuple[Callable[[Any], bool], str]]:
    """Give by field what tells whether it is right, and the words for that."""
    num_channels = len(record["mean"]) if _are(record["mean"], _is_number) else 0
    return {
        "resize": (_is_length, "a whole number above 0"),
        "crop": (lambda value: _are(value, _is_length) and len(value) == _NUM_SIDES, "two whole numbers above 0"),
        "mean": (lambda _: num_channels > 0, "a list of numbers, one for each channel"),
        "std": (
            lambda value: _are(value, _is_number) and len(value) == num_channels and all(value),
            f"{num_channels} numbers other than 0",
        ),
    }


def _are(value: Any, is_right: Callable[[Any], bool]) -> bool:
    return isinstance(value, list | tuple) and all(map(is_right, value))


def _is_length(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _start(have: int, want: int) -> int:
    """Tell where a crop starts; below zero where there is less than it wants, which is black (torchvision's rule)."""
    return -((want - have) // 2) if want > have else round((have - want) / 2)
