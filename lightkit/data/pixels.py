"""One image as a data set hands it over, before any augmentation: encoded bytes, or pixels that were decoded before."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lightkit.data.jpeg import Box, Jpeg, jpeg_of, resized
from lightkit.data.photos import Photo
from lightkit.images.reading import DECODE_ERRORS, UnreadableImageError, decode_rgb

__all__ = ["Box", "Decoded", "Encoded", "PhotoPixels", "PixelSource", "Pixels", "Unreadable"]


class Pixels(Protocol):
    """One image, upright and in RGB, of which no more is decoded than is asked for."""

    @property
    def size(self) -> tuple[int, int]:
        """Height and width, in pixels; the coordinates of boxes count in them."""

    def cropped(self, box: Box, size: tuple[int, int]) -> Tensor:
        """Give a part of it, resized (bilinear, antialiased) to a height and width: uint8 ``(3, height, width)``."""

    def whole(self) -> Image.Image:
        """Give all of it, as `lightkit.images.reading.read_rgb` does."""


class PixelSource(Protocol):
    """A split's images and labels."""

    def __len__(self) -> int: ...

    def pixels(self, index: int, /) -> Pixels:
        """Give an image.

        Raises:
            UnreadableImageError: If it cannot be read or decoded, here or when its pixels are asked for.
        """

    def label(self, index: int, /) -> int:
        """Give its label."""

    def name(self, index: int, /) -> str:
        """Give what people know it by, such as its path."""


class Decoded:
    """An image whose pixels are in memory, or mapped to it.

    Args:
        pixels: uint8 ``(height, width, 3)``. It may be read-only; what is given from it never shares its memory.
    """

    def __init__(self, pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        self._pixels = pixels

    @property
    def size(self) -> tuple[int, int]:
        """Height and width, in pixels."""
        return self._pixels.shape[0], self._pixels.shape[1]

    def cropped(self, box: Box, size: tuple[int, int]) -> Tensor:
        """Give a part of it, resized: uint8 ``(3, height, width)``."""
        top, left, height, width = box
        return resized(torch.from_numpy(self._pixels[top : top + height, left : left + width].copy()), size)

    def whole(self) -> Image.Image:
        """Give all of it."""
        return Image.fromarray(self._pixels)


class Encoded:
    """An image file, or its bytes, that is read and decoded when it is asked for.

    Args:
        content: The file, or all of its bytes.
        name: What errors call it; a file's is its path.
    """

    def __init__(self, content: Path | bytes, *, name: str = "") -> None:
        self._content = content
        self._name = name or str(content)
        self._jpeg: Jpeg | None = None
        self._rgb: Image.Image | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Height and width, upright.

        Raises:
            UnreadableImageError: If it cannot be read.
        """
        self._look()
        if self._jpeg is not None:
            return self._jpeg.size
        image = self.whole()
        return image.height, image.width

    def cropped(self, box: Box, size: tuple[int, int]) -> Tensor:
        """Give a part of it, resized: uint8 ``(3, height, width)``.

        Raises:
            UnreadableImageError: If it cannot be decoded.
        """
        self._look()
        if self._jpeg is not None:
            try:
                return self._jpeg.cropped(box, size)
            except (RuntimeError, *DECODE_ERRORS):  # the one rule for images of all kinds decides, and finds the words
                self._jpeg = None
        return Decoded(np.asarray(self.whole())).cropped(box, size)

    def whole(self) -> Image.Image:
        """Give all of it, as `lightkit.images.reading.read_rgb` does.

        Raises:
            UnreadableImageError: If it cannot be decoded.
        """
        if self._rgb is None:
            self._rgb = decode_rgb(io.BytesIO(self._bytes()), name=self._name)
        return self._rgb

    def _look(self) -> None:
        """Read the head, once."""
        if self._jpeg is None and self._rgb is None:
            self._jpeg = jpeg_of(self._bytes())

    def _bytes(self) -> bytes:
        if isinstance(self._content, Path):
            self._content = _read(self._content)
        return self._content


class Unreadable:
    """An image that is known to be none.

    Args:
        name: What people know it by.
        reason: Why, in a few words.
    """

    def __init__(self, name: str, reason: str) -> None:
        self._error = UnreadableImageError(f"{name}: this image cannot be decoded ({reason}).", reason=reason)

    @property
    def size(self) -> tuple[int, int]:
        """Raise the reason."""
        raise self._error

    def cropped(self, box: Box, size: tuple[int, int]) -> Tensor:
        """Raise the reason."""
        raise self._error

    def whole(self) -> Image.Image:
        """Raise the reason."""
        raise self._error


class PhotoPixels:
    """A split's photos, from their files.

    Args:
        photos: The split.
    """

    def __init__(self, photos: Sequence[Photo]) -> None:
        self.photos = photos

    def __len__(self) -> int:
        return len(self.photos)

    def pixels(self, index: int) -> Encoded:
        """Give a photo, which is not read yet."""
        return Encoded(self.photos[index].path)

    def label(self, index: int) -> int:
        """Give its label."""
        return self.photos[index].label

    def name(self, index: int) -> str:
        """Give its path."""
        return str(self.photos[index].path)


def _read(path: Path) -> bytes:
    try:
        if not path.is_file():  # a pipe in its place might never end
            path.stat()
            raise UnreadableImageError(f"{path}: this is no file any more.", reason="no file any more")
        return path.read_bytes()
    except OSError as error:
        raise UnreadableImageError.of(path, error) from error
