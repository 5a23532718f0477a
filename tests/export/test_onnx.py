"""ONNX files.

The opset that was asked for, open sizes, weights in a file of their own, in float16 and in int8.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from lightkit.errors import ExportError
from lightkit.export import onnx as onnx_format
from lightkit.export.exporter import export
from lightkit.export.formats import open_model
from lightkit.export.metadata import read_metadata
from lightkit.export.options import ExportOptions
from lightkit.export.samples import EvaluationSamples
from lightkit.export.target import ExportTarget, describe_model
from tests.export import specimens
from tests.export.specimens import calibration, largest_gap, write_file


@pytest.mark.parametrize("opset", [18, pytest.param(23, marks=pytest.mark.long)])
def test_the_first_and_the_last_opset_are_written(tmp_path: Path, opset: int) -> None:
    subject = specimens.tied_words()
    write_file("onnx", subject, tmp_path / "model.onnx", opset=opset)
    found = {
        entry.domain: entry.version
        for entry in onnx.load(str(tmp_path / "model.onnx")).opset_import
    }
    assert found[""] == opset
    assert largest_gap(subject, tmp_path / "model.onnx") < 2e-6


@pytest.mark.parametrize("opset", [20, 21])
def test_equal_values_through_a_group_norm_are_no_nan(tmp_path: Path, opset: int) -> None:
    blank = torch.logspace(0, 3, 40).reshape(-1, 1, 1, 1).expand(-1, 8, 14, 14)
    subject = specimens.subject_of(nn.GroupNorm(2, 8), blank)
    write_file("onnx", subject, tmp_path / "model.onnx", opset=opset)
    (found,) = open_model(tmp_path / "model.onnx")([blank.numpy()])
    # the rounding of the mean, times 316 for the epsilon
    np.testing.assert_allclose(found, np.zeros_like(found), atol=1)
    noise = specimens.subject_of(subject.model, torch.randn(8, 8, 14, 14))
    assert largest_gap(noise, tmp_path / "model.onnx") < 1e-5


def test_names_and_open_sizes_are_those_of_the_metadata(tmp_path: Path) -> None:
    written = write_file("onnx", specimens.two_towers(), tmp_path / "model.onnx")
    graph = onnx.load(str(tmp_path / "model.onnx")).graph
    assert [value.name for value in graph.input] == ["left", "right"]
    assert (
        [value.name for value in graph.output]
        == [spec.name for spec in written.outputs]
        == ["total", "left_out"]
    )
    batches = {
        value.type.tensor_type.shape.dim[0].dim_param for value in [*graph.input, *graph.output]
    }
    assert batches == {"batch"}


def test_outputs_whose_names_are_taken_get_free_ones(tmp_path: Path) -> None:
    subject = specimens.subject_of(
        specimens.NamesThatClash(), specimens.odd_subject(specimens.NamesThatClash()).example[0]
    )
    written = write_file("onnx", subject, tmp_path / "model.onnx")
    assert [spec.name for spec in written.outputs] == [
        "values_out",
        "other",
        "layer.weight",
        "linear",
    ]
    assert largest_gap(subject, tmp_path / "model.onnx") < 2e-6


def test_an_operator_without_an_onnx_form_is_named(tmp_path: Path) -> None:
    says = (
        r"^model\.onnx: Eigenvalues cannot be exported: No ONNX function found for"
        r" .*aten\.linalg_eig[^\n]*$"
    )
    with pytest.raises(ExportError, match=says):
        write_file("onnx", specimens.odd_subject(specimens.Eigenvalues()), tmp_path / "model.onnx")


def test_many_weights_go_to_a_file_that_is_found_after_a_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, aside = specimens.classifier(), tmp_path / "aside"
    aside.mkdir()
    monkeypatch.setattr(onnx_format, "_MAX_INLINE_BYTES", 100)
    write_file("onnx", subject, aside / "half-done.onnx")
    assert {path.name for path in aside.iterdir()} == {"half-done.onnx", "model.onnx.data"}
    (aside / "half-done.onnx").rename(tmp_path / "model.onnx")
    (aside / "model.onnx.data").rename(tmp_path / "model.onnx.data")
    assert largest_gap(subject, tmp_path / "model.onnx") < 2e-6
    assert read_metadata(tmp_path / "model.onnx").format == "onnx"
    (tmp_path / "model.onnx.data").unlink()
    with pytest.raises(ValueError, match="onnxruntime cannot read it"):
        open_model(tmp_path / "model.onnx")


@pytest.mark.parametrize("name", ["two inputs", "tied"])
def test_half_has_weights_in_float16_and_inputs_in_float32(tmp_path: Path, name: str) -> None:
    subject = specimens.SUBJECTS[name]()
    written = write_file("onnx", subject, tmp_path / "model.half.onnx", precision="float16")
    model = onnx.load(str(tmp_path / "model.half.onnx"))
    kinds = {weight.data_type for weight in model.graph.initializer if len(weight.dims) > 1}
    assert kinds == {onnx.TensorProto.FLOAT16}
    assert written.precision == "float16"
    assert 0 < largest_gap(subject, tmp_path / "model.half.onnx") < 5e-3
    # the model itself is left as it was
    assert next(subject.model.parameters()).dtype.itemsize == 4


@pytest.mark.slow
def test_half_leaves_the_preprocessing_its_digits(tmp_path: Path) -> None:
    subject = specimens.classifier_of_images()
    write_file("onnx", subject, tmp_path / "model.half.onnx", precision="float16")
    assert 0 < largest_gap(subject, tmp_path / "model.half.onnx") < 1e-3


@pytest.mark.parametrize("name", ["conv", pytest.param("images", marks=pytest.mark.long)])
def test_int8_has_whole_weights_per_channel_and_stays_close(tmp_path: Path, name: str) -> None:
    subject = specimens.SUBJECTS[name]()
    subject = replace(subject, calibration=partial(calibration, subject))
    written = write_file("onnx", subject, tmp_path / "model.int8.onnx", precision="int8")
    model = onnx.load(str(tmp_path / "model.int8.onnx"))
    weights = {value.name: onnx.numpy_helper.to_array(value) for value in model.graph.initializer}
    whole = [
        array
        for array in weights.values()
        if array.dtype == np.int8 and array.shape == (8, 3, 3, 3)
    ]
    assert len(whole) == 1
    scales = [
        weights[node.input[1]] for node in model.graph.node if node.op_type == "DequantizeLinear"
    ]
    assert any(scale.shape == (8,) for scale in scales)  # one for each channel that comes out
    assert written.precision == "int8"
    assert [path.name for path in tmp_path.iterdir()] == ["model.int8.onnx"]
    assert 0 < largest_gap(subject, tmp_path / "model.int8.onnx") < 0.05
    if name == "images":
        _check_the_preprocessing_is_in_float(model)


def _check_the_preprocessing_is_in_float(model: onnx.ModelProto) -> None:
    nodes = list(model.graph.node)
    convolution = next(at for at, node in enumerate(nodes) if node.op_type == "Conv")
    before = [node.op_type for node in nodes[:convolution]]
    assert before.count("MatMul") >= 2  # the two passes of the resize
    producers = {name: node for node in nodes for name in node.output}
    resizing = [node for node in nodes[:convolution] if node.op_type == "MatMul"]
    assert not [
        name
        for node in resizing
        for name in node.input
        if producers[name].op_type == "DequantizeLinear"
    ]


def test_a_model_without_anything_to_quantise_is_reported(tmp_path: Path) -> None:
    subject = specimens.double_and_sum()
    subject = replace(subject, calibration=partial(calibration, subject))
    with pytest.raises(
        ExportError, match=r"model\.int8\.onnx: .*nothing to quantise in .*DoubleAndSum"
    ):
        write_file("onnx", subject, tmp_path / "model.int8.onnx", precision="int8")


class Large(nn.Module):
    """Has a value of ``size`` between its layers, and divides by it again."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.size = size
        self.first = nn.Linear(4, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner: torch.Tensor = torch.relu(self.first(x) * self.size) / self.size
        return self.last(inner)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("size", "is_float16"), [(1e2, True), (1e4, True), (6e4, False)], ids=["small", "near", "over"]
)
def test_half_is_proved_with_each_value_in_float16(
    size: float, is_float16: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = Large(size).eval()
    x = torch.randn(20, 4)
    target = ExportTarget(
        model,
        (x[:2],),
        describe_model(model, (x[:2],)),
        EvaluationSamples((x,), [f"row {at}" for at in range(20)]),
    )
    options = ExportOptions.parse({"format": "onnx", "half": True})
    artefacts, failures = export(target, tmp_path, options)
    names = [artefact["file"] for artefact in artefacts]
    if is_float16:
        assert (names, failures) == (["model.onnx", "model.half.onnx"], [])
        found = artefacts[1]["in_float16"]["parity"]["32"]["max_abs"]
        with torch.no_grad():
            expected = (copy.deepcopy(model).half()(x.half()).float() - model(x)).abs().max()
        assert found == pytest.approx(float(expected), rel=1.0, abs=1e-4)
    else:
        assert names == ["model.onnx"]
        assert "model.half.onnx is not a float16 model" in failures[0]
        assert "is inf, expected" in failures[0] or "is nan, expected" in failures[0]
        assert not (tmp_path / "model.half.onnx").exists()
