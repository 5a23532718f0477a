"""Batches of samples: whole, in order, and without what cannot be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from lightkit.data.bad_samples import Defects
from lightkit.data.image_dataset import (
    Decoded,
    Encoded,
    EvalView,
    ImageSamples,
    ImageSource,
    Pixels,
    TrainView,
)
from lightkit.data.loader import eval_loader, train_loader
from lightkit.data.sampler import SampleKey, epoch_order
from lightkit.errors import DataError
from lightkit.images.image_file import UnreadableImageError
from lightkit.images.preprocessing import preprocessing_of

VIEW = EvalView(preprocessing_of(8))


class Numbered(ImageSource):
    """Images of one colour, which is their index; some cannot be read, early or late."""

    def __init__(self, num: int, *, bad: Sequence[int] = (), late: Sequence[int] = ()) -> None:
        self.num, self.bad, self.late = num, set(bad), set(late)

    def __len__(self) -> int:
        return self.num

    def pixels(self, index: int) -> Pixels:
        if index in self.bad:
            raise UnreadableImageError("gone", reason="gone")
        return Encoded(b"", name=self.name(index)) if index in self.late else colour(index)

    def label(self, index: int) -> int:
        return index

    def name(self, index: int) -> str:
        return f"image {index}"

    def digest(self) -> str:
        return ""


def colour(value: int) -> Decoded:
    return Decoded(np.full((12, 10, 3), value, dtype=np.uint8))


def reasons_of(defects: Defects) -> list[tuple[str, str]]:
    return [(defect.name, defect.reason) for defect in defects.take_noted()]


def test_a_batch_has_its_samples_in_order() -> None:
    images, labels = ImageSamples(Numbered(9), VIEW, seed=0, defects=Defects()).__getitems__(
        [4, 0, 7]
    )
    assert (images.shape, images.dtype, labels.dtype) == ((3, 3, 8, 8), torch.uint8, torch.int64)
    assert labels.tolist() == [4, 0, 7]
    assert [image.unique().tolist() for image in images] == [[4], [0], [7]]


def test_a_batch_is_its_samples_one_by_one() -> None:
    samples = ImageSamples(Numbered(9), TrainView(8, color_jitter=0.5), seed=0, defects=Defects())
    keys = [SampleKey(index, 3) for index in (4, 0, 7)]
    images, labels = samples.__getitems__(keys)
    for image, label, key in zip(images, labels, keys, strict=True):
        alone, alone_label = samples[key]
        assert torch.equal(image, alone)
        assert label == alone_label
    assert samples.sample_bytes == images[0].numel()


def test_what_cannot_be_read_is_left_out_of_its_batch_and_reported() -> None:
    defects = Defects()
    samples = ImageSamples(Numbered(9, bad=[0], late=[7]), VIEW, seed=0, defects=defects)
    images, labels = samples.__getitems__([4, 0, 7, 8])
    assert labels.tolist() == [4, 8]
    assert [image.unique().tolist() for image in images] == [[4], [8]]
    assert reasons_of(defects) == [
        ("image 0", "gone"),
        ("image 7", "not an image in any format that Pillow knows"),
    ]


@pytest.mark.parametrize("index", [2, 5], ids=["early", "late"])
def test_where_rows_must_not_shift_it_is_an_error_that_names_the_file(index: int) -> None:
    samples = ImageSamples(Numbered(9, bad=[2], late=[5]), VIEW, seed=0, defects=None)
    with pytest.raises(UnreadableImageError, match="gone" if index == 2 else "image 5") as raised:
        samples.__getitems__([1, index])
    assert raised.value.exit_code == DataError.exit_code == 3


def test_one_sample_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(UnreadableImageError):
        _ = ImageSamples(Numbered(9, bad=[2]), VIEW, seed=0, defects=Defects())[2]


def test_in_training_it_is_replaced_by_the_next_of_the_epochs_order() -> None:
    order = epoch_order(9, seed=0, epoch=2)
    defects = Defects()
    samples = ImageSamples(Numbered(9, bad=order[4:6]), TrainView(8), seed=0, defects=defects)
    _, labels = samples.__getitems__([SampleKey(index, 2) for index in order])
    assert labels.tolist() == [*order[:4], order[6], order[6], *order[6:]]
    assert reasons_of(defects) == [(f"image {index}", "gone") for index in order[4:6]]


@pytest.mark.parametrize("view", [VIEW, TrainView(8)], ids=["evaluation", "training"])
def test_where_no_sample_can_be_read_it_is_an_error(view: Any) -> None:
    samples = ImageSamples(Numbered(9, bad=range(9)), view, seed=0, defects=Defects())
    with pytest.raises(
        UnreadableImageError, match="image 3: neither this sample nor any other of its"
    ):
        samples.__getitems__([3, 4])


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
def test_loaders_read_every_readable_sample_and_note_the_others(num_workers: int) -> None:
    defects = Defects()
    bad = [4, 11, 12, 14]
    for make, view in ((train_loader, TrainView(8)), (eval_loader, VIEW)):
        samples = ImageSamples(Numbered(23, bad=bad), view, seed=0, defects=defects)
        batches = list(make(samples, batch_size=4, seed=0, num_workers=num_workers))
        found = [label for _, labels in batches for label in labels.tolist()]
        assert set(found) == set(range(23)) - {*bad}
        assert len(found) == (23 if view is not VIEW else 19)
    assert sorted(defects.collect()) == sorted(f"image {index}" for index in bad)
