"""Whether a model itself gives something that a file of it can be held against."""

from __future__ import annotations

import torch
from torch import Tensor

from lightkit.errors import ExportError
from lightkit.export.fresh.runtimes import flatten
from lightkit.export.subject import Samples, Subject, own

__all__ = ["check_itself"]

_BATCH = 32
_RTOL, _ATOL = 1e-4, 1e-5  # those of a float32 file


def check_itself(plain: Subject, samples: Samples) -> None:
    """Run a model on its samples before any file of it is written.

    Args:
        plain: The model, without preprocessing in its graph.
        samples: What it is going to be proved on.

    Raises:
        ExportError: If it gives NaN, or something else when it is run again on the same samples.
    """
    for start in range(0, len(samples.inputs[0]), _BATCH):
        inputs = [values[start : start + _BATCH] for values in samples.inputs]
        try:
            given = _run(plain, inputs)
            again = _run(plain, inputs) if not start else given
        except Exception:  # noqa: BLE001 - whatever forward raises, of which the proof tells at which batch size
            return
        _check_nan(plain, given, samples, start)
        _check_again(plain, given, again)


def _run(plain: Subject, inputs: list[Tensor]) -> list[Tensor]:
    with torch.no_grad():
        return flatten(plain.plain(*own(inputs)))


def _check_nan(plain: Subject, given: list[Tensor], samples: Samples, start: int) -> None:
    for place, output in enumerate(given):
        found = output.isnan().nonzero()
        if not len(found):
            continue
        row = start + int(found[0][0]) if output.ndim and len(output) == len(samples.inputs[0][start:][:_BATCH]) else 0
        raise ExportError(
            f"{_name(plain)} itself gives NaN: {_output(plain, place)} has {len(found)} of them in "
            f"{output.numel()} values, first for {samples.names[row]}. No file of it can be proved. Look for "
            f"weights that are NaN, which a training with a loss of NaN leaves, or for a division by zero."
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
