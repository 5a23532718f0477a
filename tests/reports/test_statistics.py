"""Formulas of the reports against published values, scipy and torchmetrics."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats
from torchmetrics.classification import BinaryCalibrationError

from lightkit.reports.predictions import Predictions
from lightkit.reports.statistics import (
    bootstrap_interval,
    compute_calibration,
    mcnemar_exact,
    paired_bootstrap,
    wilson_interval,
)
from tests.reports.examples import predict, regress

NEWCOMBE = {
    (81, 263): (0.2553, 0.3662),
    (15, 148): (0.0624, 0.1605),
    (0, 20): (0.0, 0.1611),
    (1, 29): (0.0061, 0.1718),
}


@pytest.mark.parametrize("counts", NEWCOMBE, ids=str)
def test_the_wilson_interval_is_that_of_newcombes_table(counts: tuple[int, int]) -> None:
    assert wilson_interval(*counts) == pytest.approx(NEWCOMBE[counts], abs=5e-5)


@pytest.mark.parametrize("confidence", [0.8, 0.99], ids=str)
@pytest.mark.parametrize("counts", [(0, 1), (7, 7), (3, 10), (49_000, 50_000)], ids=str)
def test_the_wilson_interval_is_scipys(counts: tuple[int, int], confidence: float) -> None:
    expected = stats.binomtest(*counts).proportion_ci(confidence, method="wilson")
    assert wilson_interval(*counts, confidence=confidence) == pytest.approx(
        tuple(expected), abs=1e-12
    )


def test_the_exact_mcnemar_test_is_that_of_a_published_table() -> None:
    # airway hyper-responsiveness before and after transplantation: table 2 and 4 of Fagerland,
    # Lydersen, Laake (2013)
    assert mcnemar_exact(1, 7) == pytest.approx(0.0703, abs=5e-5)


@pytest.mark.parametrize("counts", [(0, 0), (0, 6), (5, 5), (40, 61), (30_000, 30_500)], ids=str)
def test_the_exact_mcnemar_test_is_scipys_binomial_test(counts: tuple[int, int]) -> None:
    expected = stats.binomtest(counts[0], sum(counts)).pvalue if sum(counts) else 1.0
    assert mcnemar_exact(*counts) == pytest.approx(expected, rel=1e-9)
    assert mcnemar_exact(*counts) == mcnemar_exact(*reversed(counts))


def test_the_bootstrap_interval_of_a_mean_is_scipys() -> None:
    values = np.random.default_rng(1).exponential(size=200)
    expected = stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=20_000, rng=2
    ).confidence_interval
    assert bootstrap_interval(values, confidence=0.95) == pytest.approx(tuple(expected), abs=0.03)
    assert bootstrap_interval(values, confidence=0.95) == bootstrap_interval(
        values, confidence=0.95
    )


def test_the_paired_bootstrap_finds_a_difference_that_unpaired_intervals_hide() -> None:
    generator = np.random.default_rng(1)
    first = generator.normal(size=300)
    second = first + generator.normal(0.1, 0.2, size=300)
    assert (
        bootstrap_interval(first, confidence=0.95)[1]
        > bootstrap_interval(second, confidence=0.95)[0]
    )  # they overlap
    result = paired_bootstrap(first, second, np.mean, confidence=0.95)
    assert result["difference"] == pytest.approx(float(second.mean() - first.mean()))
    assert 0 < result["low"] < result["difference"] < result["high"]
    assert result["p_value"] == pytest.approx(2 / 1001)


def test_draws_without_a_statistic_count_for_neither_side_of_the_paired_bootstrap() -> None:
    """Of two samples the first alone has a label: a quarter of the draws has no statistic."""
    values = np.array([[1.0, 1.0], [0.0, 5.0]])  # whether labelled, and the value
    better = values + np.array([0.0, 0.5])

    def mean_of_labelled(rows: npt.NDArray[np.float64]) -> float:
        labelled = rows[rows[:, 0] == 1, 1]
        return float(labelled.mean()) if len(labelled) else math.nan

    generator = np.random.default_rng(0)
    num_known = sum(0 in generator.integers(2, size=2) for _ in range(1000))
    assert 700 < num_known < 800
    result = paired_bootstrap(values, better, mean_of_labelled, confidence=0.95)
    # no known draw is at or below 0
    assert result["p_value"] == pytest.approx(2 / (num_known + 1))


def test_the_paired_bootstrap_of_equal_models_finds_nothing() -> None:
    errors = np.arange(10.0)
    expected = {"difference": 0.0, "low": 0.0, "high": 0.0, "p_value": 1.0}
    assert paired_bootstrap(errors, errors, np.mean, confidence=0.95) == expected


def test_the_paired_bootstrap_has_the_p_value_of_a_t_test() -> None:
    generator = np.random.default_rng(5)
    first = generator.normal(size=200)
    second = generator.normal(0.17, size=200)
    expected = stats.ttest_rel(first, second).pvalue
    assert 0.02 < expected < 0.5
    assert paired_bootstrap(first, second, np.mean, confidence=0.95)["p_value"] == pytest.approx(
        expected, rel=0.3
    )


def test_the_paired_bootstrap_takes_a_statistic_of_rows() -> None:
    rows = np.array([[1.0, 0.0], [2.0, 1.0], [3.0, 5.0]])
    result = paired_bootstrap(
        rows, rows * [1, 2], lambda each: float(each[:, 1].sum()), confidence=0.95
    )
    assert result["difference"] == 6.0


def classifier(confidence: npt.ArrayLike, is_correct: npt.ArrayLike) -> Predictions:
    probability = np.asarray(confidence, np.float32)
    predicted = np.where(is_correct, 0, 1)
    return predict([0] * len(predicted), predicted.tolist(), probability=probability)


def test_the_calibration_error_is_that_of_torchmetrics() -> None:
    generator = np.random.default_rng(3)
    confidence = generator.uniform(0, 1, size=500).astype(np.float32)
    is_correct = generator.uniform(size=500) < confidence**2
    metric = BinaryCalibrationError(n_bins=15, norm="l1")
    expected = metric(torch.tensor(confidence), torch.tensor(is_correct, dtype=torch.int64))
    found = compute_calibration(classifier(confidence, is_correct))
    assert found is not None
    assert found.error == pytest.approx(float(expected), 1e-4)


def test_a_calibration_bin_includes_its_upper_bound_and_may_be_empty() -> None:
    found = compute_calibration(classifier([0.0, 1 / 32, 1.0, 15 / 16], [0, 1, 0, 1]))
    assert found is not None
    assert found.counts.tolist() == [2, *[0] * 12, 0, 2]
    assert found.accuracy[[0, -1]].tolist() == [0.5, 0.5]
    assert found.confidence[[0, -1]].tolist() == [1 / 64, 31 / 32]
    assert math.isnan(found.accuracy[7])
    assert found.error == pytest.approx((0.5 - 1 / 64 + 31 / 32 - 0.5) / 2)


@pytest.mark.parametrize(
    "predictions",
    [None, classifier([], []), classifier([math.nan, 0.5], [1, 0]), regress([1.0], [2.0])],
    ids=["none", "no samples", "NaN", "regressor"],
)
def test_there_is_no_calibration_without_probabilities(predictions: Predictions | None) -> None:
    assert compute_calibration(predictions) is None


def test_the_formulas_load_neither_torch_nor_scipy() -> None:
    code = "import sys, lightkit.reports.statistics; print({'torch', 'scipy'} & set(sys.modules))"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "set()\n"
    )
