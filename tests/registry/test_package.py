"""A classifier as it is served: images in, probabilities out; anything else stays as it is."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightkit.errors import ExportError
from lightkit.export.metadata import Metadata
from lightkit.export.samples import EvaluationSamples
from lightkit.export.target import ExportTarget, describe_model
from lightkit.images.preprocessing import Preprocessing
from lightkit.registry.package import add_preprocessing, is_servable, write_package
from lightkit.task import OutputKind

pytestmark = [
    pytest.mark.slow,
    # 2026-11: mlflow 3.17 to itself while it is imported, and torch 2.15 on TorchScript and pickled
    # pt2 archives.
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred:UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The TorchScript type system:UserWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
PREPARED = Preprocessing(32, (28, 28), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))


class TwoIn(nn.Module):
    """Takes two inputs, and gives a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        return {"sum": self.layer(left + right), "gap": left - right}


class ByLength(nn.Module):
    """Gives other answers for long batches; both ways of writing keep one of the two."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if len(x) > 4 else x - 1


def described(module: nn.Module, *example: Tensor) -> Any:
    torch.manual_seed(2)
    return ExportTarget(
        module.eval(), example, describe_model(module, example), EvaluationSamples((), ())
    )


def test_a_model_with_two_inputs_and_a_dictionary_is_written_but_cannot_be_served(
    tmp_path: Path,
) -> None:
    subject = described(TwoIn(), torch.rand(2, 3), torch.rand(2, 3))
    write_package(subject, tmp_path / "model", form="torch_export")
    import mlflow.pytorch  # late: 2 s

    loaded = mlflow.pytorch.load_model(str(tmp_path / "model"))
    inputs = torch.rand(5, 3), torch.rand(5, 3)
    torch.testing.assert_close(loaded(*inputs)["gap"], inputs[0] - inputs[1])
    assert not is_servable(subject)


def test_a_model_that_depends_on_the_batch_size_is_refused_in_one_line(tmp_path: Path) -> None:
    subject = described(ByLength(), torch.rand(2, 3))
    with pytest.raises(
        ExportError, match=r"^register: .*ByLength.*--format torchscript\.$"
    ) as raised:
        write_package(subject, tmp_path / "model", form="torch_export")
    assert "\n" not in str(raised.value)


def test_a_regressor_is_served_as_it_is() -> None:
    subject = described(nn.Linear(3, 1), torch.rand(2, 3))
    assert add_preprocessing(subject) is subject
    assert isinstance(subject.metadata, Metadata)
    assert is_servable(subject)


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


def subject(
    output_kind: OutputKind = "logits", preprocessing: Preprocessing | None = PREPROCESSING
) -> ExportTarget:
    example = (torch.rand(2, 3, 8, 8),)
    model = Means(output_kind).eval()
    metadata = describe_model(
        model, example, class_names=["light", "dark"], preprocessing=preprocessing
    )
    return ExportTarget(model, example, metadata, EvaluationSamples((), ()))


def test_a_classifier_takes_images_of_any_size_and_gives_probabilities() -> None:
    served = add_preprocessing(subject())
    (spec,) = served.metadata.inputs
    assert (spec.dtype, spec.shape) == ("uint8", (None, None, None, 3))
    assert served.example[0].shape == (2, 48, 64, 3)
    bright = served.model(torch.full((1, 20, 30, 3), 250, dtype=torch.uint8))
    assert bright.sum().item() == pytest.approx(1)
    assert bright[0, 0] > 0.9


class OneLogit(Means):
    """Tells them apart by one logit, of the second class."""

    def forward(self, x: Tensor) -> Tensor:
        """Give logits (batch, 1)."""
        return -x.mean((1, 2, 3))[:, None]


@pytest.mark.parametrize(
    "model", [OneLogit("logits"), OneLogit("binary_logit")], ids=["logits", "binary_logit"]
)
def test_one_logit_is_served_as_the_probabilities_of_both_classes(model: Means) -> None:
    example = (torch.rand(2, 3, 8, 8),)
    metadata = describe_model(
        model.eval(), example, class_names=["light", "dark"], preprocessing=PREPROCESSING
    )
    served = add_preprocessing(ExportTarget(model, example, metadata, EvaluationSamples((), ())))
    images = torch.full((1, 20, 30, 3), 160, dtype=torch.uint8)
    mean = (160 / 255 - 0.5) / 0.2
    found = served.model(images)[0]
    assert found.tolist() == pytest.approx(
        [1 / (1 + math.exp(-mean)), 1 / (1 + math.exp(mean))], abs=1e-5
    )
    assert (served.metadata.output_kind, served.metadata.class_names) == (
        "probabilities",
        ("light", "dark"),
    )


def test_labels_that_are_independent_of_each_other_are_served_with_a_probability_each() -> None:
    served = add_preprocessing(subject("multilabel_logits"))
    mean = (160 / 255 - 0.5) / 0.2
    found = served.model(torch.full((1, 20, 30, 3), 160, dtype=torch.uint8))[0]
    assert found.tolist() == pytest.approx(
        [1 / (1 + math.exp(-mean)), 1 / (1 + math.exp(mean))], abs=1e-5
    )
    assert served.metadata.output_kind == "multilabel_probabilities"


@pytest.mark.parametrize(
    "plain",
    [subject("other"), subject("values"), subject(preprocessing=None)],
    ids=["undeclared", "values", "no preprocessing"],
)
def test_what_is_not_known_to_classify_images_is_served_as_it_is(plain: ExportTarget) -> None:
    assert add_preprocessing(plain) is plain


def test_what_takes_images_already_is_served_as_it_is() -> None:
    ready = replace(subject(), metadata=replace(subject().metadata, in_graph=True))
    assert add_preprocessing(ready) is ready
