"""``model.pt2``: the graph of `torch.export` with its weights."""

from __future__ import annotations

import inspect
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from lightkit.export.export_errors import (
    export_error,
    find_code_line,
    format_reason,
    silence_exporters,
)
from lightkit.export.formats import METADATA_FILE
from lightkit.export.forward import clone_inputs
from lightkit.export.metadata import Metadata
from lightkit.export.target import ExportTarget
from lightkit.rows.preprocessing import find_preprocessing


def write(target: ExportTarget, metadata: Metadata, path: Path) -> Metadata:
    """Write the file, and return its metadata.

    Args:
        target: Model to export.
        metadata: To be embedded in the file.
        path: The file.

    Raises:
        ExportError: If the graph cannot be captured.
    """
    program = capture_graph(target, metadata.file_name)
    metadata = replace(metadata, how="torch.export")
    with silence_exporters():
        # Into memory first: if torch 2.15 cannot write to a file, its writer ends the process by
        # abort().
        torch.export.save(
            program, content := io.BytesIO(), extra_files={METADATA_FILE: metadata.dumps()}
        )
    path.write_bytes(content.getbuffer())
    return metadata


def _list_dimensions(target: ExportTarget) -> Iterator[dict[int, Any]]:
    """List the dimensions of any length of each input.

    The batch, those of rows, and others of their own.
    """
    batch = Dim("batch", min=1)
    # of a registered graph
    preprocessing = find_preprocessing(target.module) or target.metadata.row_preprocessing
    most = {} if preprocessing is None else preprocessing.open_axes
    shared = {axis: Dim(f"length_{axis}", min=1, max=limit) for axis, limit in most.items()}
    for spec in target.metadata.inputs:
        found = {}
        for axis, length in enumerate(spec.shape):
            if length is None:
                found[axis] = shared.get(axis) or Dim(f"{spec.name}_{axis}", min=1)
        if 0 in found:
            found[0] = batch
        yield found


def capture_graph(
    target: ExportTarget, file: str, *, model: nn.Module | None = None
) -> ExportedProgram:
    """Capture the graph, with the dimensions that the metadata leave open, of any length.

    The batch among them.

    Args:
        target: Model to export.
        file: Name of the file to write, for the error.
        model: Captured in place of the target's model; it takes the same inputs.

    Raises:
        ExportError: With the exporter's reason, if the model depends on the batch size, decides by
            the values of its inputs, or fails.
    """
    model = model or target.model
    shapes: tuple[Any, ...] = tuple(_list_dimensions(target))
    kinds = [parameter.kind for parameter in inspect.signature(model.forward).parameters.values()]
    # the exporter wants the shapes of *inputs in a tuple of their own
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        num = kinds.index(inspect.Parameter.VAR_POSITIONAL)
        shapes = (*shapes[:num], shapes[num:])
    with silence_exporters() as lines, torch.no_grad():
        try:
            program = torch.export.export(
                model, clone_inputs(target.example), dynamic_shapes=shapes
            )
        except Exception as error:  # the model's own code raises anything
            line = find_code_line(error) or (lines[-1] if lines else None)
            raise export_error(file, target.module, format_reason(error), line=line) from error
    return program
