"""Read image files of any kind that Pillow knows into RGB.

One, or many in threads ahead of the consumer.
"""

from __future__ import annotations

import ctypes
import errno
import io
import os
import re
import stat
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

from PIL import ExifTags, Image, UnidentifiedImageError

from lightkit.errors import DataError, LightkitError, visible

T = TypeVar("T")
R = TypeVar("R")
IMAGE_SUFFIXES = frozenset(
    [
        *(".avif", ".bmp", ".dib", ".gif", ".j2k", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg"),
        *(".mpo", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tga", ".tif", ".tiff", ".webp"),
    ]
)
# The machine's fault and not the file's, with what to do.
_LACKS = {
    errno.EMFILE: "raise `ulimit -n`, or lower data.init_args.num_workers",
    errno.ENFILE: "raise fs.file-max of this machine, or end other processes",
    errno.ENOMEM: (
        "raise `ulimit -v`, lower data.init_args.num_workers, or remove this"
        " file if it alone is too large"
    ),
}
# By the number of the EXIF tag (CIPA DC-008, Orientation).
_ROTATIONS = {
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
# TIFF's tags (TIFF 6.0, sections 8 and 23)
_BITS_PER_SAMPLE = 258
_PHOTOMETRIC = 262
_PLANAR_CONFIGURATION = 284
_WHITE_IS_ZERO = 0
_PLANES = 2
# formats with no more bits than these in mode I
_SIXTEEN_BITS = frozenset({"JPEG2000", "PNG", "PPM"})
_MAX_THREADS = 8


class UnreadableImageError(DataError):
    """An image file that cannot be decoded.

    Args:
        message: File and reason.
        reason: The reason alone, in a few words.
    """

    def __init__(self, message: str, *, reason: str = "") -> None:
        super().__init__(_own_message(self, message))
        self.reason = reason or str(self)

    @classmethod
    def of(cls, name: object, error: Exception) -> UnreadableImageError:
        """Build it from an exception of a decoder."""
        reason = format_reason(error, name)
        return cls(
            f"{name}: this image cannot be decoded ({reason}). Replace the"
            " file or take it out of the data.",
            reason=reason,
        )


class MachineLimitError(LightkitError):
    """This machine lacks descriptors or memory to read a file, which may be a good one."""

    def __init__(self, message: str) -> None:
        super().__init__(_own_message(self, message))


def _own_message(error: Exception, message: str) -> str:
    """Return the message alone.

    torch builds a worker's exception again from the text of its whole traceback
    (``torch._utils.ExceptionWrapper.reraise``).
    """
    marker = f"{type(error).__name__}: "
    return (
        message.rpartition(marker)[2].strip()
        if message.startswith("Caught ") and marker in message
        else message
    )


@contextmanager
def pillow_warnings() -> Iterator[None]:
    """Silence Pillow's warnings, but make an error of one about too many pixels.

    The filters are the whole process's: enter it in one thread, around any pool that reads images.
    What libtiff would print on standard error is counted, see `count_libtiff_errors`.
    """
    count_libtiff_errors()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # odd metadata; the pixels count
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


@lru_cache(maxsize=1)
def _replace_libtiff_handler() -> list[int]:
    """Make libtiff count its errors in a list of one number.

    In place of printing several lines an image.
    """
    count = [0]

    @ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p)  # type: ignore[untyped-decorator]
    def handle(module: bytes, form: bytes, values: int) -> None:  # noqa: ARG001 (libtiff's signature)
        count[0] += 1

    with suppress(OSError, AttributeError):  # Pillow may be built without it
        library = ctypes.CDLL(Image.core.__file__)  # type: ignore[attr-defined]
        library.TIFFSetErrorHandler.restype = ctypes.c_void_p
        library.TIFFSetErrorHandler(handle)
        library.TIFFSetWarningHandler(None)
    _replace_libtiff_handler.handle = handle  # type: ignore[attr-defined]  # lives as long as libtiff may call it
    return count


def count_libtiff_errors() -> int:
    """Count the errors that libtiff has reported in this process since the first call."""
    return _replace_libtiff_handler()[0]


def walk_files(
    folder: str,
    *,
    follows: Callable[[str], bool] = lambda _: True,
    once: bool = False,
    known: set[tuple[int, int]] | None = None,
) -> Iterator[str]:
    """Yield the visible files in a folder and below it.

    In the order of their names, one folder at a time.

    Args:
        folder: Where to begin.
        follows: Whether a link to a folder is followed; in no case in a circle.
        once: Read a folder once though several links lead to it.
        known: Device and number of the folders that are not read again: those above, with ``once``
            all so far.

    Raises:
        DataError: If a folder cannot be read.
    """
    try:
        status = os.stat(folder)  # noqa: PTH116 (pathlib would make an object of each of very many)
        with os.scandir(folder) as found:
            entries = sorted(
                (entry.name, entry.is_dir(follow_symlinks=False), entry.is_symlink())
                for entry in found
            )
    except OSError as error:
        raise DataError(
            f"{folder}: this folder cannot be read ({error.strerror}). Make it readable, or move it"
            " out of the data."
        ) from error
    this = (status.st_dev, status.st_ino)
    known = set() if known is None else known
    if this in known:
        return
    known = known if once else known.copy()
    known.add(this)
    for name, is_folder, is_link in entries:
        path = os.path.join(folder, name)  # noqa: PTH118
        if name.startswith("."):
            continue
        if not is_folder and not (is_link and os.path.isdir(path)):  # noqa: PTH112
            yield path
        elif not is_link or follows(path):
            yield from walk_files(path, follows=follows, once=once, known=known)


def read_rgb(path: Path) -> Image.Image:
    """Decode a file's first frame, turned upright by its EXIF tag, transparency laid over white.

    Raises:
        UnreadableImageError: If the file cannot be decoded, or has more pixels than Pillow's limit.
    """
    return decode_rgb(path, name=path)


def decode_rgb(content: Path | BinaryIO, *, name: object) -> Image.Image:
    """Decode an image as `read_rgb` does, from a file or a stream, with its name for errors.

    Raises:
        UnreadableImageError: Likewise.
    """
    try:
        with pillow_warnings(), Image.open(content) as image:
            return upright_rgb(image)
    except Exception as error:
        raise UnreadableImageError.of(name, error) from error


def try_read_rgb(path: str) -> tuple[Image.Image | None, str | None]:
    """Read an image as `read_rgb` does, or return the reason why it cannot be.

    In a few words without the path.

    It may run in threads, and leaves the filters of warnings alone: that is for the caller's
    `pillow_warnings`.
    """
    if not path:
        return None, "no path is given"
    try:
        mode = Path(path).stat().st_mode
        if not stat.S_ISREG(mode):  # reading from a pipe might never end
            return None, "Is a directory" if stat.S_ISDIR(mode) else "neither a file nor a folder"
        with Image.open(path) as image:
            return upright_rgb(image), None
    except Exception as error:  # noqa: BLE001 (as above)
        return None, format_reason(error, path)


def format_reason(error: Exception, name: object) -> str:
    """Format a decoder's exception in a few words, without the path.

    Raises:
        MachineLimitError: If the machine lacks descriptors or memory, which is not the file's
            fault.
    """
    number = errno.ENOMEM if isinstance(error, MemoryError) else getattr(error, "errno", None)
    if isinstance(error, OSError | MemoryError) and number in _LACKS:
        raise MachineLimitError(
            f"{name}: this image cannot be read ({os.strerror(number)}), which may not be its"
            f" fault: {_LACKS[number]}."
        ) from error
    if isinstance(error, UnidentifiedImageError):
        return "not an image in any format that Pillow knows"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return _COUNTS.sub("", str(error)) or type(error).__name__


def upright_rgb(image: Image.Image) -> Image.Image:
    """Decode the first frame of an open image, upright, with transparency laid over white."""
    rotation = _ROTATIONS[read_orientation(load_frame(image))]
    rgb = overlay_white(image)
    return rgb if rotation is None else rgb.transpose(rotation)


def load_frame(image: Image.Image) -> Image.Image:
    """Decode the first frame of an open image, and correct its transparent colour.

    Pillow 13.0 stretches a PNG's grey of 2 and 4 bits to 8, and cuts colours of 16 bits to 8, but
    not that colour.

    Raises:
        ValueError: If its pixels have 32 bits, of which nobody knows the value of white, or colours
            in planes of 16 bits, of which Pillow 13.0 takes each byte for a pixel.
    """
    _refuse_unknown_pixels(image)
    tile = getattr(image, "tile", None)
    transparent = image.info.get("transparency")
    raw_mode = tile[0].args if image.format == "PNG" and tile else None
    low_bytes = None
    if isinstance(transparent, tuple) and raw_mode == "RGB;16B":
        low_bytes = _low_bytes(image)
    image.load()
    if isinstance(transparent, int) and raw_mode in _STRETCHED:
        image.info["transparency"] = transparent * _STRETCHED[raw_mode]
    elif low_bytes is not None and isinstance(transparent, tuple):
        _make_transparent(image, low_bytes, transparent)
    return image


def _refuse_unknown_pixels(image: Image.Image) -> None:
    """Refuse an open image whose pixels Pillow reads wrongly, or whose white is unknown.

    Raises:
        ValueError: If it is one.
    """
    tags = getattr(image, "tag_v2", {})
    bits = tags.get(_BITS_PER_SAMPLE, (32,))  # Pillow has some of 16 bits in mode I as well
    if image.mode == "F" or (
        image.mode == "I" and image.format not in _SIXTEEN_BITS and 16 not in bits
    ):
        raise ValueError("32-bit pixels have no agreed range; save it with 8 or 16 bits")
    tile = getattr(image, "tile", None)
    is_raw = tile and tile[0][0] == "raw"
    if is_raw and tags.get(_PLANAR_CONFIGURATION) == _PLANES and 16 in bits and len(bits) > 1:
        raise ValueError(
            "Pillow reads 16-bit colours in planes wrongly; save it"
            " with 8 bits, or with whole pixels"
        )


def _low_bytes(image: Image.Image) -> Image.Image:
    """Decode the lower 8 bits of an open PNG of 16 bits a colour.

    Pillow keeps the upper ones.
    """
    file: Any = image.fp  # type: ignore[attr-defined]  # of an open image
    at = file.tell()
    file.seek(0)
    content = file.read()
    file.seek(at)
    low = Image.open(io.BytesIO(content))
    low.tile = [tile._replace(args="RGB;16L") for tile in low.tile]
    low.load()
    return low


def _make_transparent(image: Image.Image, low_bytes: Image.Image, color: tuple[int, ...]) -> None:
    """Add an alpha channel to a decoded image of 16 bits a colour.

    0 where all 16 bits are those of ``color``.
    """
    import numpy as np  # here: the commands that check a config load it for nothing else

    values = np.asarray(image).astype(np.uint16) << 8 | np.asarray(low_bytes)
    is_seen = (values != np.array(color, np.uint16)).any(axis=2)
    del image.info["transparency"]
    image.putalpha(Image.fromarray(np.where(is_seen, 255, 0).astype(np.uint8)))


def read_orientation(image: Image.Image) -> int:
    """Read the orientation of a decoded image, 1 to 8 as EXIF counts.

    1, as stored, if there is no valid one.
    """
    try:
        number = image.getexif().get(ExifTags.Base.Orientation, 1)
    except MemoryError:  # not the file's fault: a turned photo would be read as stored
        raise
    except Exception:  # noqa: BLE001 (broken EXIF: as viewers do, take the image as stored)
        return 1
    return number if number in _ROTATIONS else 1


def overlay_white(image: Image.Image) -> Image.Image:
    """Convert a decoded frame to RGB, 8 bits a channel, with transparency laid over white.

    Of 16 bits a channel the upper 8 are kept. CMYK and other colour spaces are converted as Pillow
    does it, without colour profiles.
    """
    # 16 bits a pixel, which Pillow's own conversion would clip to white
    if image.mode.startswith("I"):
        import numpy as np  # here: the commands that check a config load it for nothing else

        values = np.asarray(image).astype(np.int64)
        tags = getattr(image, "tag_v2", {})
        num_bits = 12 if tags.get(_BITS_PER_SAMPLE) == (12,) else 16
        grey = (values >> (num_bits - 8)).clip(0, 255).astype(np.uint8)
        if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:  # which Pillow 13.0 inverts for 8 bits alone
            grey = 255 - grey
        transparent = image.info.get("transparency")
        if isinstance(transparent, int):
            grey[values == transparent] = 255
        return Image.fromarray(grey).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    layer = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")


@dataclass(frozen=True)
class PreparedImage(Generic[T]):
    """An image that is ready for a model, or the reason why there is none.

    Args:
        path: As it was named.
        image: The prepared image, None if there is none.
        defect: The reason, else None.
    """

    path: str
    image: T | None
    defect: str | None


def prepare_images(
    paths: Iterable[str],
    prepare: Callable[[Image.Image], T],
    *,
    ahead: int,
    threads: int | None = None,
    find_ready: Callable[[str], T | None] = lambda _: None,
) -> Iterator[PreparedImage[T]]:
    """Read images and prepare each, in threads, in the order of the paths.

    Args:
        paths: May be without end.
        prepare: From an image in RGB; it runs in threads.
        ahead: Number of images that are prepared at most before they are asked for.
        threads: Number of images that are read at a time; `count_threads` if None.
        find_ready: Returns what is prepared already, by the path; it runs in threads, too.

    Raises:
        RuntimeError: If ``prepare`` fails otherwise than for the size of an image, with the image's
            name.
    """
    num_threads = threads or count_threads()
    work = partial(_prepare_image, prepare=prepare, find_ready=find_ready)
    with (
        pillow_warnings(),
        ThreadPoolExecutor(num_threads, thread_name_prefix="lightkit-images") as pool,
    ):
        yield from map_in_order(pool, work, paths, ahead=ahead)


def _prepare_image(
    path: str, prepare: Callable[[Image.Image], T], find_ready: Callable[[str], T | None]
) -> PreparedImage[T]:
    if (ready := find_ready(path)) is not None:
        return PreparedImage(path, ready, None)
    image, defect = try_read_rgb(path)
    if image is None:
        return PreparedImage(path, None, defect)
    try:
        return PreparedImage(path, prepare(image), None)
    except (MemoryError, OverflowError, ValueError) as error:
        # of one that is a thousand times as long as wide
        reason = str(error) or "too much memory"
        return PreparedImage(
            path, None, f"{image.width} x {image.height} pixels cannot be prepared ({reason})"
        )
    except Exception as error:  # the user's own function raises anything; its traceback stays
        raise RuntimeError(
            f"{visible(path)}: its preprocessing fails: {type(error).__name__}: {error}"
        ) from error


def count_threads() -> int:
    """Count the images that are read at a time: as many as this process has cores, at most 8."""
    return max(
        1,
        min(_MAX_THREADS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4),
    )


def map_in_order(
    pool: ThreadPoolExecutor, work: Callable[[T], R], items: Iterable[T], *, ahead: int
) -> Iterator[R]:
    """Yield the result of each item, in their order.

    Work that has not begun when the consumer stops is not done.

    Args:
        pool: Runs the work.
        work: Applied to each item; its exceptions are raised here.
        items: May be without end.
        ahead: Number of items that are worked on at most before their results are asked for.
    """
    futures: deque[Future[R]] = deque()
    try:
        for item in items:
            futures.append(pool.submit(work, item))
            if len(futures) > ahead:
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()
    finally:
        for future in futures:
            future.cancel()
