"""The picture of the first training batch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from PIL import Image

from lightkit.callbacks.batch_mosaic import (
    find_images,
    join_images,
    restore_colors,
    try_batch_mosaic,
)
from lightkit.images.preprocessing import Preprocessing

PREPROCESSING = Preprocessing(resize=8, crop=(8, 8), mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.1))


def test_colours_are_those_before_the_normalisation() -> None:
    whole = torch.tensor([255, 128, 0], dtype=torch.float32)[:, None, None].expand(3, 8, 8)
    normal = (whole / 255 - torch.tensor(PREPROCESSING.mean)[:, None, None]) / torch.tensor(
        PREPROCESSING.std
    )[:, None, None]
    found = restore_colors(normal[None], PREPROCESSING)
    assert found.shape == (1, 8, 8, 3)
    assert found[0, 0, 0].tolist() == [255, 128, 0]


def test_without_a_preprocessing_an_image_is_stretched() -> None:
    found = restore_colors(torch.linspace(-3, 9, 3 * 64).reshape(1, 3, 8, 8), None)
    assert (found.min(), found.max()) == (0, 255)


def test_sixteen_images_become_four_rows() -> None:
    joined = join_images(np.zeros((16, 64, 32, 3), dtype=np.uint8))
    assert joined.size == (4 * 32 + 3 * 2, 4 * 64 + 3 * 2)


def test_a_batch_of_images_is_written_and_another_is_not(tmp_path: Path) -> None:
    data = SimpleNamespace(preprocessing=PREPROCESSING)
    try_batch_mosaic((torch.zeros(4, 7), torch.zeros(4)), data, tmp_path)
    assert not list(tmp_path.iterdir())
    try_batch_mosaic((torch.zeros(40, 3, 8, 8), torch.zeros(40)), data, tmp_path)
    with Image.open(tmp_path / "figures" / "train-batch.jpg") as mosaic:
        assert mosaic.size == (4 * 8 + 6, 4 * 8 + 6)
    found = find_images({"pixels": torch.zeros(2, 3, 8, 8, dtype=torch.float16)})
    assert found is not None
    assert found.dtype == torch.float32
