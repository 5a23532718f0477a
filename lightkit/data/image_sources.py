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

from lightkit.data.image_index import Photo
from lightkit.images.image_file import UnreadableImageError, decode_rgb, pillow_warnings, read_orientation

_START = b"\xff\xd8\xff"
_PLAIN_FRAMES = frozenset({0xC0, 0xC1, 0xC2})  # baseline, extended and progressive, all Huffman-coded
_SIZELESS = frozenset({0x01, *range(0xD0, 0xDA)})
_APP1, _SCAN = 0xE1, 0xDA
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


class _Head(NamedTuple):
    height: int
    width: int
    may_be_turned: bool


class Jpeg:
    """A plain JPEG image: grey or YCbCr, 8 bits a channel.

    Args:
        data: The file's bytes.
        stored: Height and width before it is turned upright.
        orientation: As EXIF counts them, 1 to 8.
    """

    def __init__(self, data: bytes, *, stored: tuple[int, int], orientation: int) -> None:
        self._data = data
        self._stored = stored
        self._is_transposed, self._is_upside_down, self._is_mirrored = _TURNS[orientation]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width, upright."""
        height, width = self._stored
        return (width, height) if self._is_transposed else (height, width)

    def cropped(self, box: Box, size: tuple[int, int]) -> Tensor:
        """Give a part of it, resized to a height and width: uint8 ``(3, height, width)``.

        Where the part is at least twice as large as the result, the JPEG library decodes at a half, a quarter or an
        eighth of the size (`scale_denom`), and the part is cut there to the nearest pixel.

        Raises:
            RuntimeError: If torchvision cannot decode it.
            Exception: Of any kind, if Pillow cannot.
        """
        if self._is_upside_down:
            box = box._replace(top=self.size[0] - box.top - box.height)
        if self._is_mirrored:
            box = box._replace(left=self.size[1] - box.left - box.width)
        if self._is_transposed:
            box = Box(box.left, box.top, box.width, box.height)
            size = (size[1], size[0])
        part = resized(self._decoded(box, size), size)
        if self._is_transposed:
            part = part.transpose(1, 2)
        turned = [dim for dim, is_turned in ((1, self._is_upside_down), (2, self._is_mirrored)) if is_turned]
        return part.flip(turned) if turned else part

    def _decoded(self, box: Box, size: tuple[int, int]) -> Tensor:
        """Decode a box of the stored image, uint8 ``(height, width, 3)``, as coarsely as ``size`` allows."""
        finer = min(box.height / size[0], box.width / size[1])
        denominator = next((number for number in (8, 4, 2) if finer >= number), 1)
        if denominator > 1:
            return _decoded_coarsely(self._data, box, denominator)
        data = torch.frombuffer(bytearray(self._data), dtype=torch.uint8)  # writable, or torch warns
        pixels: Tensor = torch.ops.image.decode_jpeg(data, _RGB, False)
        return pixels.permute(1, 2, 0)[box.top : box.top + box.height, box.left : box.left + box.width]


_RGB = 3
"""``torchvision.io.ImageReadMode.RGB``; the operator is called itself, for `decode_jpeg` logs each call."""


def jpeg_of(data: bytes) -> Jpeg | None:
    """Read the head of a file; None where it is not a plain JPEG image, whole or not."""
    head = _head_of(data)
    limit = Image.MAX_IMAGE_PIXELS
    if head is None or (limit is not None and head.height * head.width > limit):
        return None
    orientation = _orientation_of(data) if head.may_be_turned else 1
    return Jpeg(data, stored=(head.height, head.width), orientation=orientation)


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


def _head_of(data: bytes) -> _Head | None:
    """Walk the segments up to the frame's (ITU T.81, B.1 and B.2.2)."""
    if data[:3] != _START:
        return None
    at, may_be_turned = 2, False
    while at + 9 < len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        if marker in _SIZELESS or marker == _SCAN:
            return None
        if marker in _PLAIN_FRAMES:
            precision, num_channels = data[at + 4], data[at + 9]
            height, width = (int.from_bytes(data[at + start : at + start + 2], "big") for start in (5, 7))
            is_plain = precision == 8 and num_channels in (1, 3) and height > 0 and width > 0
            return _Head(height, width, may_be_turned) if is_plain else None
        may_be_turned = may_be_turned or marker == _APP1
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None


def _orientation_of(data: bytes) -> int:
    """Read the orientation; 1 where the rest of the head is broken, which decoding then reports.

    Raises:
        MemoryError: If this machine has too little memory.
    """
    try:
        with pillow_warnings(), Image.open(io.BytesIO(data)) as image:
            return read_orientation(image)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 (decoders raise what they like on damaged files)
        return 1


def _decoded_coarsely(data: bytes, box: Box, denominator: int) -> Tensor:
    with pillow_warnings(), Image.open(io.BytesIO(data)) as image:
        width, height = image.size
        image.draft(None, (width // denominator, height // denominator))
        factor_y, factor_x = (-(-height // image.height), -(-width // image.width))
        rgb = image.convert("RGB")
    top, left = round(box.top / factor_y), round(box.left / factor_x)
    bottom = max(top + 1, round((box.top + box.height) / factor_y))
    right = max(left + 1, round((box.left + box.width) / factor_x))
    return torch.from_numpy(np.array(rgb))[top:bottom, left:right]


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
            except Exception:  # noqa: BLE001 (`whole`, for images of all kinds, decides and words the error)
                self._jpeg = None
        return Decoded(np.asarray(self.whole())).cropped(box, size)

    def whole(self) -> Image.Image:
        """Give all of it, as `lightkit.images.image_file.read_rgb` does.

        Raises:
            UnreadableImageError: If it cannot be decoded.
        """
        if self._rgb is None:
            self._rgb = decode_rgb(io.BytesIO(self._bytes()), name=self._name)
        return self._rgb

    def _look(self) -> None:
        """Read the head, once."""
        if self._jpeg is None and self._rgb is None:
            try:
                self._jpeg = jpeg_of(self._bytes())
            except MemoryError as error:
                raise UnreadableImageError.of(self._name, error) from error

    def _bytes(self) -> bytes:
        if isinstance(self._content, Path):
            self._content = _read(self._content)
        return self._content


class PhotoPixels:
    """A split's photos, from their files; as a sequence, decoded images with their labels.

    Args:
        photos: The split.
    """

    def __init__(self, photos: Sequence[Photo]) -> None:
        self.photos = photos

    def __len__(self) -> int:
        return len(self.photos)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return self.pixels(index).whole(), self.label(index)

    def pixels(self, index: int, /) -> Pixels:
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


def _read(path: Path) -> bytes:
    try:
        if not path.is_file():  # a pipe in its place might never end
            path.stat()
            raise UnreadableImageError(f"{path}: this is no file any more.", reason="no file any more")
        return path.read_bytes()
    except OSError as error:
        raise UnreadableImageError.of(path, error) from error
