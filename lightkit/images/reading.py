"""Reading one image file, of any kind that Pillow knows, into RGB."""

from __future__ import annotations

import re
import stat
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from lightkit.errors import DataError

__all__ = [
    "DECODE_ERRORS",
    "IMAGE_SUFFIXES",
    "UnreadableImageError",
    "decoded",
    "frame_of",
    "orientation_of",
    "over_white",
    "pillow_warnings",
    "read_rgb",
    "reason_of",
    "rgb_of",
]

IMAGE_SUFFIXES = frozenset(
    {
        ".avif",
        ".bmp",
        ".dib",
        ".gif",
        ".j2k",
        ".jfif",
        ".jp2",
        ".jpe",
        ".jpeg",
        ".jpg",
        ".mpo",
        ".pbm",
        ".pgm",
        ".png",
        ".pnm",
        ".ppm",
        ".tga",
        ".tif",
        ".tiff",
        ".webp",
    }
)

# What Pillow's readers were seen to raise on broken files.
DECODE_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    EOFError,
    IndexError,
    KeyError,
    OverflowError,
    MemoryError,
    struct.error,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
)

# Left to do with pixels whose EXIF tag has this number (CIPA DC-008, Orientation).
_TURNS = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_COUNTS = re.compile(r" \(\d+ bytes not processed\)")  # would make each reason one of its own
_STRETCHED = {"L;2": 85, "L;4": 17}
_BITS_PER_SAMPLE = 258  # TIFF's tag
_SIXTEEN_BITS = frozenset({"JPEG2000", "PNG", "PPM"})  # formats with no more bits than these in mode I


class UnreadableImageError(DataError):
    """An image file that cannot be decoded.

    Args:
        message: What is wrong with which file. torch rebuilds a worker's exception from the text of its whole traceback
            (``torch._utils.ExceptionWrapper.reraise``); of that, the message alone is kept.
        reason: Why alone, in a few words.
    """

    def __init__(self, message: str, *, reason: str = "") -> None:
        marker = f"{type(self).__name__}: "
        if message.startswith("Caught ") and marker in message:
            message = message.rpartition(marker)[2].strip()
        super().__init__(message)
        self.reason = reason or message

    @classmethod
    def of(cls, name: object, error: BaseException) -> UnreadableImageError:
        """Give it for what a reader has raised, see `DECODE_ERRORS`."""
        reason = reason_of(error)
        return cls(
            f"{name}: this image cannot be decoded ({reason}). Replace the file or take it out of the data.",
            reason=reason,
        )


@contextmanager
def pillow_warnings() -> Iterator[None]:
    """Within it Pillow's warnings are silent, but one about too many pixels is an error.

    The filters are the whole process's: enter it in one thread, around any pool that reads images.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # odd metadata; the pixels are what counts
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def read_rgb(path: Path) -> Image.Image:
    """Decode a file's first frame, turned upright by its EXIF tag, transparency laid over white.

    Raises:
        UnreadableImageError: If the file cannot be decoded, or promises more pixels than Pillow's limit.
    """
    return rgb_of(path, name=path)


def rgb_of(content: Path | BinaryIO, *, name: object) -> Image.Image:
    """Decode an image as `read_rgb` does, from a file or a stream that errors call by ``name``.

    Raises:
        UnreadableImageError: As there.
    """
    try:
        with pillow_warnings(), Image.open(content) as image:
            return _upright_rgb(image)
    except DECODE_ERRORS as error:
        raise UnreadableImageError.of(name, error) from error


def decoded(path: str) -> tuple[Image.Image | None, str | None]:
    """Give the image as `read_rgb` does, or in its place why there is none, in a few words without the path.

    It may run in threads, and leaves the filters of warnings alone: that is for the caller's `pillow_warnings`.
    """
    if not path:
        return None, "no path is given"
    try:
        mode = Path(path).stat().st_mode
        if not stat.S_ISREG(mode):  # reading from a pipe might never end
            return None, "Is a directory" if stat.S_ISDIR(mode) else "neither a file nor a folder"
        with Image.open(path) as image:
            return _upright_rgb(image), None
    except DECODE_ERRORS as error:
        return None, reason_of(error)


def reason_of(error: BaseException) -> str:
    """Say in a few words, without the path, what one of `DECODE_ERRORS` means."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image in any format that Pillow knows"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return _COUNTS.sub("", str(error)) or type(error).__name__


def frame_of(image: Image.Image) -> Image.Image:
    """Decode the first frame of an image that is open, and correct what Pillow 13 says of its transparency.

    Raises:
        ValueError: If its pixels have 32 bits, of which nobody knows which value is white.
    """
    _refuse_without_range(image)
    scaled = _scaled_transparency(image)
    image.load()
    if scaled is not None:
        image.info["transparency"] = scaled
    return image


def orientation_of(image: Image.Image) -> int:
    """Give how a decoded image has to be turned, 1 to 8 as EXIF counts; 1, as it is, where nothing valid is said."""
    try:
        number = image.getexif().get(ExifTags.Base.Orientation, 1)
    except DECODE_ERRORS:  # broken EXIF says nothing about the orientation: as viewers do, take the image as stored
        return 1
    return number if number in _TURNS else 1


def over_white(image: Image.Image) -> Image.Image:
    """Give a decoded frame in RGB, 8 bits a channel, with whatever is transparent laid over white.

    Of 16 bits a channel the upper 8 are kept. CMYK and other colour spaces are converted as Pillow does it, without
    colour profiles.
    """
    if image.mode.startswith("I"):  # 16 bits a pixel, which Pillow's own conversion would clip to white
        return _over_white_16(image)
    if not image.has_transparency_data:
        return image.convert("RGB")
    layer = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")


def _refuse_without_range(image: Image.Image) -> None:
    """Refuse floats and integers of 32 bits; Pillow has some that are of 16 bits in mode I as well."""
    bits = getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, (32,))
    is_integer = image.mode == "I" and image.format not in _SIXTEEN_BITS and 16 not in bits
    if image.mode == "F" or is_integer:
        raise ValueError("32-bit pixels have no agreed range; save it with 8 or 16 bits")


def _over_white_16(image: Image.Image) -> Image.Image:
    values = np.asarray(image).astype(np.int64)
    grey = (values >> 8).clip(0, 255).astype(np.uint8)
    clear = image.info.get("transparency")
    if isinstance(clear, int):
        grey[values == clear] = 255
    return Image.fromarray(grey).convert("RGB")


def _scaled_transparency(image: Image.Image) -> int | tuple[int, ...] | None:
    """Give a PNG's one transparent colour on the scale of its pixels; None where Pillow has it right.

    Pillow 13.0 stretches the grey of 2 and 4 bits to 8, and cuts colours of 16 bits to 8, but not this value.
    """
    clear = image.info.get("transparency")
    tile = getattr(image, "tile", None)
    raw_mode = tile[0].args if image.format == "PNG" and tile else None
    if isinstance(clear, int) and raw_mode in _STRETCHED:
        return clear * _STRETCHED[raw_mode]
    if isinstance(clear, tuple) and raw_mode == "RGB;16B":
        return tuple(value >> 8 for value in clear)
    return None


def _upright_rgb(image: Image.Image) -> Image.Image:
    turn = _TURNS[orientation_of(frame_of(image))]
    rgb = over_white(image)
    return rgb if turn is None else rgb.transpose(turn)
