"""Element-wise comparison of an exported file's outputs with its model's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightkit.export.metadata import Metadata

Array = np.ndarray[Any, Any]
_MIN_SPREAD = 1e-6  # of the largest value: smaller differences between samples are rounding


@dataclass(frozen=True)
class Tolerance:
    """Allowed gap of an output: ``atol + rtol * |expected|``, the rule of ``torch.testing.assert_close``.

    Args:
        rtol: Relative; that of the precision if None.
        atol: Absolute, in the units of the output; likewise.
        of_largest: Relative to the largest value of that output over all samples, added to the others. The error of
            rounded weights grows with the activations, whatever the output is.
        of_spread: If no metric is scored: allowed `spread_error` of an output.
    """

    rtol: float | None = None
    atol: float | None = None
    of_largest: float = 0.0
    of_spread: float | None = None

    def over(self, default: Tolerance) -> Tolerance:
        """Fill in from another what is None; an own ``atol`` replaces the other's relative bounds, too."""
        base = default if self.atol is None else self
        return Tolerance(default.rtol if self.rtol is None else self.rtol, base.atol, base.of_largest, base.of_spread)

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
(0.22, with the same class on 63 photos). The metrics tell what that does to the task.

Without metrics half of the largest output is too wide a bound: an output of zeros has nearly all of its elements inside
it. So int8 has a second one then, on the differences between samples. A file that gives the same for all of them is off
by 1 or more of that spread, that MobileNetV2 by 0.1. At 0.5 three quarters of the variance are kept. The user's own
``atol`` replaces both.
"""


@dataclass(frozen=True)
class ReferenceBatch:
    """A batch of samples with the eager model's outputs.

    Args:
        rows: Indices of the samples; the last batch is filled up from the start.
        inputs: Each ``(batch, ...)``.
        expected: The flattened outputs.
    """

    rows: Sequence[int]
    inputs: Sequence[Array]
    expected: Sequence[Array]


@dataclass
class Comparison:
    """Result of comparing the batches of one size.

    Args:
        batch_size: That size.
        num_outputs: Number of elements.
        num_outside: Elements outside the tolerance; NaN is, and so is an infinity that the other does not have.
        max_abs: Largest gap among those that are finite in both.
        max_rel: Largest gap relative to the model's largest output.
        num_exact: Elements outside that no tolerance allows: whole numbers, another form, NaN, infinity.
        of_spread: Largest `spread_error` of the outputs; None if the tolerance has no bound, or there is no spread.
        first: The first gap outside, in words.
    """

    batch_size: int
    num_outputs: int = 0
    num_outside: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    num_exact: int = 0
    of_spread: float | None = None
    first: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Convert to the entry of export.json."""
        spread = {} if self.of_spread is None else {"of_spread": self.of_spread}
        figures = {"max_abs": self.max_abs, "max_rel": self.max_rel}
        return {**figures, "outputs": self.num_outputs, "outside": self.num_outside, **spread}


