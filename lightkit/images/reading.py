"""Reading one image file, of any kind that Pillow knows, into RGB."""

from __future__ import annotations

import stat
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from lightkit.errors import DataError

__all__ = ["IMAGE_SUFFIXES", "UnreadableImageError", "decoded", "defect_of", "pillow_warnings", "read_rgb"]

IMAGE_SUFFIXES = frozenset(
    {
        ".avif",
        ".bmp",
        ".gif",
        ".jfif",
        ".jpe",
        ".jpeg",
        ".jpg",
        ".pbm",
        ".pgm",
        ".png",
        ".ppm",
        ".tif",
        ".tiff",
        ".webp",
    }
)

# What Pillow's readers were seen to raise on broken files.
_DECODE_ERRORS = (
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


class UnreadableImageError(DataError):
    """An image file that cannot be decoded.

    Args:
        message: What is wrong with which file. torch rebuilds a worker's exception from the text of its whole traceback
            (``torch._utils.ExceptionWrapper.reraise``); of that, the message alone is kept.
    """

    def __init__(self, message: str) -> None:
        marker = f"{type(self).__name__}: "
        if message.startswith("Caught ") and marker in message:
            message = message.rpartition(marker)[2].strip()
        super().__init__(message)


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
    try:
        with pillow_warnings(), Image.open(path) as image:
            image.load()
            return _over_white(_upright(image))
    except _DECODE_ERRORS as error:
        raise UnreadableImageError(
            f"{path}: this image cannot be decoded ({_reason(error)}). Replace the file or take it out of the data."
        ) from error


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
            image.load()
            return _over_white(_upright(image)), None
    except _DECODE_ERRORS as error:
        return None, _reason(error)


def defect_of(path: Path) -> str | None:
    """Say why a file's header is not that of an image, without decoding the pixels; None where it is fine.

    It may run in threads, and leaves the filters of warnings alone: that is for the caller's `pillow_warnings`.
    """
    try:
        with Image.open(path):
            return None
    except _DECODE_ERRORS as error:
        return _reason(error)


def _reason(error: BaseException) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image in any format that Pillow knows"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except _DECODE_ERRORS:  # broken EXIF says nothing about the orientation: as viewers do, take the image as stored
        return image


def _over_white(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits a pixel, which Pillow's own conversion would clip to white
        return Image.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    layer = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
