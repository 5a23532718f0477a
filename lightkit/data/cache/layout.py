"""Where each image lies in a file of decoded images, and by what that file is known."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import PIL
from PIL import features

from lightkit.images.preprocessing import Preprocessing, resized_size

__all__ = ["INDEX", "FoundPhoto", "Layout", "is_kept", "layout_of", "num_bytes"]

INDEX = np.dtype([("offset", "<u8"), ("height", "<u4"), ("width", "<u4"), ("crc", "<u4"), ("unused", "<u4")])
"""Of one image: its first byte, its size in pixels (0 where it is not in the file), the CRC-32 of its pixels."""

_READING = 1  # raise it with every change of lightkit.images that gives other pixels for the same file
_LONGEST = 8
_NUM_CHANNELS = 3


class FoundPhoto(Protocol):
    """What is asked of a photo that a scan has found."""

    @property
    def path(self) -> Path:
        """Its file."""

    @property
    def digest(self) -> str:
        """SHA-256 of the file, in hexadecimal."""

    @property
    def height(self) -> int:
        """Rows of pixels, upright."""

    @property
    def width(self) -> int:
        """Columns of pixels, upright."""


@dataclass(frozen=True)
class Layout:
    """The images of a file in their order, each content once.

    Args:
        photos: By their digests, which makes the order the same however they are split and named.
        shorter: Shorter side of each, in pixels.
        index: One `INDEX` each; offsets count from the first pixel of the first image.
        key: SHA-256 over all that decides the pixels, in hexadecimal.
    """

    photos: list[FoundPhoto]
    shorter: int
    index: np.ndarray[Any, Any]
    key: str

    @property
    def num_pixel_bytes(self) -> int:
        """Bytes of all images."""
        return int(self.index["offset"][-1]) + num_bytes(self.index[-1]) if self.photos else 0

    @property
    def file_name(self) -> str:
        """The same for the same content, another for any other."""
        return f"{self.key[:40]}.pixels"


def layout_of(photos: Iterable[FoundPhoto], shorter: int) -> Layout:
    """Lay out the photos that are kept, see `is_kept`.

    Args:
        photos: In any order; of those with the same digest one is taken.
        shorter: Shorter side that each is resized to, in pixels.
    """
    by_digest = {photo.digest: photo for photo in photos if is_kept(photo)}
    kept = [by_digest[digest] for digest in sorted(by_digest)]
    sizes = np.array([resized_size(photo.height, photo.width, shorter) for photo in kept], np.uint64).reshape(-1, 2)
    index = np.zeros(len(kept), dtype=INDEX)
    index["height"], index["width"] = sizes.T
    index["offset"][1:] = np.cumsum(sizes.prod(axis=1) * _NUM_CHANNELS)[:-1]
    return Layout(kept, shorter, index, _key_of(kept, shorter))


def is_kept(photo: FoundPhoto) -> bool:
    """Tell whether a photo's shape lets it be kept: a line of pixels, resized, would take the room of thousands."""
    shorter, longer = sorted((photo.height, photo.width))
    return 0 < longer <= _LONGEST * shorter


def num_bytes(row: np.ndarray[Any, Any]) -> int:
    """Give the bytes of the image that a row of the index describes."""
    return int(row["height"]) * int(row["width"]) * _NUM_CHANNELS


def _key_of(photos: Iterable[FoundPhoto], shorter: int) -> str:
    decided_by = {
        "reading": _READING,
        "pillow": PIL.__version__,
        "jpeg": features.version_feature("libjpeg_turbo") or features.version_codec("jpg"),
        "interpolation": Preprocessing.__dataclass_fields__["interpolation"].default,
        "shorter": shorter,
    }
    digest = hashlib.sha256(json.dumps(decided_by, sort_keys=True).encode())
    for photo in photos:
        digest.update(f"\n{photo.digest} {photo.height} {photo.width}".encode())
    return digest.hexdigest()
