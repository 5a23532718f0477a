"""Capture a model's graph by `torch.export`, with a batch of any size; ``.pt2`` and ONNX files are made of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from lightkit.export.export_errors import export_error, find_code_line, format_reason, silence_exporters
from lightkit.export.target import ExportTarget, clone_inputs
from lightkit.export.worker import flatten

_BATCH_SIZES = (1, 3)
"""Exporters see one batch of two or more; they most often treat a batch of one differently."""


def capture_graph(target: ExportTarget, file: str, *, model: nn.Module | None = None) -> ExportedProgram:
    """Capture the graph, with the dimensions that the metadata leave open, the batch among them, of any length.

    Args:
        target: Model to export.
        file: Name of the file to write, for the error.
        model: Captured in place of the target's model; it takes the same inputs.

    Raises:
        ExportError: With the exporter's reason, if the model depends on the batch size, decides by the values of its
            inputs, or fails.
    """
    model = model or target.model
    batch = Dim("batch", min=1)
    shapes: tuple[Any, ...] = tuple(
        {
            axis: batch if axis == 0 else Dim(f"{spec.name}_{axis}", min=1)
            for axis, length in enumerate(spec.shape)
            if length is None
        }
        for spec in target.metadata.inputs
    )
    kinds = [parameter.kind for parameter in inspect.signature(model.forward).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:  # the exporter wants the shapes of *inputs in a tuple of their own
        num = kinds.index(inspect.Parameter.VAR_POSITIONAL)
        shapes = (*shapes[:num], shapes[num:])
    with silence_exporters() as guards, torch.no_grad():
        try:
            program = torch.export.export(model, clone_inputs(target.example), dynamic_shapes=shapes)
        except Exception as error:  # the model's own code raises anything
            line = find_code_line(error) or guards.line
            raise export_error(file, target.plain, format_reason(error), line=line) from error
    if model is target.model:
        check_batch_sizes(program.module(), target, file)
    return program


def check_batch_sizes(program: Callable[..., Any], target: ExportTarget, file: str) -> None:
    """Compare a program with its model at other batch sizes than the example's.

    A program that differs at every size passes: the proof reports by how much.

    Args:
        program: Graph or script of the model.
        target: Model to export.
        file: Name of the file to write, for the error.

    Raises:
        ExportError: If the model or the program fails at another size, returns other shapes, or values that differ from
            the model's at that size only.
    """
    is_alike = _are_close(*(_run(run, target.example, target, file) for run in (target.model, program)))
    for size in _BATCH_SIZES:
        inputs = tuple(
            value[torch.arange(size) % len(value)] if value.dim() else value  # samples in turn
            for value in target.example
        )
        expected, found = (_run(run, inputs, target, file) for run in (target.model, program))
        specs = zip(target.metadata.outputs, expected, strict=False)
        if any(spec.shape[:1] == (None,) and value.shape[:1] != (size,) for spec, value in specs):
            reason = f"for {size} samples it gives {_format_shapes(expected)}"
        elif _format_shapes(found) != _format_shapes(expected):
            reason = f"for {size} samples the file gives {_format_shapes(found)}, not {_format_shapes(expected)}"
        elif is_alike and not _are_close(expected, found):
            reason = f"the exporter took it to do with {size} what it does with {len(target.example[0])}"
        else:
            continue
        raise export_error(file, target.plain, f"it depends on the batch size: {reason}")


def _run(run: Callable[..., Any], inputs: tuple[Tensor, ...], target: ExportTarget, file: str) -> list[Tensor]:
    with silence_exporters(), torch.no_grad():
        try:
            return flatten(run(*clone_inputs(inputs)))
        except Exception as error:  # the model's own code raises anything
            reason = f"it depends on the batch size, and fails at {len(inputs[0])}: {format_reason(error)}"
            raise export_error(file, target.plain, reason, line=find_code_line(error)) from error


def _are_close(expected: list[Tensor], found: list[Tensor]) -> bool:
    return all(
        one.shape == two.shape and torch.allclose(one.double(), two.double(), 1e-3, 1e-4, True)
        for one, two in zip(expected, found, strict=False)
    )


def _format_shapes(values: list[Tensor]) -> str:
    return " and ".join(str(tuple(value.shape)) for value in values)
