"""What a sample's image becomes.

Random parts by (seed, epoch, index) alone, and the centre to the last bit.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from lightkit.data.image_dataset import Box, Decoded, Encoded, EvalView, TrainView, random_box
from lightkit.data.sampler import SampleKey
from lightkit.images.image_file import read_rgb
from lightkit.images.preprocessing import preprocessing_of

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "jitter": {"color_jitter": 0.5},
    "augment": {"rand_augment": True},
}


def decoded(height: int = 40, width: int = 56) -> Decoded:
    return Decoded(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_training_view_depends_on_seed_epoch_and_index_alone(options: dict[str, Any]) -> None:
    view = TrainView(16, **options)
    first = view(decoded(), 0, SampleKey(3, 1))
    torch.rand(3)
    random.random()
    assert (first.shape, first.dtype) == ((3, 16, 16), torch.uint8)
    assert torch.equal(first, view(decoded(), 0, SampleKey(3, 1)))
    for seed, key in ((1, SampleKey(3, 1)), (0, SampleKey(4, 1)), (0, SampleKey(3, 2))):
        assert not torch.equal(first, view(decoded(), seed, key))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_training_view_leaves_the_global_random_states_alone(options: dict[str, Any]) -> None:
    states = [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]  # type: ignore[index]
    TrainView(16, **options)(decoded(), 0, SampleKey(3, 1))
    assert states == [
        torch.get_rng_state().tolist(),
        random.getstate(),
        np.random.get_state()[1].tolist(),  # type: ignore[index]
    ]


@pytest.mark.parametrize(
    "options", [OPTIONS["jitter"], OPTIONS["augment"]], ids=["jitter", "augment"]
)
def test_what_is_asked_for_changes_the_image_besides(options: dict[str, Any]) -> None:
    keys = [SampleKey(index, 0) for index in range(8)]
    plain, changed = (
        [TrainView(16, **given)(decoded(), 0, key) for key in keys] for given in ({}, options)
    )
    assert any(not torch.equal(*pair) for pair in zip(plain, changed, strict=True))


def test_half_of_the_training_views_are_mirrored() -> None:
    ramp = np.repeat(np.arange(0, 200, dtype=np.uint8)[None, :, None], 200, axis=0).repeat(
        3, axis=2
    )
    view = TrainView(8)
    views = [view(Decoded(ramp), 0, SampleKey(index, 0))[0, 0].int() for index in range(200)]
    rises = [bool(row[-1] > row[0]) for row in views]
    assert 70 < sum(rises) < 130


def test_boxes_are_drawn_as_torchvision_draws_them() -> None:
    draw = random.Random(0)
    height, width, scale = 273, 366, (0.35, 1.0)
    image = torch.empty(3, height, width)
    torch.manual_seed(0)
    ours = [random_box(draw, (height, width), scale) for _ in range(1000)]
    theirs = [v2.RandomResizedCrop(8, scale=scale).make_params([image]) for _ in range(1000)]
    for name in ("top", "left", "height", "width"):
        mine = np.array([getattr(box, name) for box in ours])
        others = np.array([params[name] for params in theirs])
        error = np.hypot(mine.std(), others.std()) / np.sqrt(1000)
        assert abs(mine.mean() - others.mean()) < 4 * error, name
        assert mine.std() == pytest.approx(others.std(), rel=0.15), name


@pytest.mark.parametrize("size", [(1, 1), (1, 900), (900, 1), (2, 3), (5, 400)], ids=str)
@pytest.mark.parametrize("scale", [(0.35, 1.0), (0.0001, 0.0001), (1.0, 1.0)], ids=str)
def test_boxes_are_within_images_of_any_shape(
    size: tuple[int, int], scale: tuple[float, float]
) -> None:
    draw = random.Random(0)
    for _ in range(50):
        top, left, height, width = random_box(draw, size, scale)
        assert 0 <= top < top + height <= size[0]
        assert 0 <= left < left + width <= size[1]


def test_an_image_of_one_pixel_has_a_view() -> None:
    pixels = Decoded(np.full((1, 1, 3), 77, dtype=np.uint8))
    assert set(TrainView(16)(pixels, 0, SampleKey(0, 0)).flatten().tolist()) == {77}
    assert set(EvalView(preprocessing_of(16))(pixels, 0, SampleKey(0, 0)).flatten().tolist()) == {
        77
    }


def test_a_training_view_of_a_jpeg_is_that_of_its_pixels(photos: Path) -> None:
    view = TrainView(224)
    for index, path in enumerate(sorted(photos.glob("*/*.jpg"))[::80]):
        image = Decoded(np.asarray(read_rgb(path)))
        if min(image.size) >= 2 * 224:  # may be decoded coarsely
            continue
        key = SampleKey(index, 0)
        assert torch.equal(view(Encoded(path), 0, key), view(image, 0, key)), path


@pytest.mark.parametrize("image_size", [16, 224])
def test_an_evaluation_view_is_what_the_preprocessing_cuts(photos: Path, image_size: int) -> None:
    preprocessing = preprocessing_of(image_size)
    for path in sorted(photos.glob("*/*.jpg"))[::80]:
        expected = np.asarray(preprocessing.cropped(read_rgb(path)))
        found = EvalView(preprocessing)(Encoded(path), 0, SampleKey(0, 0))
        assert np.array_equal(found.permute(1, 2, 0).numpy(), expected), path


def test_a_crop_keeps_the_share_of_the_area_that_is_said() -> None:
    class Asked(Decoded):
        boxes: ClassVar[list[Box]] = []

        def cropped(self, box: Box, size: tuple[int, int]) -> torch.Tensor:
            self.boxes.append(box)
            return super().cropped(box, size)

    for index in range(50):
        TrainView(8, crop_scale=(0.2, 0.3))(
            Asked(np.zeros((40, 56, 3), np.uint8)), 0, SampleKey(index, 0)
        )
    shares = [box.height * box.width / (40 * 56) for box in Asked.boxes]
    assert min(shares) > 0.15
    assert max(shares) < 0.35
