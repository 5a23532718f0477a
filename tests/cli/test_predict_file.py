from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lightkit.errors import DataError
from lightkit.export.metadata import TensorSpec
from lightkit.prediction.exported import check_image_model
from lightkit.prediction.exported import predict_images as predict_by
from lightkit.task import task_of_kind
from tests.prediction.conftest import expected_of, metadata_of

FILE = Path("m.onnx")
predict_images = partial(predict_by, file=FILE)
Arrays = list[np.ndarray[Any, Any]]


class Means:
    """A model that gives the mean of each channel, and remembers what it was given."""

    def __init__(self) -> None:
        self.given: list[tuple[tuple[int, ...], str]] = []

    def __call__(self, arrays: Arrays) -> Arrays:
        (array,) = arrays
        self.given.append((array.shape, str(array.dtype)))
        axes = (1, 2) if array.shape[-1] == 3 else (2, 3)
        return [array.mean(axis=axes, dtype=np.float32), array]


@pytest.fixture
def images(tmp_path: Path) -> list[str]:
    """Forty images, every fifth of another size."""
    random = np.random.default_rng(0)
    paths = []
    for number in range(40):
        shape = (12, 9, 3) if number % 5 == 4 else (10, 16, 3)
        Image.fromarray(random.integers(0, 256, shape, dtype=np.uint8)).save(
            tmp_path / f"{number}.png"
        )
        paths.append(str(tmp_path / f"{number}.png"))
    return paths


def test_images_are_prepared_as_the_model_says_and_logits_become_probabilities(
    images: list[str],
) -> None:
    model = Means()
    found = list(predict_images(model, metadata_of(), images))
    assert [(prediction.index, prediction.path) for prediction in found] == list(enumerate(images))
    for prediction in found:
        assert prediction.values is not None
        assert prediction.values.dtype == np.float32
        np.testing.assert_allclose(prediction.values, expected_of(Path(prediction.path)), atol=1e-6)
    assert model.given == [((32, 3, 8, 8), "float32"), ((8, 3, 8, 8), "float32")]


def test_a_model_that_prepares_images_itself_gets_those_of_one_size_together(
    images: list[str],
) -> None:
    model = Means()
    found = list(predict_images(model, metadata_of(in_graph=True), images))
    assert [prediction.path for prediction in found] == images
    for prediction in found:
        assert prediction.values is not None
        with Image.open(prediction.path) as image:
            np.testing.assert_allclose(
                prediction.values, np.asarray(image).mean(axis=(0, 1)), rtol=1e-5
            )
    assert sorted(model.given) == [
        ((2, 12, 9, 3), "uint8"),
        ((6, 10, 16, 3), "uint8"),
        ((6, 12, 9, 3), "uint8"),
        ((26, 10, 16, 3), "uint8"),
    ]


def test_large_images_go_through_such_a_model_one_by_one(tmp_path: Path) -> None:
    for name in ("a", "b"):
        Image.new("RGB", (2_000, 1_500)).save(tmp_path / f"{name}.png", compress_level=1)
    model = Means()
    list(
        predict_images(
            model, metadata_of(in_graph=True), [str(tmp_path / "a.png"), str(tmp_path / "b.png")]
        )
    )
    assert model.given == [((1, 1_500, 2_000, 3), "uint8")] * 2


def test_bad_images_keep_their_place_and_the_model_does_not_get_them(
    images: list[str], tmp_path: Path
) -> None:
    (tmp_path / "0.png").write_bytes(b"no image")
    model = Means()
    found = list(predict_images(model, metadata_of(), [*images[:3], str(tmp_path / "gone.png")]))
    assert [prediction.values is None for prediction in found] == [True, False, False, True]
    assert [prediction.defect for prediction in found] == [
        "not an image in any format that Pillow knows",
        None,
        None,
        "No such file or directory",
    ]
    assert model.given == [((2, 3, 8, 8), "float32")]


def test_a_model_in_half_precision_gets_its_dtype_and_gives_float32(images: list[str]) -> None:
    model = Means()
    half = metadata_of(inputs=(TensorSpec("x", "float16", (None, 3, 8, 8)),))
    (found,) = predict_images(model, half, images[:1])
    assert model.given == [((1, 3, 8, 8), "float16")]
    assert found.values is not None
    assert found.values.dtype == np.float32
    np.testing.assert_allclose(found.values, expected_of(Path(images[0])), atol=1e-3)


@pytest.mark.parametrize("kind", ["probabilities", "other"])
def test_what_is_no_logits_is_given_as_it_is(images: list[str], kind: str) -> None:
    (found,) = predict_images(
        lambda _: [np.array([[[3.0], [-1.0]]])],
        metadata_of(output_kind=kind, class_names=None),
        images[:1],
    )
    assert found.values is not None
    assert found.values.tolist() == [3.0, -1.0]


def test_logits_of_any_size_have_finite_probabilities(images: list[str]) -> None:
    (found,) = predict_images(lambda _: [np.array([[1e4, -1e4, 1e4]])], metadata_of(), images[:1])
    assert found.values is not None
    assert found.values.tolist() == [0.5, 0.0, 0.5]


def test_a_list_without_end_is_predicted_as_it_comes(images: list[str]) -> None:
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        for number in count():
            taken += 1
            yield images[number % 40]

    found = predict_images(Means(), metadata_of(), endless())
    assert len(list(islice(found, 50))) == 50
    assert taken <= 50 + 3 * 32


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        (
            metadata_of(preprocessing=None),
            r"m.onnx: this model takes .* what is done to an image before is not known",
        ),
        (
            replace(metadata_of(), inputs=metadata_of().inputs * 2),
            r"m.onnx: this model takes x \(float32\), x",
        ),
    ],
    ids=["preprocessing", "inputs"],
)
def test_a_model_that_takes_no_images_is_refused(metadata: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        check_image_model(metadata, FILE)
    check_image_model(metadata_of(in_graph=True, preprocessing=None), FILE)


def test_names_of_classes_are_of_an_output_that_has_one_number_for_each() -> None:
    names = ["red", "green"]
    found = [
        task_of_kind(kind).choose_names((None, 2), names)
        for kind in ("logits", "probabilities", "other", None)
    ]
    assert found == [("red", "green"), ("red", "green"), None, None]
    assert task_of_kind("logits").choose_names((None, 2), None) is None


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (np.zeros((5, 3)), r"m.onnx: the model gives an output of shape \(5, 3\) for 1 images"),
        (np.float32(3), r"m.onnx: the model gives an output of shape \(\) for 1 images"),
    ],
    ids=["rows", "scalar"],
)
def test_an_output_that_is_not_what_the_file_says_is_reported_with_its_name(
    images: list[str], output: Any, says: str
) -> None:
    with pytest.raises(DataError, match=says):
        list(predict_images(lambda _: [output], metadata_of(), images[:1]))
