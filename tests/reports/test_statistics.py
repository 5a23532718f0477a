"""Formulas of the reports against published values, scipy and torchmetrics."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy import stats
from torchmetrics.classification import BinaryCalibrationError

from lightkit.reports.statistics import (
    bootstrap_interval,
    compute_chance_level,
    expected_calibration_error,
    mcnemar_exact,
    paired_bootstrap,
    reliability_bins,
    wilson_interval,
)

NEWCOMBE = {(81, 263): (0.2553, 0.3662), (15, 148): (0.0624, 0.1605), (0, 20): (0.0, 0.1611), (1, 29): (0.0061, 0.1718)}


@pytest.mark.parametrize("counts", NEWCOMBE, ids=str)
def test_the_wilson_interval_is_that_of_newcombes_table(counts: tuple[int, int]) -> None:
    assert wilson_interval(*counts) == pytest.approx(NEWCOMBE[counts], abs=5e-5)


@pytest.mark.parametrize("confidence", [0.8, 0.99], ids=str)
@pytest.mark.parametrize("counts", [(0, 1), (7, 7), (3, 10), (49_000, 50_000)], ids=str)
def test_the_wilson_interval_is_scipys(counts: tuple[int, int], confidence: float) -> None:
    expected = stats.binomtest(*counts).proportion_ci(confidence, method="wilson")
    assert wilson_interval(*counts, confidence=confidence) == pytest.approx(tuple(expected), abs=1e-12)


def test_an_accuracy_without_samples_may_be_anything() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_more_successes_than_samples_are_an_error() -> None:
    with pytest.raises(ValueError, match="expected 0 to 3 successes, got 4"):
        wilson_interval(4, 3)


def test_the_exact_mcnemar_test_is_that_of_a_published_table() -> None:
    # airway hyper-responsiveness before and after transplantation: table 2 and 4 of Fagerland, Lydersen, Laake (2013)
    assert mcnemar_exact(1, 7) == pytest.approx(0.0703, abs=5e-5)


@pytest.mark.parametrize("counts", [(0, 0), (0, 6), (5, 5), (40, 61), (30_000, 30_500)], ids=str)
def test_the_exact_mcnemar_test_is_scipys_binomial_test(counts: tuple[int, int]) -> None:
    expected = stats.binomtest(counts[0], sum(counts)).pvalue if sum(counts) else 1.0
    assert mcnemar_exact(*counts) == pytest.approx(expected, rel=1e-9)
    assert mcnemar_exact(*counts) == mcnemar_exact(*reversed(counts))


def test_the_bootstrap_interval_of_a_mean_is_scipys() -> None:
    values = np.random.default_rng(1).exponential(size=200)
    expected = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=20_000, rng=2).confidence_interval
    assert bootstrap_interval(values, num_resamples=20_000) == pytest.approx(tuple(expected), abs=0.01)


def test_the_bootstrap_interval_is_that_of_its_seed() -> None:
    values = np.random.default_rng(1).normal(size=50)
    assert bootstrap_interval(values, np.median, seed=3) == bootstrap_interval(values, np.median, seed=3)
    assert bootstrap_interval(values, np.median, seed=3) != bootstrap_interval(values, np.median, seed=4)
    assert all(math.isnan(bound) for bound in bootstrap_interval([]))


def test_the_paired_bootstrap_finds_a_difference_that_unpaired_intervals_hide() -> None:
    generator = np.random.default_rng(1)
    first = generator.normal(size=300)
    second = first + generator.normal(0.1, 0.2, size=300)
    assert bootstrap_interval(first)[1] > bootstrap_interval(second)[0]  # they overlap
    result = paired_bootstrap(first, second)
    assert result.difference == pytest.approx(float(second.mean() - first.mean()))
    assert 0 < result.low < result.difference < result.high
    assert result.p_value == pytest.approx(2 / 1001)


def test_the_paired_bootstrap_of_equal_models_finds_nothing() -> None:
    errors = np.arange(10.0)
    assert paired_bootstrap(errors, errors) == (0.0, 0.0, 0.0, 1.0)
    assert paired_bootstrap([], []).p_value == 1.0


def test_the_paired_bootstrap_has_the_p_value_of_a_t_test() -> None:
    generator = np.random.default_rng(5)
    first = generator.normal(size=200)
    second = generator.normal(0.17, size=200)
    expected = stats.ttest_rel(first, second).pvalue
    assert 0.02 < expected < 0.5
    assert paired_bootstrap(first, second, num_resamples=20_000).p_value == pytest.approx(expected, rel=0.2)


def test_the_paired_bootstrap_takes_a_statistic_of_rows() -> None:
    rows = np.array([[1.0, 0.0], [2.0, 1.0], [3.0, 5.0]])
    result = paired_bootstrap(rows, rows * [1, 2], lambda each: float(each[:, 1].sum()), num_resamples=50)
    assert result.difference == 6.0


def test_models_on_different_samples_cannot_be_paired() -> None:
    with pytest.raises(ValueError, match=r"shapes \(2,\) and \(3,\)"):
        paired_bootstrap([1.0, 2.0], [1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("counts", "balanced", "expected"),
    [([50, 50], False, 0.5), ([90, 10], False, 0.9), ([90, 10], True, 0.5), ([3, 0, 1], True, 0.5), ([7], False, 1.0)],
    ids=["even", "uneven", "mean-of-classes", "a-class-without-samples", "one-class"],
)
def test_chance_is_the_most_frequent_class(counts: list[int], balanced: bool, expected: float) -> None:
    assert compute_chance_level(counts, balanced=balanced) == expected


def test_there_is_no_chance_level_without_labels() -> None:
    assert math.isnan(compute_chance_level([]))


def test_the_calibration_error_is_that_of_torchmetrics() -> None:
    generator = np.random.default_rng(3)
    confidence = generator.uniform(0, 1, size=500)
    is_correct = generator.uniform(size=500) < confidence**2
    metric = BinaryCalibrationError(n_bins=15, norm="l1")
    expected = metric(torch.tensor(confidence), torch.tensor(is_correct, dtype=torch.int64))
    assert expected_calibration_error(reliability_bins(confidence, is_correct)) == pytest.approx(float(expected), 1e-4)


def test_a_reliability_bin_includes_its_upper_bound() -> None:
    bins = reliability_bins([0.0, 0.25, 0.5, 0.75, 1.0], [0, 1, 0, 1, 1], num_bins=4)
    assert bins.counts.tolist() == [2, 1, 1, 1]
    assert bins.accuracy.tolist() == [0.5, 0.0, 1.0, 1.0]
    assert bins.confidence.tolist() == [0.125, 0.5, 0.75, 1.0]
    assert expected_calibration_error(bins) == pytest.approx((2 * 0.375 + 0.5 + 0.25 + 0) / 5)


def test_an_empty_bin_has_no_point_and_no_weight() -> None:
    bins = reliability_bins([0.9, 0.9], [1, 0], num_bins=2)
    assert bins.counts.tolist() == [0, 2]
    assert math.isnan(bins.accuracy[0])
    assert expected_calibration_error(bins) == pytest.approx(0.4)
    assert math.isnan(expected_calibration_error(reliability_bins([], [])))


@pytest.mark.parametrize("confidence", [1.01, -0.1, math.nan], ids=str)
def test_what_is_no_probability_is_an_error(confidence: float) -> None:
    with pytest.raises(ValueError, match="expected confidences from 0 to 1"):
        reliability_bins([confidence, 0.5], [1, 0])


def test_the_formulas_load_neither_torch_nor_scipy() -> None:
    code = "import sys, lightkit.reports.statistics; print({'torch', 'scipy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
