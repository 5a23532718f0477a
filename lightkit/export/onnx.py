"""``model.onnx``: the graph of `torch.export` in ONNX's operators, in float32, with weights in float16, or in int8."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import torch
from torch import Tensor, nn

from lightkit.errors import ExportError
from lightkit.export.capture import capture_graph
from lightkit.export.export_errors import export_error, format_reason, silence_exporters
from lightkit.export.graph_preprocessing import ImageToProbabilities
from lightkit.export.metadata import METADATA_KEY, Metadata, TensorSpec
from lightkit.export.quantize import quantize
from lightkit.export.target import ExportTarget, WriteOptions

DEFAULT_OPSET = 20
_MAX_INLINE_BYTES = 2_000_000_000  # a protobuf holds 2 GiB at most, the graph included


def write(
    target: ExportTarget,
    metadata: Metadata,
    path: Path,
    options: WriteOptions,
    *,
    max_inline_bytes: int = _MAX_INLINE_BYTES,
) -> Metadata:
    """Write the file, and beside it ``<final name>.data`` with the weights if they are too large; return its metadata.

    Args:
        target: Model to export.
        metadata: To be embedded in the file.
        path: The file.
        options: Opset and precision.
        max_inline_bytes: Larger weights go to a file of their own.

    Raises:
        ExportError: If the model cannot be captured or has no ONNX form, or the file is no valid ONNX.
    """
    metadata = replace(metadata, how="torch.onnx (dynamo)", outputs=_rename_outputs(metadata))
    file, opset = metadata.file_name, options.opset or DEFAULT_OPSET
    program = capture_graph(target, file, model=_convert_to_half(target, file) if options.half else None)
    with silence_exporters():
        try:
            converted = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=opset,
                input_names=[spec.name for spec in metadata.inputs],
                output_names=[spec.name for spec in metadata.outputs],
            )
        except Exception as error:  # the exporter's errors have no common base class
            raise export_error(file, target.plain, format_reason(error)) from error
    assert converted is not None  # only if the exporter writes the file itself
    model = converted.model
    _rename_values(model, metadata)
    if options.int8:
        model = quantize(model, metadata, options, folder=path.parent)
    model.metadata_props[METADATA_KEY] = metadata.dumps()
    sizes = [value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None]
    ir.save(model, path, external_data=f"{file}.data" if sum(sizes) > max_inline_bytes else None)
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ExportError(f"{file}: onnx's checker refuses the file: {format_reason(error)}.") from error
    opsets = {entry.domain: entry.version for entry in onnx.load(str(path), load_external_data=False).opset_import}
    if opsets.get("") != opset:  # torch only logs that it could not convert it, and leaves its own
        raise ExportError(
            f"{file}: this model cannot be written for opset {opset}, torch gave {opsets.get('')}. "
            f"Say --opset {opsets.get('')}."
        )
    return metadata


def _rename_outputs(metadata: Metadata) -> tuple[TensorSpec, ...]:
    """Give the outputs names that no input and no other output has: in ONNX all are values of one graph."""
    inputs = {spec.name for spec in metadata.inputs}
    taken = inputs | {spec.name for spec in metadata.outputs}
    outputs = []
    for spec in metadata.outputs:
        name = spec.name if spec.name not in inputs else _free_name(f"{spec.name}_out", taken)
        taken.add(name)
        outputs.append(replace(spec, name=name))
    return tuple(outputs)


def _free_name(name: str, taken: set[str]) -> str:
    candidates = chain([name], (f"{name}_{number}" for number in count(2)))
    return next(candidate for candidate in candidates if candidate not in taken)


def _rename_values(model: ir.Model, metadata: Metadata) -> None:
    """Rename inner values that are called as an input or output, and open sizes such as ``s77``."""
    graph = model.graph
    ends = {value.name: value for value in (*graph.inputs, *graph.outputs)}
    inner = [*graph.initializers.values(), *(value for node in graph for value in node.outputs)]
    taken = {str(name) for name in (*ends, *(value.name for value in inner))}
    for value in inner:
        if value.name in ends and value is not ends[value.name]:
            value.name = _free_name(f"{value.name}_inside", taken)
            taken.add(value.name)
    sizes = {}
    for spec, value in zip(metadata.inputs, graph.inputs, strict=True):
        for axis, size in enumerate(value.shape or ()):
            if not isinstance(size, int):
                sizes[str(size)] = "batch" if axis == 0 else f"{spec.name}_{axis}"
    for value in (*graph.inputs, *graph.outputs):
        if value.shape is not None:
            value.shape = ir.Shape([s if isinstance(s, int) else sizes.get(str(s), s) for s in value.shape])


class _Half(nn.Module):
    """A copy of a model in float16, with inputs and outputs in float32."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).half()

    def forward(self, *inputs: Tensor) -> Any:
        return _to_float(self.model(*(value.half() if value.is_floating_point() else value for value in inputs)))


def _to_float(outputs: Any) -> Any:
    if isinstance(outputs, Tensor):
        return outputs.float() if outputs.dtype == torch.float16 else outputs
    if isinstance(outputs, Mapping):
        return {name: _to_float(value) for name, value in outputs.items()}
    return [_to_float(value) for value in outputs]


def _convert_to_half(target: ExportTarget, file: str) -> nn.Module:
    """Convert all but the preprocessing, whose sums need their digits.

    Raises:
        ExportError: If the model computes in float64, which its forward may name explicitly.
    """
    weights = chain(target.plain.named_parameters(), target.plain.named_buffers())
    if name := next((name for name, weight in weights if weight.dtype == torch.float64), None):
        reason = f"--half rounds weights of float32, and its {name} is float64. Leave --half out"
        raise export_error(file, target.plain, reason)
    half, preprocessing = _Half(target.plain).eval(), target.metadata.preprocessing
    if not isinstance(target.model, ImageToProbabilities):
        return half
    assert preprocessing is not None  # it is in the graph
    return ImageToProbabilities(half, preprocessing, "logits" if target.model.is_logits else "probabilities")
