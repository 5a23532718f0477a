"""A file of decoded images: a head that says what it is and where each image lies, then pixels, mapped into memory.

The head holds its own CRC-32 and one of each image, so that a file that was cut, damaged or made for something else is
found when it is opened.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import numpy as np

from lightkit.data.cache.layout import INDEX, num_bytes
from lightkit.data.cache.locks import is_gone, remove_after_last_use, use
from lightkit.hardware.processor import num_cores

__all__ = ["BrokenFileError", "PixelFile", "file_bytes", "head_bytes", "identity_of", "opened"]

VERSION = 1
_MAGIC = b"lightkit"
_HEAD = struct.Struct("<8sII32sQQ")  # magic, version, CRC-32 of head and index with 0 here, key, images, file's length
_PAGE = 4096
_MOST_THREADS = 16
_IMAGES_AT_A_TIME = 64
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)  # named from Python 3.13 on

Index = np.ndarray[Any, Any]
Identity = tuple[int, int]


class BrokenFileError(Exception):
    """A file that is not what it should be.

    Args:
        reason: In a few words.
        identity: Which file it was, see `identity_of`.
    """

    def __init__(self, reason: str, *, identity: Identity) -> None:
        super().__init__(reason)
        self.identity = identity


class PixelFile:
    """An open file of decoded images, held so that nobody removes it.

    It stays readable if its name is removed. A worker process that was forked shares the map; one that was spawned
    gets the name and opens it again.

    Args:
        path: Its name.
        descriptor: Of the open file, held with `use`; closed with this object.
        index: One `INDEX` an image.
        key: What it holds, see `Layout`.
        is_temporary: Remove it after its last user.
    """

    def __init__(self, path: Path, descriptor: int, index: Index, *, key: str, is_temporary: bool) -> None:
        self.path = path
        self.index = index
        self.key = key
        self.is_temporary = is_temporary
        self.inode = os.fstat(descriptor).st_ino
        # A private map is one that torch may take without a warning that it cannot be written; what somebody did write
        # would stay in that process. Without a reserve, because the pages are the file's.
        self._map = mmap.mmap(
            descriptor, 0, flags=mmap.MAP_PRIVATE | _NO_RESERVE, prot=mmap.PROT_READ | mmap.PROT_WRITE
        )
        # multiprocessing's finalizers run when its workers have ended, and never in a process that was forked off
        Finalize(self, _release, args=(path, descriptor, is_temporary), exitpriority=-100)

    def image(self, slot: int) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
        """Give uint8 ``(height, width, 3)`` without a copy; None where that image could not be decoded."""
        row = self.index[slot]
        if not row["height"]:
            return None
        start = _first_pixel(len(self.index)) + int(row["offset"])
        pixels = np.frombuffer(self._map, dtype=np.uint8, count=num_bytes(row), offset=start)
        return pixels.reshape(int(row["height"]), int(row["width"]), 3)

    @property
    def num_bytes(self) -> int:
        """Bytes of the file."""
        return len(self._map)


def opened(path: Path, *, key: str, is_temporary: bool = False, checks_pixels: bool = True) -> PixelFile | None:
    """Open a file after checking it; None where there is none.

    Args:
        path: Of the file.
        key: What it should hold.
        is_temporary: As in `PixelFile`.
        checks_pixels: Compare the CRC-32 of each image too, which takes about 0.7 s a GB of one core, shared by all.

    Raises:
        BrokenFileError: If it is not the file that it should be, or was damaged.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BrokenFileError(error.strerror or str(error), identity=identity_of(path.stat())) from error
    try:
        use(descriptor)
        if is_gone(descriptor):
            os.close(descriptor)
            return None
        index = _checked_head(descriptor, key)
        if checks_pixels:
            _check_pixels(descriptor, index)
        with suppress(OSError):  # another user's; when it was last used decides what goes first
            os.utime(descriptor)
        return PixelFile(path, descriptor, index, key=key, is_temporary=is_temporary)
    except BaseException:
        os.close(descriptor)
        raise


def identity_of(found: os.stat_result) -> Identity:
    """Tell one file from a later one of the same name, which may have got the same number."""
    return found.st_ino, found.st_ctime_ns


def head_bytes(index: Index, *, key: str, num_pixel_bytes: int) -> bytes:
    """Give what stands before the pixels; those start where it ends."""
    length = file_bytes(len(index), num_pixel_bytes)
    padding = bytes(_first_pixel(len(index)) - _HEAD.size - index.nbytes)
    content = index.tobytes() + padding
    head = (_MAGIC, VERSION, 0, bytes.fromhex(key), len(index), length)
    crc = zlib.crc32(content, zlib.crc32(_HEAD.pack(*head)))
    return _HEAD.pack(*head[:2], crc, *head[3:]) + content


def file_bytes(num_images: int, num_pixel_bytes: int) -> int:
    """Give the length of a file."""
    return _first_pixel(num_images) + num_pixel_bytes


def _first_pixel(num_images: int) -> int:
    return -(-(_HEAD.size + num_images * INDEX.itemsize) // _PAGE) * _PAGE


def _checked_head(descriptor: int, key: str) -> Index:
    found = os.fstat(descriptor)

    def check(is_right: bool, reason: str) -> None:
        if not is_right:
            raise BrokenFileError(reason, identity=identity_of(found))

    start = os.pread(descriptor, _HEAD.size, 0)
    check(len(start) == _HEAD.size, f"only {found.st_size} bytes long")
    magic, version, crc, found_key, num_images, length = _HEAD.unpack(start)
    check(magic == _MAGIC, "not a file of decoded images")
    check(version == VERSION, f"of version {version}, not {VERSION}")
    check(length == found.st_size, f"{found.st_size} bytes long in place of {length}")
    check(_first_pixel(num_images) <= length, "its head is damaged")
    content = _read(descriptor, _first_pixel(num_images) - _HEAD.size, _HEAD.size)
    zeroed = _HEAD.pack(magic, version, 0, found_key, num_images, length)
    check(zlib.crc32(content, zlib.crc32(zeroed)) == crc, "its head is damaged")
    check(found_key.hex() == key, "it holds other images")
    return np.frombuffer(content, dtype=INDEX, count=num_images)


def _check_pixels(descriptor: int, index: Index) -> None:
    starts = range(0, len(index), _IMAGES_AT_A_TIME)
    with ThreadPoolExecutor(min(_MOST_THREADS, num_cores() or 1)) as pool:
        broken = sum(pool.map(lambda start: _num_broken(descriptor, index, start), starts))
    if broken:
        identity = identity_of(os.fstat(descriptor))
        raise BrokenFileError(f"{broken} of {len(index)} images are damaged", identity=identity)


def _num_broken(descriptor: int, index: Index, start: int) -> int:
    """Count the damaged ones; read, not mapped, because a disk's error in a map would end the process."""
    first = _first_pixel(len(index))
    return sum(
        zlib.crc32(_read(descriptor, num_bytes(row), first + int(row["offset"]))) != row["crc"]
        for row in index[start : start + _IMAGES_AT_A_TIME]
    )


def _read(descriptor: int, num: int, offset: int) -> bytes:
    """Read all of so many bytes, or what there is of them; a disk's error reads as nothing."""
    parts = []
    while num > 0:
        try:
            part = os.pread(descriptor, num, offset)
        except OSError:
            break
        if not part:
            break
        parts.append(part)
        num, offset = num - len(part), offset + len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _release(path: Path, descriptor: int, is_temporary: bool) -> None:
    try:
        if is_temporary:
            remove_after_last_use(path, descriptor)
    finally:
        os.close(descriptor)
