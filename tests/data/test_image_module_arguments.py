"""Arguments that cannot be meant end a command before anything is read."""

from __future__ import annotations

from typing import Any

import pytest

from lightkit.data.fashion_mnist import FashionMNIST
from lightkit.data.image_folder import ImageFolder
from lightkit.data.tables.module import Table
from lightkit.errors import ConfigError

CROP = r"crop_scale: expected two shares of the area, above 0 up to 1, the lower one first, got "
JITTER = r"color_jitter: expected a number from 0 to 1, got "
SHARED: list[tuple[dict[str, Any], str]] = [
    ({"batch_size": 0}, r"batch_size: expected 1 or more, got 0"),
    ({"batch_size": -1}, r"batch_size: expected 1 or more, got -1"),
    ({"image_size": 0}, r"image_size: expected 1 or more, got 0"),
    ({"prefetch_factor": 0}, r"prefetch_factor: expected 1 or more, got 0"),
    ({"num_workers": -1}, r"num_workers: expected 0 or more(, or auto)?, got -1"),
    ({"crop_scale": (0.9, 0.1)}, CROP + r"\(0\.9, 0\.1\)"),
    ({"crop_scale": (0.0, 0.0)}, CROP + r"\(0\.0, 0\.0\)"),
    ({"crop_scale": (2.0, 3.0)}, CROP + r"\(2\.0, 3\.0\)"),
    ({"crop_scale": (float("nan"), 1.0)}, CROP + r"\(nan, 1\.0\)"),
    ({"color_jitter": 5.0}, JITTER + r"5\.0"),
    ({"color_jitter": -1.0}, JITTER + r"-1\.0"),
    ({"image_size": None}, r"image_size: expected 1 or more, got null"),
]


@pytest.mark.parametrize("kind", [ImageFolder, FashionMNIST, Table])
@pytest.mark.parametrize(
    ("given", "says"), SHARED, ids=lambda value: str(value) if isinstance(value, dict) else ""
)
def test_every_data_module_refuses_them(kind: Any, given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=rf"^data\.init_args\.{says}\.$") as raised:
        kind("nowhere", **given)
    assert raised.value.exit_code == 2


def test_kept_images_that_every_crop_would_enlarge_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"cache_size: expected at least data.init_args.image_size \(64 pixels\)"
    ):
        ImageFolder("nowhere", image_size=64, cache_size=63)


@pytest.mark.parametrize(
    "given",
    [
        {"crop_scale": (1.0, 1.0), "color_jitter": 1.0},
        {"crop_scale": [0.08, 1], "color_jitter": 0},
        {"cache_size": 64, "image_size": 64},
        {"num_workers": "auto"},
        {"num_workers": 0, "max_bad_fraction": 0},
    ],
    ids=str,
)
def test_the_ends_of_a_range_belong_to_it(given: dict[str, Any]) -> None:
    ImageFolder("nowhere", **given)
