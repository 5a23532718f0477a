"""``model.onnx``: the graph of `torch.export` in ONNX's operators.

In float32, with weights in float16, or in int8.
"""

from __future__ import annotations

import copy
import tempfile
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import onnx_ir as ir
import torch
from lightning_utilities.core.apply_func import apply_to_collection
from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from torch import Tensor, nn

from lightkit.errors import ExportError, LightkitError
from lightkit.export.export_errors import export_error, format_reason, silence_exporters
from lightkit.export.formats import METADATA_KEY
from lightkit.export.image_transform import ImageToProbabilities, activation_of, is_pair
from lightkit.export.metadata import Metadata
from lightkit.export.onnx_operators import TRANSLATIONS
from lightkit.export.target import ExportTarget
from lightkit.export.torch_export import capture_graph

DEFAULT_OPSET = 20
_MAX_INLINE_BYTES = 2_000_000_000  # a protobuf holds 2 GiB at most, the graph included


def write(target: ExportTarget, metadata: Metadata, path: Path) -> Metadata:
    """Write the file, and next to it ``<final name>.data`` if the weights are too large.

    Return its metadata.

    Args:
        target: Model to export.
        metadata: To be embedded in the file.
        path: The file.

    Raises:
        ExportError: If the model cannot be captured or has no ONNX form, or the file is no valid
            ONNX.
    """
    # of which an output has another name: all are values of one graph
    inputs = {spec.name for spec in metadata.inputs}
    outputs = [
        replace(spec, name=f"{spec.name}_out") if spec.name in inputs else spec
        for spec in metadata.outputs
    ]
    file = metadata.file_name
    opset = metadata.opset or DEFAULT_OPSET
    metadata = replace(metadata, how="torch.onnx (dynamo)", opset=opset, outputs=tuple(outputs))
    model = _round_weights(target, metadata) if metadata.precision == "float16" else None
    program = capture_graph(target, file, model=model)
    with silence_exporters():
        try:
            converted = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=opset,
                input_names=[spec.name for spec in metadata.inputs],
                output_names=[spec.name for spec in metadata.outputs],
                custom_translation_table=TRANSLATIONS,
            )
        except Exception as error:  # the exporter's errors have no common base class
            raise export_error(file, target.module, format_reason(error)) from error
    assert converted is not None  # only if the exporter writes the file itself
    graph = converted.model
    _rename_values(graph, metadata)
    if metadata.precision == "int8":
        graph = _quantize(graph, metadata, target, folder=path.parent)
    graph.metadata_props[METADATA_KEY] = metadata.dumps()
    _save(graph, path, f"{file}.data")
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ExportError(
            f"{file}: onnx's checker refuses the file: {format_reason(error)}."
        ) from error
    # torch only logs that it could not convert it
    if (given := graph.opset_imports.get("")) != opset:
        raise ExportError(
            f"{file}: this model cannot be written for opset {opset}, torch gave {given}. Say"
            f" --opset {given}."
        )
    return metadata


def _save(model: ir.Model, path: Path, data: str) -> None:
    """Save a model, with its weights in another file next to it if they are too large for one."""
    tensors = (value.const_value for value in model.graph.initializers.values())
    size = sum(tensor.nbytes for tensor in tensors if tensor is not None)
    ir.save(model, path, external_data=data if size > _MAX_INLINE_BYTES else None)


def _round_weights(target: ExportTarget, metadata: Metadata) -> nn.Module:
    """Return the model in float16, all but the preprocessing, whose sums need their digits.

    Raises:
        ExportError: If a weight is float64.
    """
    weights = chain(target.module.named_parameters(), target.module.named_buffers())
    for name, weight in weights:
        if weight.dtype == torch.float64:
            reason = (
                f"--half rounds weights of float32, and its {name} is float64. Leave --half out"
            )
            raise export_error(metadata.file_name, target.module, reason)
    model = _Half(target.module).eval()
    if target.plain is None or metadata.preprocessing is None:
        return model
    plain = target.plain.metadata
    return ImageToProbabilities(
        model, metadata.preprocessing, activation_of(plain), is_pair=is_pair(plain)
    )


def write_rounded(file: Path, path: Path) -> None:
    """Write the same graph in float32, with the file's float16 values rounded to float16.

    It shows on any processor what one that computes in float16 gives. The rounding is a cast to
    float16 and back: a runtime may not leave it out, as it may where operators of float16 are
    computed in float32.

    Args:
        file: An ONNX file with values in float16.
        path: The file to write.
    """
    model = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.load(str(file)), data_prop=True))
    half = ir.DataType.FLOAT16
    single = ir.DataType.FLOAT
    for graph in (model.graph, *model.graph.subgraphs()):
        for value in graph.initializers.values():
            if value.const_value is not None and value.const_value.dtype == half:
                value.const_value = ir.tensor(
                    value.const_value.numpy().astype("float32"), name=value.name
                )
                value.dtype = single
        for value in graph.inputs:
            if value.dtype == half:
                value.dtype = single
    for node in [*model.graph.all_nodes()]:
        _compute_in_float32(node)
        for value in node.outputs:
            if value.dtype == half:
                value.dtype = single
                _round_to_float16(node, value)
    _save(model, path, f"{path.name}.data")


