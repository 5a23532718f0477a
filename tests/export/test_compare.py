"""Comparison: what counts as the same, and where the first difference is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lightkit.export.metadata import Metadata, TensorSpec
from lightkit.export.proof import TOLERANCES, Comparison, ReferenceBatch, Tolerance, choose_tolerance, compare

METADATA = Metadata("onnx", "Net", (), (TensorSpec("logits", "float32", (None, 2)),))
NAMES = [f"s{number}" for number in range(5)]


def compared(
    expected: Any, exported: Any, *, rows: Sequence[int] = (0, 1), tolerance: Tolerance | None = None
) -> Comparison:
    batch = ReferenceBatch(rows, [], [np.asarray(expected)])
    allowed = tolerance or TOLERANCES["float32"]
    return compare([batch], [[np.asarray(exported)]], metadata=METADATA, names=NAMES, tolerance=allowed)


def floats(*values: float) -> np.ndarray[Any, Any]:
    return np.asarray(values, np.float32).reshape(2, -1)


def test_equal_outputs_have_no_gap() -> None:
    found = compared(floats(1, 2, 3, 4), floats(1, 2, 3, 4))

    assert (found.parity["outputs"], found.parity["outside"], found.parity["max_abs"], found.first) == (4, 0, 0.0, None)


@pytest.mark.parametrize(
    ("gap", "num_outside"), [(1.0e-4, 0), (1.2e-4, 1)], ids=["inside atol + rtol * expected", "outside"]
)
def test_the_rule_is_that_of_assert_close(gap: float, num_outside: int) -> None:
    expected = np.asarray([[1.0, 2.0], [3.0, 4.0]])
    exported = expected + np.asarray([[gap, 0], [0, 0]])

    assert compared(expected, exported).parity["outside"] == num_outside


@pytest.mark.parametrize(
    ("expected", "exported"),
    [(1.0, np.nan), (np.nan, np.nan), (np.nan, 1.0), (np.inf, 1.0), (1.0, np.inf), (np.inf, -np.inf)],
    ids=["nan", "nan in both", "nan in the model", "inf in the model", "inf", "inf of the other sign"],
)
def test_what_is_not_finite_does_not_pass(expected: float, exported: float) -> None:
    huge = Tolerance(rtol=1e30, atol=1e30)

    found = compared(floats(1, 1, 1, expected), floats(1, 1, 1, exported), tolerance=huge)

    assert found.parity["outside"] == 1
    assert str(found.first).startswith("for s1: 'logits'[1] is ")


def test_an_infinity_in_both_passes() -> None:
    assert compared(floats(1, 1, 1, -np.inf), floats(1, 1, 1, -np.inf)).parity["outside"] == 0


def test_whole_numbers_are_compared_exactly() -> None:
    found = compared(np.asarray([1000000, 2]), np.asarray([1000001, 2]), tolerance=Tolerance(rtol=1.0, atol=1.0))

    assert found.parity["outside"] == 1


@pytest.mark.parametrize(
    ("exported", "says"),
    [
        (np.ones((2, 3), np.float32), r"'logits' is float32 (2, 3), expected float32 (2, 2)"),
        (np.ones((2, 2), np.float64), r"'logits' is float64 (2, 2), expected float32 (2, 2)"),
    ],
    ids=["shape", "dtype"],
)
def test_another_form_is_a_difference(exported: np.ndarray[Any, Any], says: str) -> None:
    found = compared(np.ones((2, 2), np.float32), exported)

    assert found.parity["outside"] == 4
    assert found.first == says


def test_a_row_that_fills_up_a_batch_has_the_name_of_its_sample() -> None:
    found = compared(floats(1, 1, 1, 1), floats(1, 1, 2, 1), rows=(4, 0))

    assert found.first == "for s0: 'logits'[0] is 2, expected 1"


def test_an_output_without_a_batch_has_no_sample() -> None:
    found = compared(np.asarray(1.0), np.asarray(2.0))

    assert found.first == "'logits' is 2, expected 1"
    assert (found.parity["max_abs"], found.parity["max_rel"]) == (1.0, 1.0)


def test_a_tolerance_leaves_open_what_was_not_said() -> None:
    assert choose_tolerance("float16", rtol=0.1) == Tolerance(0.1, 1e-5, of_largest=0.02)
    assert choose_tolerance("int8", atol=0.5) == Tolerance(1e-2, 0.5)


def test_rounded_weights_are_off_in_relation_to_the_largest_output() -> None:
    tolerance = Tolerance(0.0, 0.0, of_largest=0.1)

    assert compared(floats(0, 1, 2, 10), floats(0.9, 1, 2, 10), tolerance=tolerance).parity["outside"] == 0
    assert compared(floats(0, 1, 2, 10), floats(1.1, 1, 2, 10), tolerance=tolerance).parity["outside"] == 1
