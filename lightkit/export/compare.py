"""Element-wise comparison of an exported file's outputs with its model's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from lightkit.export.metadata import Metadata

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Tolerance:
    """Allowed gap of an output: ``atol + rtol * |expected|``, the rule of ``torch.testing.assert_close``.

    Args:
        rtol: Relative.
        atol: Absolute, in the units of the output.
        of_largest: Relative to the largest value of that output over all samples, added to the others. The error of
            rounded weights grows with the activations, whatever the output is.
    """

    rtol: float
    atol: float
    of_largest: float = 0.0

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
(0.22, with the same class on 63 photos). The metrics show what that does to the task.

Half of the largest output is too wide a bound alone: an output of zeros has nearly all of its elements inside it. So a
file in int8 needs a metric too, or the user's own ``atol``.
"""


def choose_tolerance(precision: str, rtol: float | None = None, atol: float | None = None) -> Tolerance:
    """Return the tolerance of a precision with the user's bounds; an own ``atol`` replaces its relative bounds, too."""
    default = TOLERANCES[precision]
    rtol = default.rtol if rtol is None else rtol
    return replace(default, rtol=rtol) if atol is None else Tolerance(rtol, atol)


class ReferenceBatch(NamedTuple):
    """A batch of samples with the eager model's outputs.

    Args:
        rows: Indices of the samples; the last batch is filled up from the start.
        inputs: Each ``(batch, ...)``.
        expected: The outputs, in the order of the metadata.
    """

    rows: Sequence[int]
    inputs: Sequence[Array]
    expected: Sequence[Array]


@dataclass
class Comparison:
    """Result of comparing the batches of one size.

    Args:
        parity: Entry of export.json: ``max_abs``, ``max_rel`` (of the model's largest output), number of ``outputs``
            compared and of those ``outside`` the tolerance.
        first: The first gap outside, in words.
        is_exact: Whether one is outside that no tolerance allows: whole numbers, another shape, NaN, infinity.
    """

    parity: dict[str, Any]
    first: str | None = None
    is_exact: bool = False


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
        tolerance: Allowed gaps.
    """
    figures = {"max_abs": 0.0, "max_rel": 0.0, "outputs": 0, "outside": 0}
    result, classes, largest = Comparison(figures), metadata.class_names or (), 0.0
    rows = [row for batch in batches for row in batch.rows]
    for place, spec in enumerate(metadata.outputs):
        pairs = [(batch.expected[place], each[place]) for batch, each in zip(batches, exported, strict=True)]
        figures["outputs"] += sum(expected.size for expected, _ in pairs)
        forms = [[f"{array.dtype} {tuple(array.shape)}" for array in pair] for pair in pairs]
        if other := next((form for form in forms if form[0] != form[1]), None):
            figures["outside"] += sum(expected.size for expected, _ in pairs)
            result.first = result.first or f"{spec.name!r} is {other[1]}, expected {other[0]}"
            result.is_exact = True
            continue
        has_rows = pairs[0][0].shape[:1] == (len(batches[0].rows),)
        expected, found = map(np.concatenate if has_rows else np.stack, zip(*pairs, strict=True))
        is_float = np.issubdtype(expected.dtype, np.inexact)
        wide = np.complex128 if np.iscomplexobj(expected) else np.float64
        with np.errstate(invalid="ignore", over="ignore"):
            wanted = expected.astype(wide)
            gap, size = np.abs(wanted - found.astype(wide)), np.abs(wanted)
            scale = float(size[np.isfinite(size)].max(initial=0.0))
            allowed = tolerance.atol + tolerance.of_largest * scale + tolerance.rtol * size
            is_close = np.isfinite(expected) & (gap <= allowed) if is_float else False  # not `>`, which NaN would pass
        outside = ~(is_close | (expected == found))
        largest = max(largest, scale)
        figures["max_abs"] = max(figures["max_abs"], float(gap[np.isfinite(gap)].max(initial=0.0)))
        figures["outside"] += int(outside.sum())
        result.is_exact |= bool((outside & ~np.isfinite(gap) if is_float else outside).any())
        if result.first is None and outside.any():
            row, *index = at = tuple(int(each) for each in np.argwhere(outside)[0])
            values = f"{float(found[at].real):.6g}, expected {float(expected[at].real):.6g}"
            is_class = place == 0 and len(index) == 1 and index[0] < len(classes)
            element = f"class {classes[index[0]]!r} of {spec.name!r}" if is_class else f"{spec.name!r}{index or ''}"
            result.first = f"{f'for {names[rows[row]]}: ' if has_rows else ''}{element} is {values}"
    figures["max_rel"] = figures["max_abs"] / largest if largest else 0.0
    return result
