"""Precision, recall and false positive rate at each threshold, against scikit-learn and by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from lightkit.reports.curves import Chart, Curve, choose_log_axis, dump_charts
from lightkit.reports.predictions import Predictions
from lightkit.reports.thresholds import (
    Thresholds,
    compute_class_thresholds,
    compute_rates,
    compute_thresholds,
    dump_thresholds,
)


def test_rates_are_those_of_a_count_by_hand() -> None:
    """Of six samples three are positive.

    At 0.8 three are accepted, of which two are right and one is not.
    """
    scores = np.array([0.9, 0.8, 0.8, 0.6, 0.3, 0.2])
    found = compute_rates(scores, np.array([1, 1, 0, 1, 0, 0], dtype=bool), name="x", subject="x")
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
        found = compute_rates(scores, is_positive, name="x", subject="x")
        assert found is not None
        assert found.average_precision == pytest.approx(
            metrics.average_precision_score(is_positive, scores)
        )
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


def of_classes(
    num_samples: int, *, names: tuple[str, ...] = ("a", "b", "c", "none has it")
) -> Predictions:
    """Predictions of several classes, with rounded probabilities, of which some are equal.

    The last has no sample.
    """
    random = np.random.default_rng(9)
    target = random.integers(0, len(names) - 1, num_samples)
    logits = random.normal(size=(num_samples, len(names))).round(1)
    logits[np.arange(num_samples), target] += 1
    powers = np.exp(logits)
    values = (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)
    found = predictions(
        names, target.tolist(), values.argmax(axis=1).tolist(), values.max(axis=1).tolist()
    )
    return replace(found, class_probability=values)


@pytest.mark.parametrize("num_samples", [60, 3000])
def test_the_curves_of_each_class_are_those_of_scikit_learn(num_samples: int) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    found = of_classes(num_samples)
    computed = compute_class_thresholds(found)
    assert [*computed] == ["a", "b", "c"]
    for number, rates in enumerate(computed.values()):
        is_class = found.target == number
        scores = found.class_probability[:, number]
        assert rates.num_positive == is_class.sum()
        assert rates.average_precision == pytest.approx(
            metrics.average_precision_score(is_class, scores)
        )
        assert rates.area == pytest.approx(metrics.roc_auc_score(is_class, scores))
        false_rate, recall, thresholds = metrics.roc_curve(
            is_class, scores, drop_intermediate=False
        )
        np.testing.assert_allclose(rates.false_positive_rate, false_rate)
        np.testing.assert_allclose(rates.recall, recall)
        np.testing.assert_allclose(rates.threshold, thresholds)
        precision, _, _ = metrics.precision_recall_curve(is_class, scores)
        np.testing.assert_allclose(rates.precision[1:], precision[:-1][::-1])


def test_a_page_has_points_of_each_class_that_are_exact_and_few() -> None:
    found = of_classes(3000)
    choices = [*compute_class_thresholds(found).values()]
    described = json.loads(dump_thresholds(choices))
    assert [each["name"] for each in described] == ["a", "b", "c"]
    for each, rates in zip(described, choices, strict=True):
        assert len(each["right"]) <= 130
        assert (each["right"][0], each["wrong"][0], each["threshold"][0]) == (0, 0, None)
        assert each["right"][-1] + each["wrong"][-1] == 3000
        exact = {*zip(rates.right.tolist(), rates.wrong.tolist(), strict=True)}
        assert {*zip(each["right"], each["wrong"], strict=True)} <= exact
        for place, row in zip(each["rows"], rates.rows, strict=True):
            right, wrong = each["right"][place], each["wrong"][place]
            assert f"{(right + wrong) / 3000:.3f}" == row[1]
            assert f"{right / each['right'][-1]:.3f}" == row[3]
        recall = np.array(each["right"]) / each["right"][-1]
        false_rate = np.array(each["wrong"]) / each["wrong"][-1]
        area = float((np.diff(false_rate) * (recall[1:] + recall[:-1]) / 2).sum())
        assert area == pytest.approx(rates.area, abs=2e-3)
    many = [replace(choices[0], name=f"class {number}") for number in range(100)]
    assert len(dump_thresholds(many)) < 120_000


def test_without_a_choice_a_page_has_no_points() -> None:
    found = compute_class_thresholds(of_classes(60))
    assert dump_thresholds([found["a"]]) == ""
    assert (
        compute_class_thresholds(
            predictions(("a", "b", "c"), [0, 1, 2], [0, 1, 1], [0.9, 0.5, 0.7])
        )
        == {}
    )


def test_a_probability_that_is_no_number_is_accepted_last() -> None:
    found = of_classes(60)
    found.class_probability[3] = np.nan
    rates = compute_class_thresholds(found)["a"]
    assert rates.right[-1] + rates.wrong[-1] == 60
    assert json.loads(dump_thresholds([rates, rates]))[0]["threshold"][-1] is None


def test_of_two_classes_the_probability_of_the_prediction_says_both() -> None:
    found = predictions(("no", "yes"), [1, 0, 1], [1, 0, 0], [0.9, 0.8, 0.6])
    computed: dict[str, Thresholds] = compute_class_thresholds(found)
    assert computed["no"].threshold[1:] == pytest.approx([0.8, 0.6, 0.1])
    assert computed["yes"].threshold[1:] == pytest.approx([0.9, 0.4, 0.2])
    assert (computed["no"].right.tolist(), computed["no"].wrong.tolist()) == (
        [0, 1, 1, 1],
        [0, 0, 1, 2],
    )


def test_without_an_error_there_is_no_curve() -> None:
    assert compute_thresholds(predictions(("a", "b", "c"), [0, 1], [0, 1], [0.9, 0.5])) is None


def test_a_log_axis_is_chosen_for_two_powers_of_ten() -> None:
    assert choose_log_axis([0.01, 1.0])
    assert not choose_log_axis([0.02, 1.0])
    assert not choose_log_axis([0.0, 1.0, 500.0])
    assert not choose_log_axis([float("nan")])


def test_the_data_of_charts_end_no_element_and_have_gaps_for_what_is_not_finite() -> None:
    rows = [
        {"epoch": 0, "step": 3, "</script>": float("nan")},
        {"epoch": 1, "step": 6, "</script>": 0.123456789},
    ]
    text = dump_charts([Chart("c", [Curve("</script>", rows, "</script>")])])
    assert "<" not in text
    assert '"y":[null,0.123457]' in text
    assert '"epoch":[0,1],"step":[3,6]' in text
