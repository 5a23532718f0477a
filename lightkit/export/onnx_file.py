"""``model.onnx``: the graph of `torch.export` in ONNX's operators, in float32, with weights in float16, or in int8."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import torch
from torch import Tensor, nn

from lightkit.artefacts.metadata import KEY, Metadata, TensorSpec
from lightkit.errors import ExportError
from lightkit.export.capture import captured
from lightkit.export.in_graph import Prepared, with_preprocessing
from lightkit.export.naming import file_name
from lightkit.export.opsets import DEFAULT_OPSET
from lightkit.export.quantisation import quantised
from lightkit.export.reasons import quiet, reasoned, refused
from lightkit.export.subject import Subject, WriteOptions

__all__ = ["write"]

_LARGEST_BYTES = 2_000_000_000  # a protobuf holds 2 GiB at most, the graph itself included


def write(
    subject: Subject, metadata: Metadata, path: Path, options: WriteOptions, *, largest_bytes: int = _LARGEST_BYTES
) -> Metadata:
    """Write the file, and beside it ``<final name>.data`` with the weights where those are too many.

    Args:
        subject: What is exported.
        metadata: What the file is to say of itself.
        path: The file.
        options: Opset and precision.
        largest_bytes: Size of the weights from which on they go to a file of their own.

    Returns:
        What it says of itself.

    Raises:
        ExportError: If the model cannot be captured or has no ONNX form, or the file is no sound ONNX.
    """
    metadata = replace(metadata, how="torch.onnx (dynamo)", outputs=_named_apart(metadata))
    opset = options.opset or DEFAULT_OPSET
    model = _converted(subject, metadata, opset, is_half=options.half)
    if options.int8:
        model = quantised(model, metadata, options, folder=path.parent)
    model.metadata_props[KEY] = metadata.dumps()
    _save(model, path, data=f"{file_name(metadata)}.data", largest_bytes=largest_bytes)
    _check(path, metadata, opset)
    return metadata


def _named_apart(metadata: Metadata) -> tuple[TensorSpec, ...]:
    """Give the outputs names that no input and no other output has: in ONNX all are values of one graph."""
    inputs = {spec.name for spec in metadata.inputs}
    taken = inputs | {spec.name for spec in metadata.outputs}
    outputs = []
    for spec in metadata.outputs:
        name = spec.name if spec.name not in inputs else _free(f"{spec.name}_out", taken)
        taken.add(name)
        outputs.append(replace(spec, name=name))
    return tuple(outputs)


def _free(name: str, taken: Collection[str]) -> str:
    numbered = (f"{name}_{number}" for number in count(2))
    return next(candidate for candidate in chain([name], numbered) if candidate not in taken)


def _converted(subject: Subject, metadata: Metadata, opset: int, *, is_half: bool) -> ir.Model:
    file = file_name(metadata)
    program = captured(subject, file, model=_halved(subject, file) if is_half else None)
    with quiet():
        try:
            converted = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=opset,
                input_names=[spec.name for spec in metadata.inputs],
                output_names=[spec.name for spec in metadata.outputs],
            )
        except Exception as error:  # the exporter's errors have no base of their own
            raise refused(file, subject.plain, reasoned(error)) from error
    assert converted is not None  # it is None where the exporter writes the file itself
    _rename_what_is_between(converted.model)
    _name_open_sizes(converted.model, metadata)
    return converted.model


def _rename_what_is_between(model: ir.Model) -> None:
    """Give weights, and values between operators, names that no input or output has, as ONNX wants."""
    ends = {value.name: value for value in (*model.graph.inputs, *model.graph.outputs)}
    between = [*model.graph.initializers.values(), *(value for node in model.graph for value in node.outputs)]
    taken = {str(name) for name in (*ends, *(value.name for value in between))}
    for value in between:
        if value.name in ends and value is not ends[value.name]:
            value.name = _free(f"{value.name}_inside", taken)
            taken.add(value.name)


def _name_open_sizes(model: ir.Model, metadata: Metadata) -> None:
    """Call sizes that are open by what they are, and not ``s77``, in the inputs and outputs."""
    names = {}
    for spec, value in zip(metadata.inputs, model.graph.inputs, strict=True):
        for axis, size in enumerate(value.shape or ()):
            if not isinstance(size, int):
                names[str(size)] = "batch" if axis == 0 else f"{spec.name}_{axis}"
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.shape is not None:
            value.shape = ir.Shape(
                [size if isinstance(size, int) else names.get(str(size), size) for size in value.shape]
            )


class _Half(nn.Module):
    """A copy of a model in float16, which takes and gives float32."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).half()

    def forward(self, *inputs: Tensor) -> Any:
        return _as_float(self.model(*(value.half() if value.is_floating_point() else value for value in inputs)))


def _as_float(outputs: Any) -> Any:
    if isinstance(outputs, Tensor):
        return outputs.float() if outputs.dtype == torch.float16 else outputs
    if isinstance(outputs, Mapping):
        return {name: _as_float(value) for name, value in outputs.items()}
    return [_as_float(value) for value in outputs]


def _halved(subject: Subject, file: str) -> nn.Module:
    """Halve all but the preprocessing, whose sums need their digits.

    Raises:
        ExportError: If the model computes in float64, which its forward may ask for in so many words.
    """
    weights = chain(subject.plain.named_parameters(), subject.plain.named_buffers())
    if name := next((name for name, weight in weights if weight.dtype == torch.float64), None):
        reason = f"--half rounds weights of float32, and its {name} is float64. Leave --half out"
        raise refused(file, subject.plain, reason)
    half = _Half(subject.plain).eval()
    said = subject.metadata.preprocessing
    if not isinstance(subject.model, Prepared):
        return half
    assert said is not None  # it was built of it
    return with_preprocessing(half, said, "logits" if subject.model.is_logits else "probabilities")


def _save(model: ir.Model, path: Path, *, data: str, largest_bytes: int) -> None:
    size = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)
    if size > largest_bytes:
        ir.save(model, path, external_data=data)
    else:
        ir.save(model, path)


def _check(path: Path, metadata: Metadata, opset: int) -> None:
    """Let onnx check the file, and that it has the opset that was asked for.

    torch only logs that it could not convert to an opset, and leaves its own.
    """
    file = file_name(metadata)
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ExportError(f"{file}: onnx's checker refuses the file: {reasoned(error)}.") from error
    found = {entry.domain: entry.version for entry in onnx.load(str(path), load_external_data=False).opset_import}
    if found.get("") != opset:
        raise ExportError(
            f"{file}: this model cannot be written for opset {opset}, torch gave {found.get('')}. "
            f"Say --opset {found.get('')}."
        )