def compare(
    batches: Sequence[ReferenceBatch],
    exported: Sequence[Sequence[Array]],
    *,
    metadata: Metadata,
    names: Sequence[str],
    tolerance: Tolerance,
) -> Comparison:
    """Compare the outputs of the batches of one size; whole numbers and booleans exactly.

    Args:
        batches: With the eager model's outputs.
        exported: The file's flattened outputs for each batch.
        metadata: Of the file, for the names of outputs and classes.
        names: Of the samples.
        tolerance: With ``rtol`` and ``atol``.
    """
    result, largest = Comparison(len(batches[0].rows)), 0.0
    num = len(batches[0].expected)
    if (found := next((len(outputs) for outputs in exported if len(outputs) != num), num)) != num:
        result.num_outside = result.num_exact = 1
        result.first = f"it gives {found} outputs, expected {num}"
        return result
    classes = metadata.class_names or ()
    for place in range(num):
        scale = max(_largest(batch.expected[place]) for batch in batches)
        largest = max(largest, scale)
        label = repr(metadata.outputs[place].name) if place < len(metadata.outputs) else f"output {place}"
        for batch, outputs in zip(batches, exported, strict=True):
            expected, output = batch.expected[place], np.asarray(outputs[place])
            result.num_outputs += expected.size
            forms = [f"{array.dtype} {tuple(array.shape)}" for array in (output, expected)]
            if forms[0] != forms[1]:
                result.num_outside += expected.size
                result.num_exact += expected.size
                result.first = result.first or f"{label} is {forms[0]}, expected {forms[1]}"
                continue
            is_float = np.issubdtype(expected.dtype, np.inexact)
            wide = np.complex128 if np.iscomplexobj(expected) else np.float64
            with np.errstate(invalid="ignore", over="ignore"):
                gap = np.abs(expected.astype(wide) - output.astype(wide))
                atol = (tolerance.atol or 0.0) + tolerance.of_largest * scale
                allowed = atol + (tolerance.rtol or 0.0) * np.abs(expected.astype(wide))
                # not `>`, which NaN would pass
                is_close = np.isfinite(expected) & (gap <= allowed) if is_float else False
            outside = ~(is_close | (expected == output))
            result.max_abs = max(result.max_abs, float(gap[np.isfinite(gap)].max(initial=0.0)))
            result.num_outside += int(outside.sum())
            result.num_exact += int((outside & ~np.isfinite(gap) if is_float else outside).sum())
            if result.first is None and outside.any():
                at = tuple(int(index) for index in np.argwhere(outside)[0])
                values = f"{float(output[at].real):.6g}, expected {float(expected[at].real):.6g}"
                where, index = "", at
                if at and len(expected) == len(batch.rows):
                    row, index = batch.rows[at[0]], at[1:]
                    where = f"for {names[row] if row < len(names) else f'sample {row}'}: "
                is_class = place == 0 and len(index) == 1 and index[0] < len(classes)
                element = f"class {classes[index[0]]!r} of {label}" if is_class else f"{label}{list(index) or ''}"
                result.first = f"{where}{element} is {values}"
    result.max_rel = result.max_abs / largest if largest else 0.0
    if tolerance.of_spread is not None and not result.num_outside:
        errors = [spread_error(batches, exported, place) for place in range(num)]
        result.of_spread = max((error for error in errors if error is not None), default=None)
    return result


def spread_error(batches: Sequence[ReferenceBatch], exported: Sequence[Sequence[Array]], place: int) -> float | None:
    """Compute an output's error relative to how much the model's own output differs between samples.

    Both are root mean squares: of the gaps, and of the model's output about each element's mean over the samples (over
    all elements, if there is one sample alone). So it is the square root of the variance that the file leaves
    unexplained: 0 for the same outputs, and at least 1 for outputs that are the same for every sample.

    Args:
        batches: With the eager model's outputs.
        exported: The file's outputs for each batch, of the same form.
        place: Index of the output.

    Returns:
        The error; None if the output is no float, has another form at each batch, or is the same for all samples.
    """
    expected, found = ([outputs[place] for outputs in given] for given in ([b.expected for b in batches], exported))
    if not np.issubdtype(expected[0].dtype, np.inexact) or len({array.shape for array in expected}) > 1:
        return None
    has_rows = expected[0].shape[:1] == (len(batches[0].rows),)
    wide = np.complex128 if np.iscomplexobj(expected[0]) else np.float64
    ours, theirs = ((np.concatenate if has_rows else np.stack)(arrays).astype(wide) for arrays in (expected, found))
    is_alone = len({row for batch in batches for row in batch.rows}) == 1
    with np.errstate(invalid="ignore", over="ignore"):
        spread, gap = (
            np.square(np.abs(values))
            for values in (ours - (ours.mean() if is_alone else ours.mean(axis=0)), ours - theirs)
        )
    roots = [
        float(np.sqrt(each[np.isfinite(each)].mean())) if np.isfinite(each).any() else 0.0 for each in (spread, gap)
    ]
    return roots[1] / roots[0] if roots[0] > _MIN_SPREAD * _largest(ours) else None


def _largest(array: Array) -> float:
    values = np.abs(array if np.iscomplexobj(array) else array.astype(np.float64))
    return float(values[np.isfinite(values)].max(initial=0.0))
