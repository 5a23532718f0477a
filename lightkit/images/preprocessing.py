"""From an image file's pixels to what a model takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

__all__ = ["Preprocessing"]


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
        from PIL import Image  # as above

        width, height = image.size
        shorter = min(width, height)
        size = (self.resize * width // shorter, self.resize * height // shorter)
        if size != image.size:
            image = image.resize(size, Image.Resampling.BILINEAR)
        top, left = (_start(have, want) for have, want in zip(reversed(size), self.crop, strict=True))
        return image.crop((left, top, left + self.crop[1], top + self.crop[0]))

    def as_dict(self) -> dict[str, Any]:
        """Give it as JSON holds it."""
        return asdict(self)

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Preprocessing:
        """Give what `as_dict` wrote; fields that this version does not know are left out."""
        known = {name: record[name] for name in cls.__dataclass_fields__ if name in record}
        lists = {name: tuple(known[name]) for name in ("crop", "mean", "std")}
        return cls(**{**known, **lists})


def _start(have: int, want: int) -> int:
    """Tell where a crop starts; below zero where there is less than it wants, which is black (torchvision's rule)."""
    return -((want - have) // 2) if want > have else round((have - want) / 2)
