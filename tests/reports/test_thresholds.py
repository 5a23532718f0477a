"""Precision, recall and false positive rate at each threshold, against scikit-learn and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from lightkit.reports.curves import Chart, Curve, choose_log_axis, dump_charts
from lightkit.reports.predictions import Predictions
from lightkit.reports.thresholds import compute_rates, compute_thresholds


def test_rates_are_those_of_a_count_by_hand() -> None:
    """Of six samples three are positive; at 0.8 three are accepted, of which two are right and one is not."""
    scores = np.array([0.9, 0.8, 0.8, 0.6, 0.3, 0.2])
    found = compute_rates(scores, np.array([1, 1, 0, 1, 0, 0], dtype=bool), subject="x")
    assert found is not None
    assert found.at(0.8) == pytest.approx((3 / 6, 2 / 3, 2 / 3, 1 / 3))
    assert found.at(0.85) == pytest.approx((1 / 6, 1, 1 / 3, 0))
    assert found.at(0.95) == (0, 1, 0, 0)
    assert found.rows[0] == ("0.5", "0.667", "0.750", "1.000", "0.333")


def test_areas_are_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(4)
    for _ in range(20):
        scores = random.random(50).round(1)  # with ties
        is_positive = random.random(50) < scores
        found = compute_rates(scores, is_positive, subject="x")
        assert found is not None
        assert found.average_precision == pytest.approx(metrics.average_precision_score(is_positive, scores))
        assert found.area == pytest.approx(metrics.roc_auc_score(is_positive, scores))


def predictions(
    names: tuple[str, ...], target: list[int], predicted: list[int], probability: list[float]
) -> Predictions:
    values = np.array(probability, dtype=np.float32)
    return Predictions(
        split="test",
        index=np.arange(len(target)),
        paths=[None] * len(target),
        target=np.array(target),
        prediction=np.array(predicted),
        probability=values,
        label_probability=values,
        class_names=names,
    )


def test_of_two_classes_the_second_is_searched_for() -> None:
    found = compute_thresholds(predictions(("no", "yes"), [1, 0, 1], [1, 0, 0], [0.9, 0.8, 0.6]))
    assert found is not None
    assert found.subject.startswith("yes,")
    assert found.threshold[1:] == pytest.approx([0.9, 0.4, 0.2])
    assert found.area == 1


def test_of_more_classes_right_predictions_are_searched_for() -> None:
    found = compute_thresholds(predictions(("a", "b", "c"), [0, 1, 2], [0, 1, 1], [0.9, 0.5, 0.7]))
    assert found is not None
    assert found.at(0.8) == pytest.approx((1 / 3, 1, 1 / 2, 0))
    assert found.area == 0.5


def test_without_an_error_there_is_no_curve() -> None:
    assert compute_thresholds(predictions(("a", "b", "c"), [0, 1], [0, 1], [0.9, 0.5])) is None


def test_a_log_axis_is_chosen_for_two_powers_of_ten() -> None:
    assert choose_log_axis([0.01, 1.0])
    assert not choose_log_axis([0.02, 1.0])
    assert not choose_log_axis([0.0, 1.0, 500.0])
    assert not choose_log_axis([float("nan")])


def test_the_data_of_charts_end_no_element_and_have_gaps_for_what_is_not_finite() -> None:
    rows = [{"epoch": 0, "step": 3, "</script>": float("nan")}, {"epoch": 1, "step": 6, "</script>": 0.123456789}]
    text = dump_charts([Chart("c", [Curve("</script>", rows, "</script>")])])
    assert "<" not in text
    assert '"y":[null,0.123457]' in text
    assert '"epoch":[0,1],"step":[3,6]' in text
