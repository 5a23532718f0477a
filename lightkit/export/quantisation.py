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

from lightkit.artefacts.metadata import Metadata
from lightkit.errors import ExportError, LightkitError
from lightkit.export.naming import file_name
from lightkit.export.reasons import quiet, reasoned
from lightkit.export.subject import WriteOptions

__all__ = ["quantised"]

# What onnxruntime computes in whole numbers, and what may stand between two such steps; the rest gains nothing.
_OPERATORS = ["Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Clip", "Relu", "MaxPool", "GlobalAveragePool"]


class _Samples(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
    """Hands the calibration's inputs to the quantiser one batch after another."""

    def __init__(self, names: list[str], batches: Iterator[tuple[np.ndarray[Any, Any], ...]]) -> None:
        self.names = names
        self.batches = batches

    def get_next(self) -> dict[str, np.ndarray[Any, Any]] | None:
        batch = next(self.batches, None)
        return None if batch is None else dict(zip(self.names, batch, strict=True))


def quantised(model: ir.Model, metadata: Metadata, options: WriteOptions, *, folder: Path) -> ir.Model:
    """Give the model with weights, per channel, and activations in int8 (QDQ).

    Args:
        model: In float32.
        metadata: What the file will say of itself.
        options: With the calibration.
        folder: Where there is room for working files; none stays.

    Raises:
        DataError: If a sample of the calibration cannot be read.
        ExportError: If the quantiser fails, or finds nothing to quantise.
    """
    assert options.calibration is not None  # `check_calibration` has seen to it
    samples = _Samples([spec.name for spec in metadata.inputs], iter(options.calibration()))
    with tempfile.TemporaryDirectory(dir=folder, prefix=".quantising-") as room:
        made = Path(room) / "int8.onnx"
        _quantise(model, made, samples, metadata)
        found = ir.load(made)
        ir.external_data.load_to_model(found)  # its weights lie in the folder, which goes
    if not any(node.op_type == "DequantizeLinear" for node in found.graph):
        raise ExportError(
            f"{file_name(metadata)}: onnxruntime's quantiser found nothing to quantise in {metadata.model}."
        )
    return found


def _quantise(model: ir.Model, made: Path, samples: _Samples, metadata: Metadata) -> None:
    plain, prepared = made.with_name("plain.onnx"), made.with_name("prepared.onnx")
    is_large = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value) > 1_000_000_000
    with quiet():
        try:
            ir.save(model, plain, external_data="plain.data" if is_large else None)
            quant_pre_process(plain, prepared, skip_symbolic_shape=True, save_as_external_data=is_large)
            quantize_static(
                prepared,
                made,
                samples,
                quant_format=QuantFormat.QDQ,
                op_types_to_quantize=_OPERATORS,
                per_channel=True,
                activation_type=QuantType.QInt8,
                weight_type=QuantType.QInt8,
                use_external_data_format=is_large,
            )
        except LightkitError:  # of the samples
            raise
        except Exception as error:  # the quantiser's errors have no base of their own
            raise ExportError(f"{file_name(metadata)}: onnxruntime's quantiser fails: {reasoned(error)}.") from error
