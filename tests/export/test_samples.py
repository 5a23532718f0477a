"""The samples that prove an export: which, in which order, under which names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pytorch_lightning import LightningDataModule, LightningModule
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from lightkit.errors import ConfigError, ExportError
from lightkit.export.samples import (
    EvaluationSamples,
    check_preprocessing,
    draw_samples,
    make_random_samples,
    read_calibration,
)
from lightkit.export.target import check_self_consistency
from lightkit.images.preprocessing import Preprocessing
from tests.export.planted import LineOfThree, samples_of, subject_of

PREPARED = Preprocessing(resize=6, crop=(4, 4), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


def _loader(first: int, count: int, batch_size: int = 4) -> DataLoader[Any]:
    values = torch.arange(first, first + count, dtype=torch.float32)
    return DataLoader(
        TensorDataset(values[:, None].repeat(1, 3), values.long()), batch_size=batch_size
    )


class Summing(LightningModule):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum(1)


class ValidatedData(LightningDataModule):
    def train_dataloader(self) -> DataLoader[Any]:
        return _loader(100, 300)

    def val_dataloader(self) -> Any:
        return [_loader(0, 10), _loader(50, 10)]


class TrainingData(LightningDataModule):
    def train_dataloader(self) -> DataLoader[Any]:
        return _loader(100, 6)


class NormalisedData(ValidatedData):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return [batch[0] * 10, batch[1]]


class OwnLoaders(Summing):
    def val_dataloader(self) -> DataLoader[Any]:
        return _loader(7, 3)


class _Pictures:
    """Pictures of two classes, sorted by class, three of one for each of the other."""

    labels = [0] * 192 + [1] * 64

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.new("RGB", (9, 7), (index % 256, 0, 0)), self.labels[index]


class PictureData(LightningDataModule):
    preprocessing = PREPARED

    def untransformed(self, _: str) -> _Pictures:
        return _Pictures()

    def val_dataloader(self) -> DataLoader[Any]:
        pictures = _Pictures()
        rows: Any = [
            (torch.from_numpy(PREPARED(pictures[at][0])), pictures.labels[at]) for at in range(256)
        ]
        return DataLoader(rows, batch_size=3)


class AugmentedPictures(PictureData):
    """Has training data alone, which is prepared at random."""

    val_dataloader = LightningDataModule.val_dataloader

    def train_dataloader(self) -> DataLoader[Any]:
        rows: Any = [(torch.rand(3, 4, 4), label) for label in _Pictures.labels]
        return DataLoader(rows, batch_size=3, shuffle=True)


def _drawn(
    module: LightningModule, data: LightningDataModule | None, num: int, **kwargs: Any
) -> EvaluationSamples:
    samples = draw_samples(module, data, num, **kwargs)
    assert samples is not None
    return samples


def test_samples_are_spread_over_the_first_validation_loader_in_its_order() -> None:
    drawn = _drawn(Summing(), ValidatedData(), 5)
    assert drawn.source == "validation split"
    assert drawn.inputs[0][:, 0].tolist() == [1, 3, 5, 7, 9]
    assert list(drawn.names) == [f"val/{index:05d}" for index in (1, 3, 5, 7, 9)]


def test_a_split_that_is_sorted_by_class_gives_samples_of_every_class() -> None:
    samples = _drawn(Summing(), PictureData(), 8)
    labels = torch.cat([batch[1] for batch in samples.batches]).tolist()
    assert labels == [0] * 6 + [1] * 2
    assert [_Pictures.labels[int(name.removeprefix("val/"))] for name in samples.names] == labels


def test_a_stream_gives_its_first_batches() -> None:
    class Rows(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(torch.arange(10.0)[:, None])

    class Streamed(LightningDataModule):
        def val_dataloader(self) -> Any:
            return DataLoader(Rows(), batch_size=4)

    assert _drawn(Summing(), Streamed(), 6).inputs[0][:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_batches_for_scoring_hold_the_same_samples() -> None:
    samples = _drawn(Summing(), ValidatedData(), 5)
    assert [batch[1].tolist() for batch in samples.batches] == [[1, 3, 5, 7], [9]]


def test_fewer_samples_are_taken_where_the_data_has_fewer() -> None:
    assert len(_drawn(Summing(), ValidatedData(), 64).names) == 10


def test_without_validation_another_split_is_taken_and_named() -> None:
    drawn = _drawn(Summing(), TrainingData(), 4)
    assert drawn.source == "training split"
    assert drawn.inputs[0][:, 0].tolist() == [100, 102, 103, 105]


def test_a_module_can_have_the_loaders_itself() -> None:
    assert _drawn(OwnLoaders(), None, 64).inputs[0][:, 0].tolist() == [7, 8, 9]


def test_there_are_no_samples_without_a_loader() -> None:
    assert draw_samples(Summing(), None, 4) is None


def test_what_the_data_does_on_the_way_to_the_device_is_done() -> None:
    samples = _drawn(Summing(), NormalisedData(), 2)
    assert samples.inputs[0][:, 0].tolist() == [20, 70]
    assert samples.batches[0][0][:, 0].tolist() == [20, 70]


def test_batches_that_are_padded_otherwise_are_left_out() -> None:
    class Padded(LightningDataModule):
        def val_dataloader(self) -> Any:
            rows: Any = [torch.zeros(5), torch.zeros(5), torch.zeros(9)]
            return DataLoader(rows, batch_size=1)

    assert _drawn(Summing(), Padded(), 64).inputs[0].shape == (2, 5)


def test_an_empty_loader_is_an_error() -> None:
    class Empty(LightningDataModule):
        def val_dataloader(self) -> Any:
            return DataLoader([])  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match="The validation split gives no batch"):
        _drawn(Summing(), Empty(), 4)


def test_images_are_those_behind_the_samples() -> None:
    drawn = _drawn(Summing(), PictureData(), 5)
    places = [int(name.removeprefix("val/")) for name in drawn.names]
    assert drawn.load_image is not None
    assert [drawn.load_image(at)[0, 0, 0] for at in range(5)] == places
    check_preprocessing(drawn, PREPARED)


def test_training_data_that_is_prepared_at_random_is_held_against_nothing() -> None:
    drawn = _drawn(Summing(), AugmentedPictures(), 4)
    assert drawn.source == "training split"
    check_preprocessing(drawn, PREPARED)


@pytest.mark.parametrize(
    ("said", "says"),
    [
        (
            Preprocessing(6, (4, 4), (0.4, 0.5, 0.5), (0.5, 0.5, 0.5)),
            r"val/\d{5} differs by up to 0\.2 between",
        ),
        (
            Preprocessing(6, (5, 5), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
            r"is \(3, 4, 4\) in the loader's batch, and \(3, 5, 5\)",
        ),
    ],
    ids=["mean", "crop"],
)
def test_a_preprocessing_that_the_loader_does_not_do_is_seen(
    said: Preprocessing, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        check_preprocessing(_drawn(Summing(), PictureData(), 2), said)


def test_samples_without_data_are_noise_for_floats_and_the_example_for_whole_numbers() -> None:
    example = (torch.zeros(2, 3), torch.tensor([[5], [6]]))
    first, again = (
        make_random_samples(example, 5, source="--input-shape"),
        make_random_samples(example, 5, source="--input-shape"),
    )
    floats, tokens = first.inputs
    assert floats.shape == (5, 3)
    assert torch.equal(floats[:2], example[0])
    assert len(set(floats[2:].flatten().tolist())) == 9
    assert tokens.flatten().tolist()[:2] == [5, 6]
    assert {*tokens.flatten().tolist()} == {5, 6}
    assert torch.equal(floats, again.inputs[0])
    assert first.batches == ()
    assert first.source == "random inputs shaped like --input-shape"


def test_calibration_takes_training_images_all_along_the_split() -> None:
    seen = [inputs[0] for inputs in read_calibration(Summing(), PictureData(), in_graph=True)]
    indices = [int(image[0, 0, 0, 0]) for image in seen]
    assert {image.dtype for image in seen} == {np.dtype(np.uint8)}
    assert {image.shape for image in seen} == {(1, 7, 9, 3)}
    assert len(set(indices)) == 128
    assert sum(_Pictures.labels[index] for index in indices) == 32


def test_calibration_prepares_images_as_for_evaluation() -> None:
    image = next(iter(read_calibration(Summing(), PictureData(), in_graph=False)))[0]
    assert (image.shape, image.dtype) == ((1, 3, 4, 4), np.dtype(np.float32))


def test_calibration_without_images_takes_samples_of_the_training_loader() -> None:
    batches = list(read_calibration(Summing(), ValidatedData(), in_graph=False))
    assert sum(len(batch[0]) for batch in batches) == 128


def test_calibration_without_training_data_is_an_error() -> None:
    with pytest.raises(ConfigError, match="--int8 is calibrated on training samples"):
        list(read_calibration(Summing(), None, in_graph=False))


class NanForOne(LineOfThree):
    """Gives NaN for the marked sample."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).masked_fill(x[:, :1] > 50, float("nan"))


def test_nan_beyond_the_first_batch_is_found() -> None:
    target = subject_of(NanForOne())
    target.samples.inputs[0][:, 0] = 0.0
    target.samples.inputs[0][-1, 0] = 100.0
    with pytest.raises(
        ExportError, match=r"NanForOne itself gives NaN: 'output', for a sample from photos/"
    ):
        check_self_consistency(target)


class ChangingInput(LineOfThree):
    """Doubles what it is given, in place."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(2))


def test_a_model_that_changes_its_inputs_is_consistent() -> None:
    samples = samples_of(LineOfThree())
    before = samples.inputs[0].clone()
    check_self_consistency(subject_of(ChangingInput(), samples))
    assert torch.equal(samples.inputs[0], before)
