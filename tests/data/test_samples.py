"""Batches of samples: whole, in order, and without what cannot be read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from lightkit.data.image_dataset import ImageSamples, Sample, make_batch, num_read
from lightkit.data.image_sources import Decoded, Encoded, Pixels, Unreadable
from lightkit.data.loader import eval_loader, train_loader
from lightkit.data.sampler import SampleKey
from lightkit.data.skipped_samples import Defects
from lightkit.data.transforms import EvalView, TrainView, preprocessing_of
from lightkit.errors import DataError
from lightkit.images.reading import UnreadableImageError

VIEW = EvalView(preprocessing_of(8))


class Numbered:
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


def colour(value: int) -> Decoded:
    return Decoded(np.full((12, 10, 3), value, dtype=np.uint8))


def told(defects: Defects) -> list[tuple[str, str]]:
    return [(defect.name, defect.reason) for defect in defects.take_noted()]


def test_a_batch_has_its_samples_in_order() -> None:
    images, labels = ImageSamples(Numbered(9), VIEW, seed=0, defects=Defects()).__getitems__([4, 0, 7])
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


def test_what_cannot_be_read_is_left_out_of_its_batch_and_told() -> None:
    defects = Defects()
    samples = ImageSamples(Numbered(9, bad=[0], late=[7]), VIEW, seed=0, defects=defects)
    images, labels = samples.__getitems__([4, 0, 7, 8])
    assert labels.tolist() == [4, 8]
    assert [image.unique().tolist() for image in images] == [[4], [8]]
    assert told(defects) == [("image 0", "gone"), ("image 7", "not an image in any format that Pillow knows")]


def test_in_place_of_a_batch_of_nothing_another_sample_stands_with_weight_0() -> None:
    defects = Defects()
    samples = ImageSamples(Numbered(9, bad=[0, 1]), VIEW, seed=0, defects=defects)
    images, labels, weights = batch = samples.__getitems__([0, 1])
    assert (len(images), torch.unique(images).tolist(), weights.tolist()) == (1, labels.tolist(), [0])
    assert labels.item() not in (0, 1)
    assert num_read(batch) == 0
    assert all(torch.equal(part, again) for part, again in zip(batch, samples.__getitems__([0, 1]), strict=True))
    assert [name for name, _ in told(defects)] == ["image 0", "image 1"]


@pytest.mark.parametrize(
    ("indices", "sizes"),
    [((4,), 1), ((4, 5), 2), ((0, 1, 4), 2), ((0, 1), 2), ((0,), 1)],
    ids=["one", "two", "one of three", "none of two", "none of one"],
)
def test_in_training_a_batch_of_several_keeps_two_samples(indices: tuple[int, ...], sizes: int) -> None:
    batch = ImageSamples(Numbered(9, bad=[0, 1]), TrainView(8), seed=0, defects=Defects()).__getitems__(indices)
    assert len(batch[0]) == len(batch[1]) == sizes
    assert num_read(batch) == len({*indices} - {0, 1})
    if len(batch) == 3:
        assert batch[2].tolist() == [float(label in indices) for label in batch[1].tolist()]


def test_weights_of_0_that_the_data_say_are_samples_that_were_read() -> None:
    samples = [Sample(colour(1), 1, "a", 0.0), Sample(colour(2), 2, "b", 1.0)]
    batch = make_batch(samples, VIEW, [SampleKey(0, 0), SampleKey(1, 0)], seed=0, defects=Defects())
    assert num_read(batch) == 2


def test_where_no_sample_can_be_read_there_is_a_blank_image_of_weight_0() -> None:
    defects = Defects()
    batch = ImageSamples(Numbered(9, bad=range(9)), VIEW, seed=0, defects=defects).__getitems__([0, 1])
    assert [(part.shape, part.dtype) for part in batch] == [
        ((1, 3, 8, 8), torch.uint8), ((1,), torch.int64), ((1,), torch.float32)
    ]  # fmt: skip
    assert not any(part.any() for part in batch)
    assert num_read(batch) == 0
    assert len(told(defects)) == 2


@pytest.mark.parametrize("index", [2, 5], ids=["early", "late"])
def test_where_rows_must_not_shift_it_is_an_error_that_names_the_file(index: int) -> None:
    samples = ImageSamples(Numbered(9, bad=[2], late=[5]), VIEW, seed=0, defects=None)
    with pytest.raises(UnreadableImageError, match="gone" if index == 2 else "image 5") as raised:
        samples.__getitems__([1, index])
    assert raised.value.exit_code == DataError.exit_code == 3


def test_one_sample_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(UnreadableImageError):
        _ = ImageSamples(Numbered(9, bad=[2]), VIEW, seed=0, defects=Defects())[2]


def test_weights_go_with_their_samples() -> None:
    samples = [
        Sample(colour(1), 1, "a", 0.5),
        Sample(Unreadable("b", "null"), 2, "b", 9.0),
        Sample(colour(3), 3, "c", None),
    ]
    defects = Defects()
    _, labels, weights = make_batch(samples, VIEW, [SampleKey(index, 0) for index in range(3)], seed=0, defects=defects)
    assert labels.tolist() == [1, 3]
    assert weights.tolist() == [0.5, 1.0]
    assert told(defects) == [("b", "null")]


def test_labels_that_are_no_whole_numbers_are_floats() -> None:
    samples = [Sample(colour(1), 1.5, "a"), Sample(colour(2), 2, "b")]
    _, labels = make_batch(samples, VIEW, [SampleKey(0, 0), SampleKey(1, 0)], seed=0, defects=Defects())
    assert (labels.dtype, labels.tolist()) == (torch.float32, [1.5, 2.0])


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
def test_loaders_give_every_readable_sample_once_and_tell_of_the_others(num_workers: int) -> None:
    defects = Defects()
    samples = ImageSamples(Numbered(23, bad=[4], late=[11, 12, 13, 14]), VIEW, seed=0, defects=defects)
    expected = sorted(set(range(23)) - {4, 11, 12, 13, 14})
    for make in (train_loader, eval_loader):
        found = [
            label
            for batch in make(samples, batch_size=4, seed=0, num_workers=num_workers)
            for label in batch[1].tolist()
            if len(batch) == 2
        ]
        assert sorted(found) == expected
    assert sorted(name for name, _ in told(defects)) == [f"image {index}" for index in (11, 12, 13, 14, 4)]
