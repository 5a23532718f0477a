"""A classifier as it is served: images in, probabilities out; anything else stays as it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from lightkit.export.metadata import OutputKind
from lightkit.export.target import ExportTarget, make_target
from lightkit.images.preprocessing import Preprocessing
from lightkit.registry.package import add_preprocessing

PREPROCESSING = Preprocessing(resize=8, crop=(8, 8), mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2))


class Means(nn.Module):
    """Tells two classes apart by the mean of each image."""

    def __init__(self, output_kind: OutputKind) -> None:
        super().__init__()
        self.output_kind = output_kind

    def forward(self, x: Tensor) -> Tensor:
        """Give logits (batch, 2)."""
        means = x.mean((1, 2, 3))
        return torch.stack([means, -means], 1)


def subject(output_kind: OutputKind = "logits", preprocessing: Preprocessing | None = PREPROCESSING) -> ExportTarget:
    example = (torch.rand(2, 3, 8, 8),)
    model = Means(output_kind).eval()
    return make_target(model, example, class_names=["light", "dark"], preprocessing=preprocessing, source={})


def test_a_classifier_takes_images_of_any_size_and_gives_probabilities() -> None:
    served = add_preprocessing(subject())
    (spec,) = served.metadata.inputs
    assert (spec.dtype, spec.shape) == ("uint8", (None, None, None, 3))
    assert served.example[0].shape == (2, 48, 64, 3)
    bright = served.model(torch.full((1, 20, 30, 3), 250, dtype=torch.uint8))
    assert bright.sum().item() == pytest.approx(1)
    assert bright[0, 0] > 0.9


@pytest.mark.parametrize(
    "plain", [subject("other"), subject(preprocessing=None)], ids=["no classifier", "no preprocessing"]
)
def test_what_is_not_known_to_classify_images_is_served_as_it_is(plain: ExportTarget) -> None:
    assert add_preprocessing(plain) is plain


def test_what_takes_images_already_is_served_as_it_is() -> None:
    ready = replace(subject(), metadata=replace(subject().metadata, in_graph=True))
    assert add_preprocessing(ready) is ready
