"""An image becomes, to the last bit, what the data modules make of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from lightkit.images.image_file import read_rgb
from lightkit.images.preprocessing import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Preprocessing,
    preprocessing_of,
)
from tests.data.torchvision_reference import eval_transform

PHOTOS = Path(__file__).parents[2].parent / "shared" / "data" / "flower_photos"
SIZES = [
    (1, 1),
    (2, 3),
    (7, 200),
    (200, 7),
    (64, 64),
    (36, 36),
    (37, 36),
    (320, 241),
    (1999, 31),
    (31, 1999),
]


def noise(width: int, height: int) -> Image.Image:
    random = np.random.default_rng(width * 10_000 + height)
    return Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize("size", SIZES, ids=[f"{width}x{height}" for width, height in SIZES])
@pytest.mark.parametrize("image_size", [32, 57])
def test_it_equals_the_data_modules_transform(size: tuple[int, int], image_size: int) -> None:
    image = noise(*size)
    assert np.array_equal(
        preprocessing_of(image_size)(image), eval_transform(image_size)(image).numpy()
    )


def test_it_equals_the_data_modules_transform_on_photos() -> None:
    if not PHOTOS.is_dir():
        pytest.skip(f"needs the flower photos in {PHOTOS}")
    for path in sorted(PHOTOS.glob("*/*.jpg"))[::97]:
        image = read_rgb(path)
        assert np.array_equal(preprocessing_of(224)(image), eval_transform(224)(image).numpy()), (
            path
        )


@pytest.mark.parametrize("size", [(20, 20), (20, 41), (41, 20), (23, 90)], ids=str)
def test_a_crop_beyond_the_image_is_black_as_in_torchvision(size: tuple[int, int]) -> None:
    said = Preprocessing(resize=20, crop=(33, 26), mean=IMAGENET_MEAN, std=IMAGENET_STD)
    steps = [v2.Resize(20, antialias=True), v2.CenterCrop([33, 26]), v2.ToImage()]
    steps += [
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(mean=list(IMAGENET_MEAN), std=list(IMAGENET_STD)),
    ]
    image = noise(*size)
    assert np.array_equal(said(image), v2.Compose(steps)(image).numpy())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"resize": "big"}, "preprocessing: expected resize"),
        ({"resize": True}, "preprocessing: expected resize"),
        ({"crop": [2]}, "preprocessing: expected resize"),
        ({"crop": [2, 0]}, "preprocessing: expected resize"),
        ({"crop": 2}, "preprocessing: expected resize"),
        ({"mean": [0, "x", 0]}, "preprocessing: expected resize"),
        ({"std": [0.5, 0.5]}, "preprocessing: expected resize"),
        ({"std": [0.5, 0, 0.5]}, "preprocessing: expected resize"),
    ],
)
def test_a_record_of_other_types_is_reported_with_the_field(
    changes: dict[str, object], says: str
) -> None:
    record = {"resize": 4, "crop": [2, 2], "mean": [0, 0, 0], "std": [1, 1, 1]}
    assert Preprocessing.from_dict(record).crop == (2, 2)
    with pytest.raises(TypeError, match=says):
        Preprocessing.from_dict({**record, **changes})
