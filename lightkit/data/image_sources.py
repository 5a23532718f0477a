"""Sources of images: encoded files, of which no more is decoded than a crop needs, and decoded pixels."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from lightkit.images.image_file import UnreadableImageError, decode_rgb, pillow_warnings, read_orientation
from lightkit.images.image_index import Photo

_START = b"\xff\xd8\xff"
# By EXIF orientation: whether rows become columns, and then whether that is turned upside down, and left to right.
_TURNS = {
    1: (False, False, False),
    2: (False, False, True),
    3: (False, True, True),
    4: (False, True, False),
    5: (True, False, False),
    6: (True, False, True),
    7: (True, True, True),
    8: (True, True, False),
}


class Box(NamedTuple):
    """A part of an image, in whole pixels."""

    top: int
    left: int
    height: int
    width: int


_RGB = 3
"""``torchvision.io.ImageReadMode.RGB``; the operator is called itself, for `decode_jpeg` logs each call."""


def resized(pixels: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize uint8 pixels ``(height, width, 3)``, bilinear and antialiased.

    Returns:
        uint8 ``(3, *size)``; in memory the channels come last, which torch's vectorised kernel wants.
    """
    batch = pixels[None].permute(0, 3, 1, 2)
    if batch.shape[2:] == size:
        return batch[0]
    batch = batch.contiguous(memory_format=torch.channels_last)
    return interpolate(batch, size, mode="bilinear", antialias=True)[0]


class Pixels(Protocol):
    """One image, upright and in RGB, of which no more is decoded than is asked for."""

    @property
    def size(self) -> tuple[int, int]:
        """Height and width, in pixels; the coordinates of boxes count in them."""

    def cropped(self, box: Box, size: tuple[int, int]) -> Tensor:
        """Give a part of it, resized (bilinear, antialiased) to a height and width: uint8 ``(3, height, width)``."""

    def whole(self) -> Image.Image:
        """Give all of it, as `lightkit.images.image_file.read_rgb` does."""

    def shrunk(self, long_side: int) -> Tensor:
        """Give all of it, uint8 ``(3, height, width)``, of which the larger is ``long_side`` at most."""
        height, width = self.size
        scale = min(1.0, long_side / max(height, width))
        return self.cropped(Box(0, 0, height, width), (max(1, round(height * scale)), max(1, round(width * scale))))


