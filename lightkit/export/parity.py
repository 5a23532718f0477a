"""Whether two lists of arrays are the same, element by element, and where they first are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lightkit.artefacts.metadata import TensorSpec

__all__ = ["TOLERANCES", "Batch", "Gap", "Parity", "Tolerance", "compare"]

Arrays = Sequence[np.ndarray[Any, Any]]
_CONSTANT = 1e-6  # of the largest value: what differs less between samples is rounding


@dataclass(frozen=True)
class Tolerance:
    """How far an output may be off: ``atol + rtol * |expected|``, the rule of ``torch.testing.assert_close``.

    Args:
        rtol: Relative; that of the artefact's precision if None.
        atol: Absolute, in the units of the output; likewise.
        of_largest: In relation to the largest value of that output over all samples, on top of the others. The
            error of rounded weights grows with what flows through the layers, whatever comes out at the end.
        of_spread: Where no metric is scored: how large the root mean square of an output's gaps may be in relation to
            that of the output itself about each element's mean over the samples; see `of_spread`.
    """

    rtol: float | None = None
    atol: float | None = None
    of_largest: float = 0.0
    of_spread: float | None = None

    def over(self, default: Tolerance) -> Tolerance:
        """Give this one, with what it leaves open from another."""
        return Tolerance(
            rtol=default.rtol if self.rtol is None else self.rtol,
            atol=default.atol if self.atol is None else self.atol,
            of_largest=default.of_largest if self.atol is None else self.of_largest,
            of_spread=default.of_spread if self.atol is None else self.of_spread,
        )

    def __str__(self) -> str:
        largest = f", {self.of_largest:g} of the largest" if self.of_largest else ""
        return f"rtol={self.rtol:g}, atol={self.atol:g}{largest}"


TOLERANCES = {
    "float32": Tolerance(1e-4, 1e-5),
    "float16": Tolerance(1e-2, 1e-5, of_largest=0.02),
    "int8": Tolerance(1e-2, 1e-5, of_largest=0.5, of_spread=0.5),
}
"""By the precision of the weights.

Those of float32 allow for fused kernels. The others are two to three times what a MobileNetV2 of five kinds of flowers
gives on 64 real photos, with logits up to 3.4: float16 is off by 0.02 at most (0.006 of the largest), int8 by 0.75
(0.22, with the same class on 63 photos). What that does to the task, the metrics tell.

Where there are none, half of the largest output is too wide a bound: an output of zeros has nearly all of its elements
inside it. So int8 has a second one then, on what it keeps of the differences between samples. A file that gives the
same for all of them, whatever it gives, is off by 1 or more of that spread, that MobileNetV2 by 0.1. At 0.5 three
quarters of the variance are kept. The user's own ``atol`` replaces both.
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
        num_hopeless: Of those outside, such that no tolerance lets pass: whole numbers, another form, NaN, infinity.
        of_spread: The largest of the outputs' `of_spread`; None where the tolerance does not ask, or nobody can tell.
        first: Where it is outside first.
    """

    batch_size: int
    num_outputs: int = 0
    num_outside: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    num_hopeless: int = 0
    of_spread: float | None = None
    first: Gap | None = None

    def as_dict(self) -> dict[str, Any]:
        """Give the figures for export.json."""
        figures: dict[str, Any] = {
            "max_abs": self.max_abs,
            "max_rel": self.max_rel,
            "outputs": self.num_outputs,
            "outside": self.num_outside,
        }
        return figures if self.of_spread is None else {**figures, "of_spread": self.of_spread}


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
            parity.num_hopeless += 1
            continue
        for place, (expected, output) in enumerate(zip(batch.expected, outputs, strict=True)):
            name = specs[place].name if place < len(specs) else f"output {place}"
            wider = replace(tolerance, atol=(tolerance.atol or 0.0) + tolerance.of_largest * scales[place])
            _compare_one(parity, batch, place, expected, np.asarray(output), name=name, tolerance=wider)
    scale = max(scales, default=0.0)
    parity.max_rel = parity.max_abs / scale if scale else 0.0
    if tolerance.of_spread is not None and not parity.num_outside:
        found = [of_spread(batches, exported, place) for place in range(len(scales))]
        parity.of_spread = max((value for value in found if value is not None), default=None)
    return parity


def of_spread(batches: Sequence[Batch], exported: Sequence[Arrays], place: int) -> float | None:
    """Tell how far an output is off in relation to how much the model's own differs between samples.

    Both are root mean squares: of the gaps, and of what the model gives about each element's mean over the samples
    (over all elements, where there is one sample alone). So it is the square root of the variance that the file leaves
    unexplained: 0 for the same outputs, and at least 1 for outputs that are the same for every sample.

    Args:
        batches: With what the eager model gives.
        exported: What the file gives for each, side by side, in the same form.
        place: Of the output.

    Returns:
        It; None where the output is no float, has another form at each batch, or is the same for all samples.
    """
    expected, found = ([outputs[place] for outputs in given] for given in ([b.expected for b in batches], exported))
    if not np.issubdtype(expected[0].dtype, np.inexact) or len({array.shape for array in expected}) > 1:
        return None
    has_rows = expected[0].shape[:1] == (len(batches[0].rows),)
    wide = np.complex128 if np.iscomplexobj(expected[0]) else np.float64
    ours, theirs = ((np.concatenate if has_rows else np.stack)(arrays).astype(wide) for arrays in (expected, found))
    is_alone = len({row for batch in batches for row in batch.rows}) == 1
    with np.errstate(invalid="ignore"):
        spread = _root_mean_square(ours - (ours.mean() if is_alone else ours.mean(axis=0)))
        gap = _root_mean_square(ours - theirs)
    return gap / spread if spread > _CONSTANT * _largest(ours) else None


def _root_mean_square(values: np.ndarray[Any, Any]) -> float:
    squares = np.square(np.abs(values))
    return float(np.sqrt(squares[np.isfinite(squares)].mean())) if np.isfinite(squares).any() else 0.0


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
        parity.num_hopeless += expected.size
        parity.first = parity.first or Gap(parity.batch_size, None, place, unlike=says)
        return
    gap, inside = _gaps(expected, output, tolerance)
    finite = gap[np.isfinite(gap)]
    parity.max_abs = max(parity.max_abs, float(finite.max(initial=0.0)))
    parity.num_outside += int((~inside).sum())
    is_float = np.issubdtype(expected.dtype, np.inexact)
    parity.num_hopeless += int((~inside & ~np.isfinite(gap)).sum() if is_float else (~inside).sum())
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
