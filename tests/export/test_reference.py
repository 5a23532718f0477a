"""Reference: the samples in batches, and what the eager model gives for them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from lightkit.artefacts.metadata import TensorSpec
from lightkit.errors import ExportError
from lightkit.export.reference import Reference
from lightkit.export.subject import Samples, Subject
from lightkit.images.preprocessing import Preprocessing
from tests.export.planted import LineOfThree, samples_of, subject_of

PREPROCESSING = Preprocessing(resize=6, crop=(4, 4), mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2))


def test_every_batch_size_covers_all_samples_and_the_last_batch_is_filled_up() -> None:
    subject = subject_of()

    reference = Reference(subject, samples_of(subject.plain), in_graph=False)

    assert {size: [list(batch.rows) for batch in batches] for size, batches in reference.batches.items()} == {
        1: [[row] for row in range(20)],
        7: [list(range(7)), list(range(7, 14)), [*range(14, 20), 0]],
        32: [[*range(20), *range(12)]],
    }
    assert [batch.inputs[0].shape for batch in reference.batches[32]] == [(32, 4)]


class OnlyPairs(LineOfThree):
    """Fails at any batch but two."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).view(2, 3)


def test_a_model_that_fails_on_a_batch_size_is_told_as_itself() -> None:
    subject = subject_of(OnlyPairs())

    with pytest.raises(ExportError, match=r"OnlyPairs itself fails on a batch of 1 samples \(RuntimeError: shape"):
        Reference(subject, samples_of(LineOfThree()), in_graph=False)


def test_without_samples_nothing_can_be_proved() -> None:
    subject = subject_of()

    with pytest.raises(ExportError, match="There are no samples"):
        Reference(subject, Samples((torch.zeros(0, 4),), []), in_graph=False)


class MeanOfChannels(torch.nn.Module):
    """Logits of three classes: the mean of each channel."""

    def forward(self, images: Tensor) -> Tensor:
        return images.mean((2, 3))


class SharesOfChannels(MeanOfChannels):
    """Probabilities instead."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).softmax(1)


def pictured(plain: torch.nn.Module) -> tuple[Subject, Samples]:
    generator = np.random.default_rng(2)
    sizes = [(8, 9), (12, 7), (700, 640)]
    images = [generator.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]
    inputs = torch.from_numpy(np.stack([PREPROCESSING(Image.fromarray(image)) for image in images]))
    subject = subject_of(plain)
    metadata = replace(
        subject.metadata,
        inputs=(TensorSpec("images", "uint8", (None, None, None, 3)),),
        output_kind="probabilities",
        preprocessing=PREPROCESSING,
        in_graph=True,
    )
    return replace(subject, metadata=metadata), Samples((inputs,), ["a", "b", "c"], images=images)


@pytest.mark.parametrize(
    ("plain", "is_softened"), [(MeanOfChannels(), True), (SharesOfChannels(), False)], ids=["logits", "probabilities"]
)
def test_images_go_in_at_their_own_size_and_probabilities_come_out(plain: torch.nn.Module, is_softened: bool) -> None:
    subject, samples = pictured(plain)

    reference = Reference(subject, samples, in_graph=True)

    assert [batch.inputs[0].shape for batch in reference.batches[1]] == [(1, 8, 9, 3), (1, 12, 7, 3), (1, 700, 640, 3)]
    assert [batch.inputs[0].shape for batch in reference.batches[7]] == [(7, 8, 9, 3)]
    alone = np.concatenate([batch.expected[0] for batch in reference.batches[1]])
    assert alone == pytest.approx(MeanOfChannels()(samples.inputs[0]).softmax(1).numpy(), abs=1e-6)
    assert reference.is_softened is is_softened
    assert reference.batches[7][0].inputs[0].dtype == np.uint8
