"""A picture of the first training batch, as the network sees it."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from lightkit.images.preprocessing import Preprocessing
from lightkit.runs.files import atomic_write

_log = logging.getLogger("lightkit")
_NUM_IMAGES = 16
_SIDE = 128
_QUALITY = 80
_CHANNELS = 3


def try_batch_mosaic(batch: Any, data: object, folder: Path) -> None:
    """Write ``figures/train-batch.jpg`` of a batch of images.

    Of another batch, or where it fails, nothing.
    """
    try:
        pixels = find_images(batch)
        if pixels is None:
            return
        preprocessing = getattr(data, "preprocessing", None)
        images = restore_colors(
            pixels, preprocessing if isinstance(preprocessing, Preprocessing) else None
        )
        with atomic_write(folder / "figures" / "train-batch.jpg", durable=False) as aside:
            join_images(images).save(aside, "JPEG", quality=_QUALITY)
    except (OSError, ValueError, RuntimeError) as error:  # no training fails by a picture of it
        _log.debug("figures/train-batch.jpg was not written: %s", error)


def find_images(batch: Any) -> Tensor | None:
    """Return the first images of a batch, ``(images, 3, height, width)`` on the CPU.

    None where it has none.
    """
    values = [batch]
    if isinstance(batch, Mapping):
        values = list(batch.values())
    elif isinstance(batch, list | tuple):
        values = list(batch)
    for value in values:
        if (
            isinstance(value, Tensor)
            and value.ndim == 4
            and value.shape[1] == _CHANNELS
            and len(value)
        ):
            return value[:_NUM_IMAGES].detach().to("cpu", torch.float32)
    return None


def restore_colors(pixels: Tensor, preprocessing: Preprocessing | None) -> NDArray[np.uint8]:
    """Turn images into uint8 ``(images, height, width, 3)`` in RGB.

    Args:
        pixels: ``(images, 3, height, width)``.
        preprocessing: Whose mean and standard deviation were taken off; without it each image is
            stretched between its least and its greatest value.
    """
    if preprocessing is not None and len(preprocessing.mean) == _CHANNELS:
        mean = torch.tensor(preprocessing.mean)[:, None, None]
        std = torch.tensor(preprocessing.std)[:, None, None]
        scaled = pixels * std + mean
        if preprocessing.channel_order == "BGR":
            scaled = scaled.flip(1)
    else:
        least = pixels.amin(dim=(1, 2, 3), keepdim=True)
        scaled = (pixels - least) / (pixels.amax(dim=(1, 2, 3), keepdim=True) - least).clamp(
            min=1e-12
        )
    whole = (scaled.nan_to_num(0).clamp(0, 1) * 255).round().to(torch.uint8)
    array: NDArray[np.uint8] = whole.permute(0, 2, 3, 1).numpy()
    return array


def join_images(images: NDArray[np.uint8]) -> Image.Image:
    """Join images into one, row by row, each at most 128 pixels wide and high."""
    columns = math.ceil(math.sqrt(len(images)))
    rows = math.ceil(len(images) / columns)
    scale = min(1.0, _SIDE / max(images.shape[1:3]))
    height, width = (max(1, round(side * scale)) for side in images.shape[1:3])
    joined = Image.new("RGB", (columns * (width + 2) - 2, rows * (height + 2) - 2), "white")
    for at, image in enumerate(images):
        row, column = divmod(at, columns)
        tile = Image.fromarray(image).resize((width, height))
        joined.paste(tile, (column * (width + 2), row * (height + 2)))
    return joined
