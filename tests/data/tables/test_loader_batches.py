"""Rows put together: what has weights, what cannot be decoded, and what there is none of."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from lightkit.data.bad_samples import Defects
from lightkit.data.image_dataset import EvalView, TrainView
from lightkit.data.sampler import SampleKey
from lightkit.data.tables.index import Row
from lightkit.data.tables.loader import BatchMaker
from lightkit.errors import DataError
from lightkit.images.image_file import UnreadableImageError
from lightkit.images.preprocessing import preprocessing_of

KEYS = [SampleKey(number, 0) for number in range(3)]


def image(shade: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (9, 9), (shade, shade, shade)).save(file, format="PNG")
    return file.getvalue()


def row(number: int, *, broken: bool = False, weight: float | None = None) -> Row:
    return Row(b"none" if broken else image(number), None, number, weight, f"row {number}")


def maker_of(defects: Defects | None) -> BatchMaker:
    return BatchMaker(EvalView(preprocessing_of(7)), row_bytes=147, defects=defects)


def test_what_cannot_be_decoded_is_left_out_with_its_label_and_weight() -> None:
    defects = Defects()
    rows = [row(1, weight=0.5), row(2, broken=True, weight=2), row(3, weight=4)]
    images, labels, weights = maker_of(defects)(rows, KEYS)
    assert images[:, 0, 0, 0].tolist() == labels.tolist() == [1, 3]
    assert weights.tolist() == [0.5, 4]
    assert [defect.name for defect in defects.take_noted()] == ["row 2"]
    with pytest.raises(UnreadableImageError, match="row 2"):
        maker_of(None)(rows, KEYS)


def test_in_training_the_next_good_row_of_the_batch_is_in_the_place_of_a_bad_one() -> None:
    rows = [row(number, broken=number < 2, weight=number) for number in range(3)]
    defects = Defects()
    images, labels, weights = BatchMaker(TrainView(7), row_bytes=147, defects=defects)(rows, KEYS)
    assert images[:, 0, 0, 0].tolist() == labels.tolist() == weights.tolist() == [2, 2, 2]
    assert [defect.name for defect in defects.take_noted()] == ["row 0", "row 1"]


def test_a_batch_of_which_no_row_can_be_read_is_an_error() -> None:
    with pytest.raises(
        UnreadableImageError, match="row 0: neither this sample nor any other of its batch of 2"
    ):
        maker_of(Defects())([row(0, broken=True), row(1, broken=True)], KEYS[:2])


def test_features_keep_their_shape() -> None:
    rows = [Row(None, np.full((2, 3), number, np.float32), number, None, "") for number in range(3)]
    features, labels = BatchMaker(None, row_bytes=24)(rows, KEYS)
    assert features.shape == (3, 2, 3)
    assert (features[:, 0, 0].long() == labels).all()


@pytest.mark.parametrize("kind", ["image", "features"])
def test_a_row_without_a_label_that_there_was_is_left_out_and_not_of_class_0(kind: str) -> None:
    def made(defects: Defects | None) -> BatchMaker:
        return (
            maker_of(defects) if kind == "image" else BatchMaker(None, row_bytes=4, defects=defects)
        )

    features = np.ones(1, np.float32)
    rows = [
        Row(image(5), features, 1, None, "row 5"),
        Row(image(6), features, None, None, "row 6", "no label"),
    ]
    defects = Defects()
    assert made(defects)(rows, KEYS[:2])[1].tolist() == [1]
    assert [(found.name, found.reason) for found in defects.take_noted()] == [("row 6", "no label")]
    with pytest.raises(
        DataError, match=r"row 6: no label\. The table has changed since it was opened"
    ):
        made(None)(rows, KEYS[:2])
