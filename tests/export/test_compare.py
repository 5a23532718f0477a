"""Comparison: what counts as the same, and where the first difference is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lightkit.export.metadata import Metadata, TensorSpec
from lightkit.export.proof import TOLERANCES, Mismatch, Tolerance, compare

METADATA = Metadata("onnx", "Net", (), (TensorSpec("logits", "float32", (None, 2)),))


def compared(expected: Any, exported: Any, *, num: int = 2, tolerance: Tolerance | None = None) -> dict[str, Any]:
    """The figures of one batch of two."""
    names, allowed = [f"s{number}" for number in range(num)], tolerance or TOLERANCES["float32"]
    found = {2: [np.atleast_1d(exported)]}
    parity = compare({2: [np.atleast_1d(expected)]}, found, metadata=METADATA, names=names, tolerance=allowed)
    figures: dict[str, Any] = parity["2"]
    return figures


def mismatch(*args: Any, **given: Any) -> str:
    with pytest.raises(Mismatch) as caught:
        compared(*args, **given)
    return str(caught.value)


def floats(*values: float) -> np.ndarray[Any, Any]:
    return np.asarray(values, np.float32).reshape(2, -1)


def test_equal_outputs_have_no_gap() -> None:
    found = compared(floats(1, 2, 3, 4), floats(1, 2, 3, 4))

    assert found == {"max_abs": 0.0, "max_rel": 0.0, "outputs": 4, "outside": 0}


def test_the_rule_is_that_of_assert_close() -> None:
    expected = np.asarray([[1.0, 2.0], [3.0, 4.0]])

    assert compared(expected, expected + np.asarray([[1.0e-4, 0], [0, 0]]))["outside"] == 0
    assert "1 of 4 outputs differ" in mismatch(expected, expected + np.asarray([[1.2e-4, 0], [0, 0]]))


@pytest.mark.parametrize(
    ("expected", "exported"),
    [(1.0, np.nan), (np.nan, np.nan), (np.nan, 1.0), (np.inf, 1.0), (1.0, np.inf), (np.inf, -np.inf)],
    ids=["nan", "nan in both", "nan in the model", "inf in the model", "inf", "inf of the other sign"],
)
def test_what_is_not_finite_does_not_pass(expected: float, exported: float) -> None:
    huge = Tolerance(rtol=1e30, atol=1e30)

    says = mismatch(floats(1, 1, 1, expected), floats(1, 1, 1, exported), tolerance=huge)

    assert "1 of 4 outputs differ" in says
    assert "first for s1: 'logits'[1] is " in says


def test_an_infinity_in_both_passes() -> None:
    assert compared(floats(1, 1, 1, -np.inf), floats(1, 1, 1, -np.inf))["outside"] == 0


def test_whole_numbers_are_compared_exactly() -> None:
    wide = Tolerance(rtol=1.0, atol=1.0)

    assert "1 of 2 outputs differ" in mismatch(np.asarray([1000000, 2]), np.asarray([1000001, 2]), tolerance=wide)


@pytest.mark.parametrize(
    ("exported", "says"),
    [
        (np.ones((2, 3), np.float32), r"'logits' is float32 (2, 3), expected float32 (2, 2)"),
        (np.ones((2, 2), np.float64), r"'logits' is float64 (2, 2), expected float32 (2, 2)"),
    ],
    ids=["shape", "dtype"],
)
def test_another_form_is_a_difference(exported: np.ndarray[Any, Any], says: str) -> None:
    assert says in mismatch(np.ones((2, 2), np.float32), exported)


def test_a_row_that_fills_up_a_batch_has_the_name_of_its_sample() -> None:
    says = mismatch(floats(1, 1, 1, 1), floats(1, 1, 2, 1), num=1)

    assert "first for s0: 'logits'[0] is 2, expected 1" in says


def test_an_output_without_a_batch_has_no_sample() -> None:
    says = mismatch(np.asarray(1.0), np.asarray(2.0))

    assert "by up to 1.00e+00" in says
    assert "first 'logits' is 2, expected 1" in says


def test_rounded_weights_are_off_in_relation_to_the_largest_output() -> None:
    tolerance = Tolerance(0.0, 0.0, of_largest=0.1)

    assert compared(floats(0, 1, 2, 10), floats(0.9, 1, 2, 10), tolerance=tolerance)["outside"] == 0
    assert "1 of 4 outputs differ" in mismatch(floats(0, 1, 2, 10), floats(1.1, 1, 2, 10), tolerance=tolerance)
