"""Decoding the photos of a layout into a file, in threads, aside and renamed when all is there."""

from __future__ import annotations

import errno
import logging
import os
import secrets
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from lightkit.data.cache.layout import FoundPhoto, Layout
from lightkit.data.cache.locks import is_gone, own, use
from lightkit.data.cache.pixel_file import PixelFile, file_bytes, head_bytes, opened
from lightkit.data.splits import content_digest
from lightkit.hardware.processor import num_cores
from lightkit.images.preprocessing import resized
from lightkit.images.reading import decoded, pillow_warnings

__all__ = ["UNFINISHED", "built"]

log = logging.getLogger("lightkit.data")

UNFINISHED = ".part"
_MOST_THREADS = 16  # Python's part of a decoded image leaves no work for more
_EVERY_S = 30.0


def built(layout: Layout, folder: Path, *, is_temporary: bool) -> PixelFile | None:
    """Write the file of a layout, and open it; its name appears when it is whole.

    A photo that has changed or vanished since the scan is left out of it.

    Args:
        layout: What is decoded.
        folder: Where the file is written.
        is_temporary: As in `PixelFile`.

    Returns:
        The open file; None if somebody has removed it already.

    Raises:
        OSError: If there is no room, or no permission.
    """
    aside, descriptor = _unfinished(folder, layout.file_name)
    try:
        index = layout.index.copy()
        head = head_bytes(index, key=layout.key, num_pixel_bytes=layout.num_pixel_bytes)
        _allocate(descriptor, file_bytes(len(index), layout.num_pixel_bytes))
        _decode_all(layout, index, lambda content, offset: _write(descriptor, content, len(head) + offset))
        _write(descriptor, head_bytes(index, key=layout.key, num_pixel_bytes=layout.num_pixel_bytes), 0)
        os.fsync(descriptor)
        aside.rename(folder / layout.file_name)
        use(descriptor)
        return opened(folder / layout.file_name, key=layout.key, is_temporary=is_temporary, checks_pixels=False)
    finally:
        aside.unlink(missing_ok=True)
        os.close(descriptor)


def _unfinished(folder: Path, name: str) -> tuple[Path, int]:
    """Make a file that `remove_unused` leaves alone while this process lives."""
    while True:
        aside = folder / f".{name}.{secrets.token_hex(4)}{UNFINISHED}"
        descriptor = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        own(descriptor)
        if not is_gone(descriptor):  # somebody who cleans up may have been quicker than the lock
            return aside, descriptor
        os.close(descriptor)


def _allocate(descriptor: int, num_bytes: int) -> None:
    """Ask for all of it at once: a full disk is an error now, and not after an hour, or for whoever maps the file."""
    try:
        os.posix_fallocate(descriptor, 0, num_bytes)
    except AttributeError:  # macOS
        os.ftruncate(descriptor, num_bytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # the file system cannot
            raise
        os.ftruncate(descriptor, num_bytes)


def _decode_all(layout: Layout, index: np.ndarray[Any, Any], write: Callable[[bytes, int], None]) -> None:
    """Decode each photo in one of several threads, and complete its row of the index."""
    slots, guard, stopped = iter(range(len(index))), threading.Lock(), threading.Event()

    def work() -> None:
        try:
            while not stopped.is_set():
                with guard:
                    slot = next(slots, None)
                if slot is None:
                    return
                _decode_one(layout, index, slot, write)
                advance()
        except BaseException:
            stopped.set()
            raise

    num_threads = max(1, min(_MOST_THREADS, num_cores() or 1, len(index)))
    with _progress(len(index)) as advance, pillow_warnings(), ThreadPoolExecutor(num_threads) as pool:
        try:
            for ended in [pool.submit(work) for _ in range(num_threads)]:
                ended.result()
        finally:
            stopped.set()


def _decode_one(layout: Layout, index: np.ndarray[Any, Any], slot: int, write: Callable[[bytes, int], None]) -> None:
    row = index[slot]  # a view: what is set here is set in the index
    content = _content(layout.photos[slot], layout.shorter, (int(row["height"]), int(row["width"])))
    if content is None:
        row["height"] = row["width"] = 0
    else:
        row["crc"] = zlib.crc32(content)
        write(content, int(row["offset"]))


def _content(photo: FoundPhoto, shorter: int, size: tuple[int, int]) -> bytes | None:
    """Give the pixels of a photo as they are kept, or nothing where the file is not what the scan has seen."""
    image, _ = decoded(str(photo.path))
    if image is None or (image.height, image.width) != (photo.height, photo.width):
        return None
    try:
        if content_digest(photo.path) != photo.digest:
            return None
    except OSError:
        return None
    small = resized(image, shorter)
    return small.tobytes() if (small.height, small.width) == size else None


def _write(descriptor: int, content: bytes, offset: int) -> None:
    """Write all of it: into a map, what does not fit would end the process without a word."""
    rest = memoryview(content)
    while rest:
        num = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[num:], offset + num


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """Show a bar on a terminal, and a line now and then elsewhere; threads may advance it."""
    console = Console(stderr=True)
    if console.is_terminal and log.isEnabledFor(logging.INFO):
        columns = (TextColumn("decoding"), BarColumn(), MofNCompleteColumn(), TextColumn("photos"))
        with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
            task = bar.add_task("", total=total)
            yield lambda: bar.advance(task)
        return
    guard, num, told = threading.Lock(), 0, time.monotonic()

    def tell() -> None:
        nonlocal num, told
        with guard:
            num += 1
            if time.monotonic() - told >= _EVERY_S:
                told = time.monotonic()
                log.info("data: %d of %d photos decoded", num, total)

    yield tell
