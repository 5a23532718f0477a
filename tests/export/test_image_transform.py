"""Preprocessing in the graph gives the same pixels as Pillow.

To the last bit, in every runtime and at every size.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn

from lightkit.export.formats import FORMATS, open_model
from lightkit.export.image_transform import (
    ImageToProbabilities,
    ImageTransform,
    compute_probabilities,
    invert_probabilities,
)
from lightkit.export.metadata import Metadata, TensorSpec
from lightkit.export.target import ExportTarget
from lightkit.images.image_file import read_rgb
from lightkit.images.preprocessing import Preprocessing, preprocessing_of
from tests.data.torchvision_reference import eval_transform
from tests.export.specimens import PREPROCESSING, UNPROVED, noise, write_file

PHOTOS = Path(__file__).parents[2].parent / "shared" / "data" / "flower_photos"
SIZES = [
    (1, 1), (2, 3), (1, 9), (9, 1), (7, 200), (200, 7), (20, 20), (20, 41), (19, 20), (64, 64),
    (37, 36), (50, 100), (50, 101), (31, 1999), (1999, 31), (320, 241),
]  # fmt: skip


@settings(derandomize=True)
@given(
    size=st.tuples(st.integers(1, 90), st.integers(1, 220)),
    resize=st.integers(1, 40),
    crop=st.tuples(st.integers(1, 43), st.integers(1, 43)),
)
def test_any_size_equals_pillow(size: tuple[int, int], resize: int, crop: tuple[int, int]) -> None:
    said = Preprocessing(resize, crop, PREPROCESSING.mean, PREPROCESSING.std)
    images = noise(*size)
    assert np.array_equal(
        ImageTransform(said)(torch.from_numpy(images))[0].numpy(), said(Image.fromarray(images[0]))
    )


def test_photos_equal_the_data_modules_transform() -> None:
    if not PHOTOS.is_dir():
        pytest.skip(f"needs the flower photos in {PHOTOS}")
    prepare = ImageTransform(preprocessing_of(96))
    for path in sorted(PHOTOS.glob("*/*.jpg"))[::83]:
        image = read_rgb(path)
        found = prepare(torch.from_numpy(np.array(image))[None])[0]
        assert torch.equal(found, eval_transform(96)(image)), path


@pytest.fixture(
    scope="module",
    params=["torch_export", "torchscript", pytest.param("onnx", marks=pytest.mark.slow)],
)
def prepared_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The preprocessing alone, as a file of each format that runs, opened by its runtime."""
    metadata = Metadata(
        "",
        "Prepare",
        (TensorSpec("images", "uint8", (None, None, None, 3)),),
        (TensorSpec("pixels", "float32", (None, 3, 16, 16)),),
    )
    model = ImageTransform(PREPROCESSING).eval()
    path = tmp_path_factory.mktemp("prepared") / FORMATS[request.param].file
    target = ExportTarget(model, (torch.from_numpy(noise(30, 25, 2)),), metadata, UNPROVED)
    write_file(request.param, target, path)
    return open_model(path)


@pytest.mark.parametrize("size", SIZES, ids=[f"{width}x{height}" for width, height in SIZES])
def test_a_file_prepares_images_of_any_size(prepared_file: Any, size: tuple[int, int]) -> None:
    images = noise(*size, num=3)
    expected = np.stack([PREPROCESSING(Image.fromarray(image)) for image in images])
    assert np.array_equal(prepared_file([images])[0], expected)
    assert np.array_equal(prepared_file([images[:1]])[0], expected[:1])


@pytest.mark.parametrize("size", SIZES, ids=[f"{width}x{height}" for width, height in SIZES])
def test_the_whole_of_an_image_is_resized_as_pillow_does(size: tuple[int, int]) -> None:
    whole = replace(PREPROCESSING, is_whole=True)
    images = noise(*size, num=2)
    expected = np.stack([whole(Image.fromarray(image)) for image in images])
    assert np.array_equal(ImageTransform(whole)(torch.from_numpy(images)).numpy(), expected)


class SumsOfChannels(nn.Module):
    def forward(self, images: torch.Tensor) -> Any:
        return {"scores": images.sum((2, 3)), "other": images}


@pytest.mark.parametrize("activation", ["softmax", "sigmoid", "identity"])
def test_logits_become_probabilities_and_probabilities_stay(activation: Any) -> None:
    images = torch.from_numpy(noise(30, 20, 2))
    scores = ImageTransform(PREPROCESSING)(images).sum((2, 3))
    expected = {"softmax": scores.softmax(1), "sigmoid": scores.sigmoid(), "identity": scores}
    found = ImageToProbabilities(SumsOfChannels(), PREPROCESSING, activation)(images)
    assert torch.equal(found, expected[activation])


@pytest.mark.parametrize("is_pair", [False, True])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid", "identity"])
def test_probabilities_are_turned_back_into_outputs_of_the_same_probabilities(
    activation: Any, is_pair: bool
) -> None:
    if is_pair and activation == "softmax":
        pytest.skip("a single logit has a sigmoid")
    outputs = torch.randn(5, 1 if is_pair else 3, generator=torch.Generator().manual_seed(0))
    outputs = outputs.sigmoid() if activation == "identity" else outputs * 5
    found = compute_probabilities(outputs, activation, is_pair=is_pair)
    assert found.shape == (5, 2 if is_pair else 3)
    again = invert_probabilities(found, activation, is_pair=is_pair)
    torch.testing.assert_close(compute_probabilities(again, activation, is_pair=is_pair), found)
    if activation != "softmax":
        torch.testing.assert_close(again, outputs, rtol=1e-4, atol=1e-4)
