"""Whether two lists of arrays are the same, element by element, and where they first are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lightkit.artefacts.metadata import TensorSpec

__all__ = ["TOLERANCES", "Batch", "Gap", "Parity", "Tolerance", "compare"]

Arrays = Sequence[np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Tolerance:
    """How far an output may be off: ``atol + rtol * |expected|``, the rule of ``torch.testing.assert_close``.

    Args:
        rtol: Relative; that of the artefact's precision if None.
        atol: Absolute, in the units of the output; likewise.
        of_largest: In relation to the largest value of that output over all samples, on top of the others. The
            error of rounded weights grows with what flows through the layers, whatever comes out at the end.
    """

    rtol: float | None = None
    atol: float | None = None
    of_largest: float = 0.0

    def over(self, default: Tolerance) -> Tolerance:
        """Give this one, with what it leaves open from another."""
        return Tolerance(
            rtol=default.rtol if self.rtol is None else self.rtol,
            atol=default.atol if self.atol is None else self.atol,
            of_largest=default.of_largest if self.atol is None else self.of_largest,
        )

    def __str__(self) -> str:
        largest = f", {self.of_largest:g} of the largest" if self.of_largest else ""
        return f"rtol={self.rtol:g}, atol={self.atol:g}{largest}"


TOLERANCES = {
    "float32": Tolerance(1e-4, 1e-5),
    "float16": Tolerance(1e-2, 1e-5, of_largest=0.02),
    "int8": Tolerance(1e-2, 1e-5, of_largest=0.5),
}
"""By the precision of the weights.

Those of float32 allow for fused kernels. The others are two to three times what a MobileNetV2 of five kinds of flowers
gives on 64 real photos, with logits up to 3.4: float16 is off by 0.02 at most (0.006 of the largest), int8 by 0.75
(0.22, with the same class on 63 photos). What that does to the task, the metrics tell.
"""


@dataclass(frozen=True)
class Batch:
    """Some samples, and what the eager model gives for them.

    Args:
        rows: Which samples they are, in order; the last batch is filled up from the start.
        inputs: Each ``(batch, ...)``.
        expected: The outputs, side by side.
    """

    rows: Sequence[int]
    inputs: Arrays
    expected: Arrays


@dataclass(frozen=True)
class Gap:
    """The first output that is outside the tolerance.

    Args:
        batch_size: At which it was seen.
        row: Sample, where the output has one row for each.
        output: Its place among the outputs.
        index: The element's place in the output, without the row.
        expected: Of the eager model.
        exported: Of the file.
        unlike: Where shape, dtype or number differ, the words for it.
    """

    batch_size: int
    row: int | None
    output: int
    index: tuple[int, ...] = ()
    expected: float | None = None
    exported: float | None = None
    unlike: str | None = None


@dataclass
class Parity:
    """What comparing the batches of one size found.

    Args:
        batch_size: That size.
        num_outputs: Number of elements compared.
        num_outside: Of these, outside the tolerance; NaN is, and so is an infinity that the other does not have.
        max_abs: Largest gap among those that are finite in both.
        max_rel: Largest gap in relation to the largest value that the model gives.
        first: Where it is outside first.
    """

    batch_size: int
    num_outputs: int = 0
    num_outside: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    first: Gap | None = None

    def as_dict(self) -> dict[str, Any]:
        """Give the figures for export.json."""
        return {
            "max_abs": self.max_abs,
            "max_rel": self.max_rel,
            "outputs": self.num_outputs,
            "outside": self.num_outside,
        }


def compare(
    batches: Sequence[Batch],
    exported: Sequence[Arrays],
    *,
    batch_size: int,
    specs: Sequence[TensorSpec],
    tolerance: Tolerance,
) -> Parity:
    """Compare the outputs of the batches of one size.

    Args:
        batches: With what the eager model gives.
        exported: What the file gives for each, side by side.
        batch_size: Of each batch.
        specs: The outputs, for their names.
        tolerance: With both numbers; whole numbers and booleans are compared exactly.
    """
    parity = Parity(batch_size)
    scales = [max(map(_largest, ofs)) for ofs in zip(*(batch.expected for batch in batches), strict=True)]
    for batch, outputs in zip(batches, exported, strict=True):
        if len(outputs) != len(batch.expected):
            says = f"it gives {len(outputs)} outputs, expected {len(batch.expected)}"
            parity.first = parity.first or Gap(batch_size, None, 0, unlike=says)
            parity.num_outside += 1
            continue
        for place, (expected, output) in enumerate(zip(batch.expected, outputs, strict=True)):
            name = specs[place].name if place < len(specs) else f"output {place}"
            wider = replace(tolerance, atol=(tolerance.atol or 0.0) + tolerance.of_largest * scales[place])
            _compare_one(parity, batch, place, expected, np.asarray(output), name=name, tolerance=wider)
    scale = max(scales, default=0.0)
    parity.max_rel = parity.max_abs / scale if scale else 0.0
    return parity


def _compare_one(
    parity: Parity,
    batch: Batch,
    place: int,
    expected: np.ndarray[Any, Any],
    output: np.ndarray[Any, Any],
    *,
    name: str,
    tolerance: Tolerance,
) -> None:
    parity.num_outputs += expected.size
    if (expected.shape, expected.dtype) != (output.shape, output.dtype):
        says = f"{name!r} is {_form(output)}, expected {_form(expected)}"
        parity.num_outside += expected.size
        parity.first = parity.first or Gap(parity.batch_size, None, place, unlike=says)
        return
    gap, inside = _gaps(expected, output, tolerance)
    finite = gap[np.isfinite(gap)]
    parity.max_abs = max(parity.max_abs, float(finite.max(initial=0.0)))
    parity.num_outside += int((~inside).sum())
    if parity.first is None and not inside.all():
        at = tuple(int(index) for index in np.argwhere(~inside)[0])
        has_rows = bool(at) and expected.shape[0] == len(batch.rows)
        parity.first = Gap(
            parity.batch_size,
            batch.rows[at[0]] if has_rows else None,
            place,
            at[1:] if has_rows else at,
            float(expected[at].real),
            float(output[at].real),
        )


def _gaps(
    expected: np.ndarray[Any, Any], output: np.ndarray[Any, Any], tolerance: Tolerance
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """How far each element is off, and whether that is inside the tolerance, which NaN never is."""
    is_float = np.issubdtype(expected.dtype, np.inexact)
    wide = np.complex128 if np.issubdtype(expected.dtype, np.complexfloating) else np.float64
    rtol, atol = (tolerance.rtol or 0.0, tolerance.atol or 0.0) if is_float else (0.0, 0.0)
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.abs(expected.astype(wide) - output.astype(wide))
        allowed = atol + rtol * np.abs(expected.astype(wide))
        is_close = np.isfinite(expected) & (gap <= allowed) if is_float else False  # not `>`, which NaN would pass
    return gap, is_close | (expected == output)


def _largest(array: np.ndarray[Any, Any]) -> float:
    values = np.abs(array.astype(np.float64)) if not np.iscomplexobj(array) else np.abs(array)
    return float(values[np.isfinite(values)].max(initial=0.0))


def _form(array: np.ndarray[Any, Any]) -> str:
    return f"{array.dtype} {tuple(array.shape)}"
