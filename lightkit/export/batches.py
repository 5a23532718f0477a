"""Whether an exported program takes batches of any size, as its model does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lightkit.export.fresh.runtimes import flatten
from lightkit.export.reasons import code_line, quiet, reasoned, refused
from lightkit.export.subject import Subject, own

__all__ = ["check_batches"]

_SIZES = (1, 3)
"""Exporters look at one batch of two or more; one alone is what they most often treat apart."""
_NEVER_THE_SAME = (
    "called twice on the same inputs, its forward gives different outputs: it keeps state, or draws random numbers in "
    "eval mode too"
)


def check_batches(program: Callable[..., Any], subject: Subject, file: str) -> None:
    """Run a program and its model on batches of other sizes than the example's.

    A program that differs at every size is none of this: that is for the proof, which tells by how much.

    Args:
        program: What was made of the model.
        subject: What is exported.
        file: Name of the file that is to be written, for the error.

    Raises:
        ExportError: If the model or the program fails at another size, gives outputs of another shape, or values that
            differ from the model's at that size only; or if the model gives something else at each call.
    """
    runs: tuple[Callable[..., Any], ...] = (subject.model, subject.model, program)
    expected, again, found = (_given(run, subject.example, subject, file) for run in runs)
    if not _is_close(expected, again):
        raise refused(file, subject.plain, _NEVER_THE_SAME)
    is_alike = _is_close(expected, found)
    for size in _SIZES:
        inputs = tuple(_resized(value, size) for value in subject.example)
        expected, found = (_given(run, inputs, subject, file) for run in (subject.model, program))
        reason = _difference(subject, size, _shapes(expected), _shapes(found))
        if reason is None and is_alike and not _is_close(expected, found):
            reason = f"the exporter took it to do with {size} what it does with {len(subject.example[0])}"
        if reason:
            raise refused(file, subject.plain, f"it depends on the batch size: {reason}")


def _given(run: Callable[..., Any], inputs: tuple[Tensor, ...], subject: Subject, file: str) -> list[Tensor]:
    with quiet(), torch.no_grad():
        try:
            return flatten(run(*own(inputs)))
        except Exception as error:  # whatever the model's own code raises
            reason = f"it depends on the batch size, and fails at {len(inputs[0])}: {reasoned(error)}"
            raise refused(file, subject.plain, reason, line=code_line(error)) from error


def _difference(
    subject: Subject, size: int, expected: list[tuple[int, ...]], found: list[tuple[int, ...]]
) -> str | None:
    specs = subject.metadata.outputs
    wanted = [size if spec.shape[:1] == (None,) else None for spec in specs]
    if any(want is not None and shape[:1] != (want,) for want, shape in zip(wanted, expected, strict=False)):
        return f"for {size} samples it gives {_told(expected)}"
    return None if found == expected else f"for {size} samples the file gives {_told(found)}, not {_told(expected)}"


def _resized(value: Tensor, size: int) -> Tensor:
    """Give a batch of another size, its samples taken in turn; what has no batch stays."""
    return value[torch.arange(size) % len(value)] if value.dim() else value


def _is_close(expected: list[Tensor], found: list[Tensor]) -> bool:
    pairs = zip(expected, found, strict=False)
    return all(
        one.shape == two.shape and torch.allclose(one.double(), two.double(), 1e-3, 1e-4, True) for one, two in pairs
    )


def _shapes(values: list[Tensor]) -> list[tuple[int, ...]]:
    return [tuple(value.shape) for value in values]


def _told(shapes: list[tuple[int, ...]]) -> str:
    return " and ".join(map(str, shapes))
