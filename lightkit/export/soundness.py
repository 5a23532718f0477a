"""Whether a model itself gives something that a file of it can be held against."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lightkit.errors import ExportError
from lightkit.export.describing import given_by
from lightkit.export.subject import Samples, Subject

__all__ = ["check_itself"]

_RTOL, _ATOL = 1e-4, 1e-5  # those of a float32 file


def check_itself(plain: Subject, samples: Samples) -> None:
    """Run a model on its samples before any file of it is written.

    In batches as large as its example: whether it takes others is for the exporter to say, and for the proof.

    Args:
        plain: The model, without preprocessing in its graph.
        samples: What it is going to be proved on.

    Raises:
        ExportError: If it fails, or gives NaN, or something else when it is run again on the same samples.
    """
    num, size = len(samples.inputs[0]), len(plain.example[0])
    for start in range(0, num, size):
        rows = [row % num for row in range(start, start + size)]
        inputs = [values[rows] for values in samples.inputs]
        given = _run(plain, inputs)
        _check_nan(plain, given, [samples.names[row] for row in rows])
        if not start:
            _check_again(plain, given, _run(plain, inputs))


def _run(plain: Subject, inputs: list[Tensor]) -> list[Tensor]:
    return list(given_by(plain.plain, inputs).values())


def _check_nan(plain: Subject, given: list[Tensor], names: Sequence[str]) -> None:
    for place, output in enumerate(given):
        found = output.isnan().nonzero()
        if not len(found):
            continue
        row = int(found[0][0]) if output.ndim and len(output) == len(names) else 0
        raise ExportError(
            f"{_name(plain)} itself gives NaN: {_output(plain, place)} has {len(found)} of them in a batch of "
            f"{output.numel()} values, first for {names[row]}. No file of it can be proved. Look for weights that are "
            f"NaN, which a training with a loss of NaN leaves, or for a division by zero."
        )


def _check_again(plain: Subject, given: list[Tensor], again: list[Tensor]) -> None:
    for place, (one, two) in enumerate(zip(given, again, strict=True)):
        if one.shape == two.shape and torch.allclose(one, two, rtol=_RTOL, atol=_ATOL):
            continue
        raise ExportError(
            f"{_name(plain)} itself gives something else each time: {_output(plain, place)} differs when the same "
            f"samples are given again. No file of it can be proved. Look in its forward for dropout that stays on in "
            f"eval mode (dropout(x) without training=self.training), other random numbers, or what it keeps from "
            f"call to call."
        )


def _name(plain: Subject) -> str:
    return type(plain.plain).__name__


def _output(plain: Subject, place: int) -> str:
    specs = plain.metadata.outputs
    return repr(specs[place].name) if place < len(specs) else f"output {place}"