class ImageSource(Protocol):
    """A split's images and labels; as a sequence, decoded images with their labels."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return self.pixels(index).whole(), self.label(index)

    def pixels(self, index: int) -> Pixels:
        """Give an image.

        Raises:
            UnreadableImageError: If it cannot be read or decoded, here or when its pixels are asked for.
        """

    def label(self, index: int) -> int:
        """Give its label."""

    def name(self, index: int) -> str:
        """Give what people know it by, such as its path."""

    def digest(self) -> str:
        """Compute a digest of all images in their order."""


class Decoded(Pixels):
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


class Encoded(Pixels):
    """An image file, or its bytes, that is read and decoded when it is asked for.

    Of a plain JPEG, grey or of three channels with 8 bits each, only the part and the detail is decoded that is needed.

    Args:
        content: The file, or all of its bytes.
        name: What errors call it; a file's is its path.
    """

    def __init__(self, content: Path | bytes, *, name: str = "") -> None:
        self._content = content
        self._name = name or str(content)
        self._jpeg: Image.Image | None = None
        self._orientation = 1
        self._rgb: Image.Image | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Height and width, upright.

        Raises:
            UnreadableImageError: If it cannot be read.
        """
        if jpeg := self._open_jpeg():
            return (jpeg.width, jpeg.height) if _TURNS[self._orientation][0] else (jpeg.height, jpeg.width)
        image = self.whole()
        return image.height, image.width

    def cropped(self, box: Box, size: tuple[int, int]) -> Tensor:
        """Give a part of it, resized: uint8 ``(3, height, width)``.

        Where the part of a JPEG is at least twice as large as the result, the JPEG library decodes at a half, a quarter
        or an eighth of the size (`scale_denom`), and the part is cut there to the nearest pixel.

        Raises:
            UnreadableImageError: If it cannot be decoded.
        """
        if jpeg := self._open_jpeg():
            try:
                return self._crop_jpeg(jpeg, box, size)
            except Exception:  # noqa: BLE001 (`whole`, for images of all kinds, decides and words the error)
                self._rgb = self.whole()
        return Decoded(np.asarray(self.whole())).cropped(box, size)

    def whole(self) -> Image.Image:
        """Give all of it, as `lightkit.images.image_file.read_rgb` does.

        Raises:
            UnreadableImageError: If it cannot be decoded.
        """
        if self._rgb is None:
            self._rgb = decode_rgb(io.BytesIO(self._read()), name=self._name)
        return self._rgb

    def _read(self) -> bytes:
        if isinstance(self._content, Path):
            path = self._content
            try:
                if not path.is_file():  # a pipe in its place might never end
                    path.stat()
                    raise UnreadableImageError(f"{path}: this is no file any more.", reason="no file any more")
                self._content = path.read_bytes()
            except OSError as error:
                raise UnreadableImageError.of(path, error) from error
        return self._content

    def _open_jpeg(self) -> Image.Image | None:
        """Read the head, once; None for other kinds of images, and where the whole image was decoded."""
        if self._jpeg is None and self._rgb is None:
            data = self._read()
            try:
                if data[:3] == _START:
                    with pillow_warnings():
                        image = Image.open(io.BytesIO(data))
                        self._orientation = read_orientation(image)
                        self._jpeg = image if image.mode in ("L", "RGB") else None
            except MemoryError as error:
                raise UnreadableImageError.of(self._name, error) from error
            except Exception:  # noqa: BLE001 (as above)
                self._jpeg = None
            if self._jpeg is None:
                self.whole()
        return None if self._rgb else self._jpeg

    def _crop_jpeg(self, jpeg: Image.Image, box: Box, size: tuple[int, int]) -> Tensor:
        is_transposed, is_upside_down, is_mirrored = _TURNS[self._orientation]
        height, width = self.size
        if is_upside_down:
            box = box._replace(top=height - box.top - box.height)
        if is_mirrored:
            box = box._replace(left=width - box.left - box.width)
        if is_transposed:
            box, size = Box(box.left, box.top, box.width, box.height), (size[1], size[0])
        finer = min(box.height / size[0], box.width / size[1])
        denominator = next((number for number in (8, 4, 2) if finer >= number), 1)
        if denominator > 1:
            self._jpeg = None  # it can be decoded once; the next part opens it again
            pixels = _decode_coarsely(jpeg, box, denominator)
        else:
            data = torch.frombuffer(bytearray(self._read()), dtype=torch.uint8)  # writable, or torch warns
            whole: Tensor = torch.ops.image.decode_jpeg(data, _RGB, False)
            pixels = whole.permute(1, 2, 0)[box.top : box.top + box.height, box.left : box.left + box.width]
        part = resized(pixels, size)
        part = part.transpose(1, 2) if is_transposed else part
        turned = [dim for dim, is_turned in ((1, is_upside_down), (2, is_mirrored)) if is_turned]
        return part.flip(turned) if turned else part


def _decode_coarsely(image: Image.Image, box: Box, denominator: int) -> Tensor:
    """Decode a box of the stored image at a share of its size, uint8 ``(height, width, 3)``."""
    width, height = image.size
    image.draft(None, (width // denominator, height // denominator))
    factor_y, factor_x = (-(-height // image.height), -(-width // image.width))
    with pillow_warnings():
        rgb = image.convert("RGB")
    top, left = round(box.top / factor_y), round(box.left / factor_x)
    bottom = max(top + 1, round((box.top + box.height) / factor_y))
    right = max(left + 1, round((box.left + box.width) / factor_x))
    return torch.from_numpy(np.array(rgb))[top:bottom, left:right]


class PhotoPixels(ImageSource):
    """A split's photos, from their files.

    Args:
        photos: The split.
    """

    def __init__(self, photos: Sequence[Photo]) -> None:
        self.photos = photos

    def __len__(self) -> int:
        return len(self.photos)

    def pixels(self, index: int) -> Pixels:
        """Give a photo, which is not read yet."""
        return Encoded(self.photos[index].path)

    def label(self, index: int) -> int:
        """Give its label."""
        return self.photos[index].label

    def name(self, index: int) -> str:
        """Give its path."""
        return str(self.photos[index].path)

    def digest(self) -> str:
        """Compute a digest of all photos in their order."""
        return hashlib.sha256("".join(photo.digest for photo in self.photos).encode()).hexdigest()
