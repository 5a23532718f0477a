"""safetensors files hold the weights, shared ones once, and say what they are of."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_model
from torch import Tensor, nn

from lightkit.errors import DataError, ExportError
from lightkit.export.exporter import export
from lightkit.export.metadata import check_digest, read_metadata
from lightkit.export.options import ExportOptions
from lightkit.export.samples import EvaluationSamples
from lightkit.export.target import ExportTarget, describe_model
from tests.export import specimens
from tests.export.specimens import write_file


@pytest.mark.parametrize(
    ("subject", "fresh"),
    [(specimens.classifier, specimens.TinyConvNet), (specimens.tied_words, specimens.TiedWords)],
    ids=["conv", "tied"],
)
def test_the_weights_come_back(
    tmp_path: Path, subject: specimens.MakeSubject, fresh: type[nn.Module]
) -> None:
    made, model = subject(), fresh().eval()
    write_file("safetensors", made, tmp_path / "model.safetensors")
    load_model(model, tmp_path / "model.safetensors")
    assert torch.equal(model(*made.example), made.model(*made.example))


def test_shared_weights_are_written_once(tmp_path: Path) -> None:
    write_file("safetensors", specimens.tied_words(), tmp_path / "model.safetensors")
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert sorted(file.keys()) == ["embedding.weight", "offset"]


def test_a_weight_that_was_changed_in_the_file_is_known_without_the_record_of_the_export(
    tmp_path: Path,
) -> None:
    file = tmp_path / "model.safetensors"
    write_file("safetensors", specimens.classifier(), file)
    check_digest(file)
    file.write_bytes(file.read_bytes()[:-1] + b"\xee")
    with pytest.raises(DataError, match="this is not what was exported"):
        check_digest(file)


def test_preprocessing_is_reported_and_never_in_the_weights(tmp_path: Path) -> None:
    subject = specimens.classifier_of_images()
    write_file("safetensors", subject, tmp_path / "model.safetensors")
    said = read_metadata(tmp_path / "model.safetensors")
    assert not said.in_graph
    assert (said.preprocessing, said.class_names) == (specimens.PREPROCESSING, tuple("abcde"))
    assert (said.output_kind, said.inputs[0].dtype, said.inputs[0].shape) == (
        "logits",
        "float32",
        (None, 3, 16, 16),
    )
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert set(file.keys()) == set(subject.module.state_dict())


class WithExtraState(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return values

    def get_extra_state(self) -> dict[str, int]:
        return {"seen": 3}


def test_a_state_that_is_no_tensor_is_named(tmp_path: Path) -> None:
    says = (
        r"WithExtraState cannot be exported: safetensors files hold tensors only, .* has"
        r" _extra_state\.$"
    )
    with pytest.raises(ExportError, match=says):
        write_file(
            "safetensors", specimens.odd_subject(WithExtraState()), tmp_path / "model.safetensors"
        )


class Sliced(torch.nn.Module):
    """Its buffers are parts of a tensor that it does not have as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        table = torch.arange(12.0)
        self.register_buffer("low", table[:3])
        self.register_buffer("high", table[6:9])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.low + self.high  # type: ignore[no-any-return]


def test_buffers_that_are_parts_of_one_are_named_and_the_other_formats_are_written(
    tmp_path: Path,
) -> None:
    model = Sliced().eval()
    x = torch.randn(20, 4)
    target = ExportTarget(
        model,
        (x[:2],),
        describe_model(model, (x[:2],)),
        EvaluationSamples((x,), [f"row {at}" for at in range(20)]),
    )
    artefacts, (failure,) = export(
        target, tmp_path, ExportOptions.parse({"format": "safetensors,torch_export"})
    )
    assert [artefact["file"] for artefact in artefacts] == ["model.pt2"]
    assert failure.startswith(
        "model.safetensors: Sliced cannot be exported: low and high share memory that none"
    )
