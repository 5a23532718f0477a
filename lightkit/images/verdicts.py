"""Whether image files can be used, found out by decoding each of them once."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import PIL
from PIL import Image, ImageFile, features

from lightkit.hardware.cache_folder import cache_folder
from lightkit.images.ahead import in_order
from lightkit.images.decoding import num_threads
from lightkit.images.file_digests import CACHE_NAME, digest_of, is_settled, state_of
from lightkit.images.reading import (
    DECODE_ERRORS,
    frame_of,
    orientation_of,
    over_white,
    pillow_warnings,
    reason_of,
)
from lightkit.images.verdict_cache import Verdict, VerdictCache

__all__ = ["Verdict", "verdicts"]

_RULES = 2  # raise it with every change of what is found, so that nobody is given an older verdict
_AHEAD = 256  # files that are looked at before anybody asks for them
_MOST_PIXELS = 64_000_000  # decoded at a time, of up to 4 bytes each
_LARGE_PIXELS = 16_000_000  # see _Judge
_ON_THE_SIDE = (5, 6, 7, 8)  # orientations that swap height and width


def verdicts(paths: Iterable[Path]) -> Iterator[Verdict]:
    """Read and decode each file once, in threads, and give what was found in the order of the paths.

    What was found is kept by content in `$XDG_CACHE_HOME/lightkit`, and so is the digest of the content by path, size,
    times, inode and device, so that the next time only files are read that are new or were touched. One that was
    changed less than two seconds before it was read is read again: a later change might not show in its times. What is
    no property of the content, such as a file that may not be read, is not kept. Where a file system tells no change,
    removing ``image-verdicts.sqlite`` there has all files read again.

    Args:
        paths: Files, which may be gone by now. Few are in memory at a time, however many or large they are.
    """
    folder = cache_folder()
    cache = VerdictCache(None if folder is None else folder / CACHE_NAME, rules=_rules())
    with (
        cache,
        pillow_warnings(),
        ThreadPoolExecutor(1, thread_name_prefix="lightkit-large") as large,
        ThreadPoolExecutor(num_threads(), thread_name_prefix="lightkit-verdicts") as pool,
    ):
        yield from in_order(pool, _Judge(cache, large), paths, ahead=_AHEAD)


def _rules() -> str:
    """Give what decides beside the content: this module, Pillow and its settings."""
    formats = [name for name in ("avif", "jpg_2000", "libtiff", "webp") if features.check(name)]
    limits = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)
    return repr((_RULES, PIL.__version__, formats, limits))


class _Judge:
    """Judges files, from several threads.

    Large images are all decoded in one thread of their own: glibc keeps what a thread has freed for that thread, so
    that otherwise each would in the end hold as much as the largest image takes.

    Args:
        cache: Asked first, and told.
        large: That thread.
    """

    def __init__(self, cache: VerdictCache, large: Executor) -> None:
        self._cache = cache
        self._large = large
        self._budget = _Budget(_MOST_PIXELS)

    def __call__(self, path: Path) -> Verdict:
        try:
            known = self._known(path)
            return self._read(path) if known is None else known
        except (OSError, ValueError) as error:  # a name may hold what no file system knows
            return Verdict("", reason_of(error))

    def _known(self, path: Path) -> Verdict | None:
        """Give what is known of a file without reading it."""
        digest = self._cache.digest_of(os.path.abspath(path), state_of(os.stat(path)))  # noqa: PTH100, PTH116 (faster)
        return None if digest is None else self._cache.get(digest)

    def _read(self, path: Path) -> Verdict:
        # without waiting for the other end, if it is a pipe
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return Verdict("", "neither a file nor a folder")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                return self._of_file(file, path)
        finally:
            os.close(descriptor)

    def _of_file(self, file: BinaryIO, path: Path) -> Verdict:
        before, begun_ns = os.fstat(file.fileno()), _now_ns()
        digest = digest_of(file)
        verdict, is_lasting = self._cache.get(digest), False
        if verdict is None:
            file.seek(0)
            verdict, is_lasting = self._looked_at(file, digest)
        if state_of(before) != state_of(os.fstat(file.fileno())):  # the digest may be that of neither
            return verdict
        if is_lasting:
            self._cache.put(verdict)
        if is_settled(before, begun_ns):
            self._cache.put_digest(os.path.abspath(path), state_of(before), digest)  # noqa: PTH100
        return verdict

    def _looked_at(self, file: BinaryIO, digest: str) -> tuple[Verdict, bool]:
        """Give the verdict, and whether it is one on the content."""
        try:
            with Image.open(file) as image, self._budget.of(image.width * image.height):
                size = image.size
                image.draft(None, (image.width // 8, image.height // 8))  # reads all of a JPEG, in less time and memory
                if image.width * image.height > _LARGE_PIXELS:
                    return self._large.submit(_seen, image, size, digest).result(), True
                return _seen(image, size, digest), True
        except DECODE_ERRORS as error:
            depends = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno is not None)
            return Verdict(digest, reason_of(error)), not depends


def _now_ns() -> int:
    return time.time_ns()


def _seen(image: Image.Image, stored: tuple[int, int], digest: str) -> Verdict:
    """Decode an image.

    Args:
        image: It, open.
        stored: Its width and height, of which it may be decoded to less.
        digest: Of its file.
    """
    orientation = orientation_of(frame_of(image))
    over_white(image.crop((0, 0, 1, 1)))  # some kinds of pixels cannot be converted
    height, width = stored if orientation in _ON_THE_SIDE else reversed(stored)
    return Verdict(digest, None, height, width, is_jpeg=_is_plain_jpeg(image, orientation))


def _is_plain_jpeg(image: Image.Image, orientation: int) -> bool:
    if image.format not in ("JPEG", "MPO") or image.mode not in ("L", "RGB"):
        return False
    if "exif" not in image.info:
        return orientation == 1  # else XMP says it, which few decoders read
    exif = Image.Exif()
    try:
        exif.load(image.info["exif"])
    except DECODE_ERRORS:
        return False
    return bool(exif.get(0x0112, 1) == orientation)


class _Budget:
    """Lets threads wait until as many pixels are free as they need; an image of more gets its turn alone.

    Args:
        total: Pixels.
    """

    def __init__(self, total: int) -> None:
        self._total, self._used = total, 0
        self._freed = threading.Condition()

    @contextmanager
    def of(self, pixels: int) -> Iterator[None]:
        """Hold so many pixels within the block."""
        with self._freed:
            self._freed.wait_for(lambda: self._used == 0 or self._used + pixels <= self._total)
            self._used += pixels
        try:
            yield
        finally:
            with self._freed:
                self._used -= pixels
                self._freed.notify_all()
