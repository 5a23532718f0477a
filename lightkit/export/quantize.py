"""ONNX graphs in int8: onnxruntime's static quantiser, calibrated on training samples."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from lightkit.errors import ExportError, LightkitError
from lightkit.export.export_errors import format_reason, silence_exporters
from lightkit.export.metadata import Metadata
from lightkit.export.target import WriteOptions

# What onnxruntime computes in whole numbers, and what may stand between two such steps; the rest gains nothing.
_OPERATORS = ["Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Clip", "Relu", "MaxPool", "GlobalAveragePool"]
_MAX_INLINE_BYTES = 1_000_000_000


class _CalibrationReader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
    def __init__(self, names: list[str], batches: Iterator[tuple[np.ndarray[Any, Any], ...]]) -> None:
        self.names = names
        self.batches = batches

    def get_next(self) -> dict[str, np.ndarray[Any, Any]] | None:
        batch = next(self.batches, None)
        return None if batch is None else dict(zip(self.names, batch, strict=True))


def quantize(model: ir.Model, metadata: Metadata, options: WriteOptions, *, folder: Path) -> ir.Model:
    """Quantise weights to 7 bits, per channel, and activations to int8 (QDQ).

    Args:
        model: In float32.
        metadata: Of the file.
        options: With the calibration.
        folder: For working files; none stays.

    Raises:
        DataError: If a sample of the calibration cannot be read.
        ExportError: If the quantiser fails, or finds nothing to quantise.
    """
    assert options.calibration is not None  # `export` has checked it
    reader = _CalibrationReader([spec.name for spec in metadata.inputs], iter(options.calibration()))
    sizes = [value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None]
    is_large = sum(sizes) > _MAX_INLINE_BYTES
    with tempfile.TemporaryDirectory(dir=folder, prefix=".quantising-") as temporary:
        plain, prepared, made = (Path(temporary) / f"{name}.onnx" for name in ("plain", "prepared", "int8"))
        with silence_exporters():
            try:
                ir.save(model, plain, external_data="plain.data" if is_large else None)
                quant_pre_process(plain, prepared, skip_symbolic_shape=True, save_as_external_data=is_large)
                quantize_static(
                    prepared,
                    made,
                    reader,
                    quant_format=QuantFormat.QDQ,
                    op_types_to_quantize=_OPERATORS,
                    per_channel=True,
                    activation_type=QuantType.QInt8,
                    weight_type=QuantType.QInt8,
                    # Weights of 7 bits, as onnxruntime advises: without VNNI its kernels add two products of a byte and
                    # a weight in 16 bits, where 2 * 255 * 127 saturates. So every processor gives the same sums.
                    reduce_range=True,
                    use_external_data_format=is_large,
                )
            except LightkitError:  # of the samples
                raise
            except Exception as error:  # the quantiser's errors have no common base class
                reason = format_reason(error)
                raise ExportError(f"{metadata.file_name}: onnxruntime's quantiser fails: {reason}.") from error
        quantized = ir.load(made)
        ir.external_data.load_to_model(quantized)  # its weights are in the temporary folder
    if not any(node.op_type == "DequantizeLinear" for node in quantized.graph):
        raise ExportError(
            f"{metadata.file_name}: onnxruntime's quantiser found nothing to quantise in {metadata.model}."
        )
    return quantized
