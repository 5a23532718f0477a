"""Predicted masks as PNG files in the sizes of their images. No torch."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lightkit.errors import ConfigError, DataError
from lightkit.images.image_file import read_orientation, read_rgb
from lightkit.images.mask_file import overlay_mask, resize_mask, write_mask
from lightkit.runs.files import atomic_write

_SIDEWAYS = (5, 6, 7, 8)  # orientations that swap height and width
FOLDER_ENDING = "_masks"
"""After the name of a table without suffix: the folder of its masks."""


class MaskFiles:
    """A folder of predicted masks, each named after its image.

    Args:
        folder: Created with the first mask; files of equal names are replaced.
        num_classes: Number of classes.
    """

    def __init__(self, folder: Path, num_classes: int) -> None:
        self.folder = folder
        self._num_classes = num_classes
        self._taken: set[str] = set()

    def name(self, image: str) -> str:
        """Choose the name of the mask of an image: the image's, with a number where taken."""
        stem = Path(image).stem
        name = stem
        number = 2
        while name in self._taken:
            name = f"{stem}-{number}"
            number += 1
        self._taken.add(name)
        return f"{name}.png"

    def write(self, name: str, image: str | None, values: NDArray[Any]) -> NDArray[np.float32]:
        """Write a mask in the size of its image, and return the share of each class ``(classes,)``.

        Args:
            name: Of the file.
            image: The image; None, or one that cannot be read any more, for the size of the
                prediction.
            values: Probabilities ``(classes, height, width)``, or the number of the class
                ``(height, width)``. The former are resized (bilinear) before a class is chosen.

        Raises:
            ConfigError: If the folder is that of the image, which would be replaced.
        """
        if image is not None and Path(image).resolve() == (self.folder / name).resolve():
            raise ConfigError(
                f"{self.folder / name}: the mask would replace the image."
                " Name another table by --output."
            )
        size = None if image is None else _find_size(Path(image))
        mask = decide_mask(values, values.shape[-2:] if size is None else size)
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(self.folder / name, durable=False) as aside:
            write_mask(aside, mask, self._num_classes)
        counts = np.bincount(mask.ravel(), minlength=self._num_classes)[: self._num_classes]
        return np.asarray(counts / mask.size, np.float32)

    def overlay(self, name: str, image: str) -> Image.Image:
        """Lay a mask that was written over its image.

        Raises:
            DataError: If the image cannot be read.
        """
        picture = read_rgb(Path(image))
        try:
            with Image.open(self.folder / name) as file:
                return overlay_mask(picture, np.asarray(file), self._num_classes)
        except OSError as error:
            raise DataError(
                f"{self.folder / name}: this mask cannot be read any more ({error})."
            ) from error


def decide_mask(values: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """Choose the class of each pixel of an image of this size, see `MaskFiles.write`."""
    if values.ndim == 2:
        return resize_mask(values, size)
    if values.shape[1:] == size:
        return np.asarray(values.argmax(axis=0))
    height, width = size
    best = np.full(size, -np.inf, np.float32)
    mask = np.zeros(size, np.int64)
    # one at a time: of a large image each is large
    for number, of_class in enumerate(values.astype(np.float32)):
        enlarged = np.asarray(
            Image.fromarray(of_class).resize((width, height), Image.Resampling.BILINEAR)
        )
        is_better = enlarged > best
        mask[is_better] = number
        best = np.maximum(best, enlarged)
    return mask


def _find_size(image: Path) -> tuple[int, int] | None:
    """Return height and width of an image as it is looked at; None where it cannot be read."""
    with suppress(OSError, ValueError, Image.DecompressionBombError), Image.open(image) as file:
        width, height = file.size
        return (width, height) if read_orientation(file) in _SIDEWAYS else (height, width)
    return None
