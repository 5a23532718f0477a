"""The graph of a model, as `torch.export` sees it, from which both ``.pt2`` and ONNX files are made."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from lightkit.artefacts.metadata import TensorSpec
from lightkit.export.batches import check_batches
from lightkit.export.reasons import code_line, quiet, reasoned, refused
from lightkit.export.subject import Subject, own

__all__ = ["captured"]


def captured(subject: Subject, file: str, *, model: nn.Module | None = None) -> ExportedProgram:
    """Give the graph, with the dimensions that the metadata leave open, the batch among them, of any length.

    It never settles for a graph of one batch size: a model that needs that is refused.

    Args:
        subject: What is exported.
        file: Name of the file that is to be written, for the error.
        model: What to capture in place of the subject's model; it takes the same inputs.

    Raises:
        ExportError: With the exporter's reason, if the model depends on the batch size, decides by the values of its
            inputs, or fails.
    """
    model = model or subject.model
    shapes = _as_arguments(_dynamic(subject.metadata.inputs), model)
    with quiet() as guards, torch.no_grad():
        try:
            program = torch.export.export(model, own(subject.example), dynamic_shapes=shapes)
        except Exception as error:  # whatever the model's own code raises while it is captured
            line = code_line(error) or guards.line
            raise refused(file, subject.plain, reasoned(error), line=line) from error
    if model is subject.model:
        check_batches(program.module(), subject, file)
    return program


def _dynamic(inputs: tuple[TensorSpec, ...]) -> tuple[Mapping[int, Any] | None, ...]:
    batch = Dim("batch", min=1)
    return tuple(
        {
            axis: batch if axis == 0 else Dim(f"{spec.name}_{axis}", min=1)
            for axis, length in enumerate(spec.shape)
            if length is None
        }
        for spec in inputs
    )


def _as_arguments(shapes: tuple[Any, ...], model: nn.Module) -> tuple[Any, ...]:
    """Lay those of ``*inputs`` into a tuple of their own, as the exporter wants them."""
    parameters = list(inspect.signature(model.forward).parameters.values())
    at = next((at for at, parameter in enumerate(parameters) if parameter.kind is parameter.VAR_POSITIONAL), None)
    return shapes if at is None else (*shapes[:at], shapes[at:])
