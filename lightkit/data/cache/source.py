"""A split's images, decoded before: from the file that all processes share, or each time where there is none."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from lightkit.data.cache.layout import FoundPhoto, Layout, is_kept
from lightkit.data.cache.pixel_file import BrokenFileError, PixelFile, opened
from lightkit.data.pixels import Decoded, Pixels, PixelSource
from lightkit.images.preprocessing import resized

__all__ = ["CachedSource", "ResizedSource"]

log = logging.getLogger("lightkit.data")


class ResizedSource:
    """Images as a cache would give them, decoded and resized each time they are asked for.

    Args:
        photos: The split.
        files: Its files, in the same order.
        shorter: Shorter side in pixels.
    """

    def __init__(self, photos: Sequence[FoundPhoto], files: PixelSource, *, shorter: int) -> None:
        self.files = files
        self.shorter = shorter
        self._is_kept = np.array([is_kept(photo) for photo in photos], dtype=bool)

    def __len__(self) -> int:
        return len(self.files)

    def pixels(self, index: int, /) -> Pixels:
        """Give an image; one of extreme shape as its file holds it.

        Raises:
            UnreadableImageError: As the files' source.
        """
        pixels = self.files.pixels(index)
        return Decoded(np.array(resized(pixels.whole(), self.shorter))) if self._is_kept[index] else pixels

    def label(self, index: int, /) -> int:
        """Give its label."""
        return self.files.label(index)

    def name(self, index: int, /) -> str:
        """Give its path."""
        return self.files.name(index)


class CachedSource(ResizedSource):
    """Images out of a file of decoded images, without a copy; those that it does not hold are read from their files.

    It may be handed to other processes: not the pixels go there, but the file's name.

    Args:
        photos: The split.
        files: Its files, in the same order.
        layout: Of the file, in which all these photos are that can be kept.
        file: The open file.
    """

    def __init__(self, photos: Sequence[FoundPhoto], files: PixelSource, *, layout: Layout, file: PixelFile) -> None:
        super().__init__(photos, files, shorter=layout.shorter)
        self.file: PixelFile | None = file
        slots = {photo.digest: slot for slot, photo in enumerate(layout.photos)}
        self._slots = np.array([slots.get(photo.digest, -1) for photo in photos], dtype=np.int64)

    def pixels(self, index: int, /) -> Pixels:
        """Give an image.

        Raises:
            UnreadableImageError: If it is not in the file, and its own cannot be read.
        """
        slot = self._slots[index]
        image = None if self.file is None or slot < 0 else self.file.image(slot)
        return super().pixels(index) if image is None else Decoded(image)

    def __getstate__(self) -> dict[str, Any]:
        file = self.file
        return {**vars(self), "file": None if file is None else (file.path, file.key, file.is_temporary)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if state["file"] is not None:
            self.file = _reopened(*state["file"])


def _reopened(path: Any, key: str, is_temporary: bool) -> PixelFile | None:
    try:
        file = opened(path, key=key, is_temporary=is_temporary, checks_pixels=False)  # checked by who sent it
    except (BrokenFileError, OSError) as error:
        log.warning("data: %s cannot be opened (%s); this process decodes the photos itself", path, error)
        return None
    if file is None:
        log.warning("data: %s is gone; this process decodes the photos itself", path)
    return file
