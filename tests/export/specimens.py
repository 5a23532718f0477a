"""Small models of several kinds, and what an export of each starts from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lightkit.export.formats import FORMATS, flatten, open_model
from lightkit.export.forward import clone_inputs
from lightkit.export.metadata import Metadata, TensorSpec, installed_versions
from lightkit.export.samples import EvaluationSamples
from lightkit.export.target import ExportTarget, describe_model, include_preprocessing
from lightkit.images.preprocessing import Preprocessing

UNPROVED = EvaluationSamples((), ())
PREPROCESSING = Preprocessing(
    resize=20, crop=(16, 16), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
)


class TinyConvNet(nn.Module):
    """With BatchNorm and Dropout, which evaluation must freeze."""

    output_kind = "logits"

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3, stride=2)
        self.norm = nn.BatchNorm2d(8)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(8, 5)
        self.norm.running_mean = torch.linspace(-1, 1, 8)

    def forward(self, images: Tensor) -> Tensor:
        features = torch.relu(self.norm(self.convolution(images))).mean((2, 3))
        scores: Tensor = self.head(self.dropout(features))
        return scores


class LambdaConvNet(TinyConvNet):
    """One that can be traced only."""

    def forward(self, images: Tensor) -> Tensor:
        halved = lambda tensor: tensor / 2  # noqa: E731
        return super().forward(halved(images))  # type: ignore[no-untyped-call]


class TwoTowers(nn.Module):
    """Two inputs, and a dictionary with a key that is an input's name too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(2, 3)

    def forward(self, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        one = self.first(left)
        return {"total": one + self.second(right), "left": one}


class DoubleAndSum(nn.Module):
    """A tuple of outputs."""

    def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
        return values * 2, values.sum(1)


class TiedWords(nn.Module):
    """Whole numbers in, weights that share memory, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("offset", torch.arange(7.0))

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.head(self.embedding(tokens).mean(1)) + self.get_buffer("offset")
        return scores


class AnyNumber(nn.Module):
    """As many inputs as one likes."""

    def forward(self, *values: Tensor) -> Tensor:
        return torch.stack(values).sum(0)


class WithALambda(nn.Module):
    """What the TorchScript compiler has no word for."""

    def forward(self, values: Tensor) -> dict[str, Tensor]:
        double = lambda tensor: tensor * 2  # noqa: E731
        return {"twice": double(values)}  # type: ignore[no-untyped-call]


class ForEight(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return values.reshape(8, -1)


class RowByRow(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return torch.stack([row * 2 for row in values])


class OnlyIfPositive(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        if values.sum() > 0:
            return values * 2
        return values


class UpToItsMaximum(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return values * int(values.max().item())


class FailsAlways(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return values @ torch.ones(99, 3)


class AloneIsDifferent(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return values * 2 if values.shape[0] == 1 else values * 3


class LambdaThatDecides(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        double = lambda tensor: tensor * 2  # noqa: E731
        return double(values) if values.sum() > 0 else values  # type: ignore[no-untyped-call]


class DoublesInPlace(nn.Module):
    """Changes what it is given."""

    def forward(self, values: Tensor) -> Tensor:
        return values.mul_(2) + 1


class LambdaInPlace(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        double = lambda tensor: tensor.mul_(2)  # noqa: E731
        return double(values) + 1  # type: ignore[no-any-return, no-untyped-call]


class NamesThatClash(nn.Module):
    """Outputs that are called as an input, as a weight, and as a step between."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, values: Tensor) -> dict[str, Tensor]:
        linear = self.layer(values)
        return {
            "values": values * 2,
            "other": linear.relu(),
            "layer.weight": values + 1,
            "linear": linear * 3,
        }


class InDoublePrecision(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6, dtype=torch.float64)

    def forward(self, values: Tensor) -> Tensor:
        scores: Tensor = self.layer(values.double())
        return scores


class Eigenvalues(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return torch.linalg.eigvals(values[:, None] * values[:, :, None]).real  # type: ignore[no-any-return]


def subject_of(model: nn.Module, *example: Tensor) -> ExportTarget:
    """What is exported of a model as it is."""
    return ExportTarget(model.eval(), example, describe_model(model, example), UNPROVED)


def odd_subject(model: nn.Module, num: int = 2) -> ExportTarget:
    """What is exported of a model that takes and is said to give ``(batch, 6)``, true or not."""
    spec = (TensorSpec("values", "float32", (None, 6)),)
    outputs = (TensorSpec("output", "float32", (None, 6)),)
    example = (torch.linspace(1, 2, 6 * num).reshape(num, 6),)
    return ExportTarget(
        model.eval(), example, Metadata("", type(model).__name__, spec, outputs), UNPROVED
    )


def classifier(kind: type[TinyConvNet] = TinyConvNet) -> ExportTarget:
    """A classifier that knows its classes and preprocessing."""
    torch.manual_seed(0)
    example = (torch.randn(2, 3, 16, 16),)
    model = kind().eval()
    described = describe_model(
        model, example, class_names=list("abcde"), preprocessing=PREPROCESSING
    )
    return ExportTarget(model, example, described, UNPROVED)


def classifier_of_images() -> ExportTarget:
    """The same with its preprocessing in the graph."""
    return include_preprocessing(classifier())


def traced_classifier_of_images() -> ExportTarget:
    return include_preprocessing(classifier(LambdaConvNet))


def two_towers() -> ExportTarget:
    torch.manual_seed(0)
    return subject_of(TwoTowers(), torch.randn(2, 4), torch.randn(2, 2))


def double_and_sum() -> ExportTarget:
    torch.manual_seed(0)
    return subject_of(DoubleAndSum(), torch.randn(2, 4))


def tied_words() -> ExportTarget:
    torch.manual_seed(0)
    return subject_of(TiedWords(), torch.randint(0, 7, (2, 5)))


def any_number() -> ExportTarget:
    torch.manual_seed(0)
    return ExportTarget(
        model=AnyNumber().eval(),
        example=(torch.randn(2, 3), torch.randn(2, 3)),
        metadata=Metadata(
            "",
            "AnyNumber",
            tuple(TensorSpec(name, "float32", (None, 3)) for name in ("one", "other")),
            (TensorSpec("output", "float32", (None, 3)),),
        ),
        samples=UNPROVED,
    )


MakeSubject = Callable[[], ExportTarget]
SUBJECTS: dict[str, MakeSubject] = {
    "conv": classifier,
    "images": classifier_of_images,
    "two inputs": two_towers,
    "tuple": double_and_sum,
    "tied": tied_words,
    "any number": any_number,
}


def write_file(
    kind: str,
    target: ExportTarget,
    path: Path,
    *,
    precision: str = "float32",
    opset: int | None = None,
) -> Metadata:
    """Write a file as `lightkit.export.exporter` does, and return its metadata."""
    target = target if target.plain is None or FORMATS[kind].open else target.plain
    described = replace(
        target.metadata,
        format=kind,
        precision=precision,
        opset=opset,
        versions=installed_versions(),
    )
    written: Metadata = import_module(f"lightkit.export.{kind}").write(target, described, path)
    return written


def noise(width: int, height: int, num: int = 1) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """``(num, height, width, 3)`` of the same noise each time."""
    return np.random.default_rng(width * 10_000 + height).integers(
        0, 256, (num, height, width, 3), dtype=np.uint8
    )


def largest_gap(subject: ExportTarget, path: Any, *, sizes: Sequence[int] = (1, 7)) -> float:
    """How far a file's outputs are from the model's, at batches of several sizes."""
    run = open_model(path)
    gaps = []
    for size in sizes:
        inputs = tuple(value[torch.arange(size) % len(value)] for value in subject.example)
        with torch.no_grad():
            expected = [value.numpy() for value in flatten(subject.model(*clone_inputs(inputs)))]
        found = run([value.numpy() for value in clone_inputs(inputs)])
        assert [(value.shape, value.dtype) for value in found] == [
            (value.shape, value.dtype) for value in expected
        ]
        gaps += [float(np.abs(one - two).max()) for one, two in zip(found, expected, strict=True)]
    return max(gaps)


def calibration(subject: ExportTarget) -> Iterator[tuple[np.ndarray[Any, Any], ...]]:
    """Three batches like the example."""
    for _ in range(3):
        yield tuple(value.numpy() for value in subject.example)
