"""Comparison: what counts as the same, and where the first difference is."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lightkit.export.metadata import Metadata, TensorSpec
from lightkit.export.proof import (
    TOLERANCES,
    Mismatch,
    Tolerance,
    check_spread,
    compare,
    metric_scale,
)

METADATA = Metadata("onnx", "Net", (), (TensorSpec("logits", "float32", (None, 2)),))


def compared(
    expected: Any, exported: Any, *, num: int = 2, tolerance: Tolerance | None = None
) -> dict[str, Any]:
    """The figures of one batch of two."""
    names, allowed = [f"s{number}" for number in range(num)], tolerance or TOLERANCES["float32"]
    found = {2: [np.atleast_1d(exported)]}
    parity = compare(
        {2: [np.atleast_1d(expected)]}, found, metadata=METADATA, names=names, tolerance=allowed
    )
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


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9], ids=["tiny", "one", "huge"])
def test_the_rule_is_relative_to_an_output_and_to_the_largest_in_any_unit(unit: float) -> None:
    expected = unit * np.asarray([[1.0, 2.0], [3.0, 4.0]])

    # 1e-4 of 1.0, and 1e-5 of the largest, 4.0
    assert compared(expected, expected + unit * np.asarray([[1.39e-4, 0], [0, 0]]))["outside"] == 0
    assert "1 of 4 outputs differ" in mismatch(
        expected, expected + unit * np.asarray([[1.41e-4, 0], [0, 0]])
    )
    assert "4 of 4 outputs differ" in mismatch(expected, np.zeros((2, 2)))


@pytest.mark.parametrize(
    ("precision", "share"), [("float32", 0.01), ("float16", 0.1), ("int8", 0.5)]
)
@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_outputs_may_be_off_by_a_part_of_their_spread(
    precision: str, share: float, unit: float
) -> None:
    metadata = replace(METADATA, precision=precision)
    wanted = unit * np.random.default_rng(0).normal(size=(500, 2))
    spread = np.sqrt(np.mean((wanted - wanted.mean(axis=0)) ** 2))
    rounding = {"float32": 1e-5, "float16": 1e-3, "int8": 2e-2}[precision] * np.abs(wanted).max()
    allowed = share * spread + rounding

    def check(given: Any) -> None:
        check_spread(
            {1: [wanted]}, {1: [given]}, metadata=metadata, tolerance=TOLERANCES[precision]
        )

    check(wanted + 0.99 * allowed)
    with pytest.raises(
        Mismatch,
        match=r"'logits' is off by .* \(root mean square\), and its spread over the samples is",
    ):
        check(wanted + 1.01 * allowed)
    with pytest.raises(Mismatch):
        check(np.broadcast_to(wanted.mean(axis=0), wanted.shape))
    with pytest.raises(Mismatch):
        check(wanted * np.nan)


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_file_that_gives_the_mean_of_outputs_around_2000_is_found(precision: str) -> None:
    wanted = 2000 + 5 * np.random.default_rng(0).normal(size=(500, 2))
    metadata = replace(METADATA, precision=precision)
    with pytest.raises(Mismatch, match=r"its spread over the samples is 4\.88e\+00"):
        check_spread(
            {1: [wanted]},
            {1: [np.full_like(wanted, 2000.0)]},
            metadata=metadata,
            tolerance=TOLERANCES[precision],
        )


@pytest.mark.parametrize(
    ("name", "value", "blind", "scale"),
    [
        ("val/accuracy", 0.9, 0.2, 1.0),
        ("val/f1", 0.2, 0.2, 1.0),
        ("val/acc_top5", 0.0, 0.1, 1.0),
        ("val/accuracy", 93.0, 20.0, 93.0),
        ("val/mae", 0.00014, 0.0032, 0.00306),
        ("val/mse", 2e-8, 1e-5, 9.98e-6),
        ("val/loss", 0.4, 1.6, 1.2),
        ("val/loss", 1.6, 1.6, 1.6),
        ("val/mae", 5000.0, 8000.0, 5000.0),
        ("val/correlation", 0.8, math.nan, 0.8),
    ],
)
def test_a_metric_may_be_off_in_relation_to_itself_or_to_that_of_a_blind_model(
    name: str, value: float, blind: float, scale: float
) -> None:
    assert metric_scale(name, value, blind) == pytest.approx(scale)


@pytest.mark.parametrize(
    ("expected", "exported"),
    [
        (1.0, np.nan),
        (np.nan, np.nan),
        (np.nan, 1.0),
        (np.inf, 1.0),
        (1.0, np.inf),
        (np.inf, -np.inf),
    ],
    ids=[
        "nan",
        "nan in both",
        "nan in the model",
        "inf in the model",
        "inf",
        "inf of the other sign",
    ],
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

    assert "1 of 2 outputs differ" in mismatch(
        np.asarray([1000000, 2]), np.asarray([1000001, 2]), tolerance=wide
    )


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
    assert "1 of 4 outputs differ" in mismatch(
        floats(0, 1, 2, 10), floats(1.1, 1, 2, 10), tolerance=tolerance
    )