def _compute_in_float32(node: ir.Node) -> None:
    """Replace float16 in a node's attributes.

    Constants, and the type that a cast or a generator gives.
    """
    for name, attribute in [*node.attributes.items()]:
        if (
            attribute.type == ir.AttributeType.TENSOR
            and attribute.value.dtype == ir.DataType.FLOAT16
        ):
            node.attributes[name] = ir.AttrTensor(
                name, ir.tensor(attribute.value.numpy().astype("float32"))
            )
        elif name in ("to", "dtype") and attribute.value == ir.DataType.FLOAT16:
            node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.FLOAT))


def _round_to_float16(node: ir.Node, value: ir.Value) -> None:
    """Put a cast to float16 and back behind an output of a node."""
    uses = [*value.uses()]
    is_output = value.is_graph_output()
    down = ir.node("Cast", [value], {"to": int(ir.DataType.FLOAT16)})
    up = ir.node("Cast", down.outputs, {"to": int(ir.DataType.FLOAT)})
    for each, suffix, dtype in (
        (down, "as_half", ir.DataType.FLOAT16),
        (up, "rounded", ir.DataType.FLOAT),
    ):
        each.outputs[0].name = f"{value.name}_{suffix}"
        each.outputs[0].dtype = dtype
        each.outputs[0].shape = value.shape
    graph = node.graph
    assert graph is not None
    assert not is_output  # those are in float32: see `_Half`
    graph.insert_after(node, [down, up])
    for use in uses:
        use.node.replace_input_with(use.idx, up.outputs[0])


def _rename_values(model: ir.Model, metadata: Metadata) -> None:
    """Rename inner values that are called as an input or output, and open sizes such as ``s77``."""
    graph = model.graph
    ends = {value.name: value for value in (*graph.inputs, *graph.outputs)}
    for value in (
        *graph.initializers.values(),
        *(value for node in graph for value in node.outputs),
    ):
        if value is not ends.get(value.name, value):
            value.name = f"{value.name}_inside"
    _rename_sizes(graph, metadata)


def _rename_sizes(graph: ir.Graph, metadata: Metadata) -> None:
    """Rename open sizes of inputs and outputs: ``batch``, others by the input and its axis."""
    sizes: dict[str, str] = {}
    for spec, value in zip(metadata.inputs, graph.inputs, strict=True):
        for axis, size in enumerate(value.shape or ()):
            if not isinstance(size, int):
                sizes[str(size)] = "batch" if axis == 0 else f"{spec.name}_{axis}"
    for value in (*graph.inputs, *graph.outputs):
        if value.shape is not None:
            value.shape = ir.Shape(
                [s if isinstance(s, int) else sizes.get(str(s), s) for s in value.shape]
            )


class _Half(nn.Module):
    """A copy of a model in float16, with inputs and outputs in float32."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).half()

    def forward(self, *inputs: Tensor) -> Any:
        outputs = self.model(
            *(value.half() if value.is_floating_point() else value for value in inputs)
        )
        return apply_to_collection(
            outputs, Tensor, lambda each: each.float() if each.dtype == torch.float16 else each
        )


# What onnxruntime computes in whole numbers, and what may stand between two such steps; the rest
# gains nothing.
_OPERATORS = [
    "Conv",
    "ConvTranspose",
    "Gemm",
    "MatMul",
    "Add",
    "Clip",
    "Relu",
    "MaxPool",
    "GlobalAveragePool",
]


def _quantize(
    model: ir.Model, metadata: Metadata, target: ExportTarget, *, folder: Path
) -> ir.Model:
    """Quantise weights to 7 bits, per channel, and activations to int8 (QDQ).

    Args:
        model: In float32.
        metadata: Of the file.
        target: With the calibration.
        folder: For working files; none stays.

    Raises:
        DataError: If a sample of the calibration cannot be read.
        ExportError: If the quantiser fails, or finds nothing to quantise.
    """
    names = [spec.name for spec in metadata.inputs]
    batches = (dict(zip(names, batch, strict=True)) for batch in target.calibration())
    # what a CalibrationDataReader has
    reader = SimpleNamespace(get_next=lambda: next(batches, None))
    with tempfile.TemporaryDirectory(dir=folder, prefix=".quantising-") as temporary:
        plain, prepared, made = (
            Path(temporary) / f"{name}.onnx" for name in ("plain", "prepared", "int8")
        )
        with silence_exporters():
            try:
                ir.save(model, plain)
                quant_pre_process(plain, prepared, skip_symbolic_shape=True)
                quantize_static(
                    prepared,
                    made,
                    reader,
                    quant_format=QuantFormat.QDQ,
                    op_types_to_quantize=_OPERATORS,
                    per_channel=True,
                    activation_type=QuantType.QInt8,
                    weight_type=QuantType.QInt8,
                    # Weights of 7 bits, as onnxruntime advises: without VNNI its kernels add two
                    # products of a byte and a weight in 16 bits, where 2 * 255 * 127 saturates. So
                    # every processor gives the same sums.
                    reduce_range=True,
                )
            except LightkitError:  # of the samples
                raise
            except Exception as error:  # the quantiser's errors have no common base class
                reason = format_reason(error)
                raise ExportError(
                    f"{metadata.file_name}: onnxruntime's quantiser fails: {reason}."
                ) from error
        quantized = ir.load(made)
    if not any(node.op_type == "DequantizeLinear" for node in quantized.graph):
        raise ExportError(
            f"{metadata.file_name}: onnxruntime's quantiser found nothing to quantise in"
            f" {metadata.model}."
        )
    return quantized
