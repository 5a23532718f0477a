"""Whether models differ beyond noise, and which samples show it."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from torchmetrics.classification import MulticlassF1Score, MulticlassPrecision, MulticlassRecall

from lightkit.reports.predictions import UNKNOWN_SCORE, Predictions
from lightkit.reports.statistics import (
    bound_difference,
    choose_deciding_samples,
    compare_on_same_samples,
    compute_interval,
    describe_significance,
    format_difference,
    mcnemar_exact,
    paired_score_interval,
    score_slice,
    select_class,
    smallest_drop,
    smallest_margin,
    suggest_margin,
)


def classified(
    targets: Any, predicted: Any, *, names: tuple[str, ...] = ("a", "b", "c"), **more: Any
) -> Predictions:
    targets, predicted = np.asarray(targets), np.asarray(predicted)
    certainty = np.where(targets == predicted, 0.9, 0.1).astype(np.float32)
    paths: list[str | None] = [f"{index}.jpg" for index in range(len(targets))]
    return Predictions(
        "test", np.arange(len(targets)), paths, targets, predicted,
        np.full(len(targets), 0.9, np.float32), certainty,
        names, **more,
    )  # fmt: skip


def regressed(targets: Any, predicted: Any) -> Predictions:
    targets, predicted = np.asarray(targets, np.float32), np.asarray(predicted, np.float32)
    none = targets[:0]
    return Predictions(
        "test", np.arange(len(targets)), [None] * len(targets), targets, predicted, none, none
    )


def test_a_slice_is_scored_by_the_statistic_of_all_samples() -> None:
    """Errors 1, 1, 4, 4: the loss is absolute where it is 2.5, and squared where it is 8.5."""
    found = regressed([0, 0, 0, 0], [1, -1, 4, -4])
    found = replace(found, slices={"sex=f": np.array([0, 0, 1, 1]) > 0, "sex=": np.zeros(4) > 0})
    assert score_slice("test/loss", "sex=f", 2.5, found) == 4.0
    assert score_slice("test/loss", "sex=f", 8.5, found) == 16.0
    assert score_slice("test_mae", "sex=f", 2.5, found) == 4.0
    assert score_slice("test/mae", "sex=", 2.5, found) is None
    assert score_slice("test/loss", "sex=f", 0.3, found) is UNKNOWN_SCORE


LABELS = np.arange(100) % 3


def right_below(number: int) -> Predictions:
    return classified(LABELS, np.where(np.arange(100) < number, LABELS, (LABELS + 1) % 3))


@pytest.mark.parametrize(
    ("mine", "theirs", "p_value", "counts"),
    [(80, 90, 2 / 2**10, True), (88, 90, 0.5, False), (90, 90, 1.0, False)],
    ids=["ten lost", "two lost", "equal"],
)
def test_accuracy_is_compared_by_mcnemars_test(
    mine: int, theirs: int, p_value: float, counts: bool
) -> None:
    found = compare_on_same_samples(
        "test/accuracy",
        (mine / 100, theirs / 100),
        right_below(mine),
        right_below(theirs),
        confidence=0.95,
    )
    assert (found["test"], found["counts"]) == ("McNemar's exact test", counts)
    assert found["p_value"] == pytest.approx(p_value)
    assert found["difference"] == pytest.approx((mine - theirs) / 100)
    assert (found["only_challenger"], found["only_baseline"]) == (0, theirs - mine)


def test_classes_in_another_order_are_the_same_samples() -> None:
    theirs = right_below(90)
    order = np.array([2, 0, 1])
    other = classified(order[theirs.target], order[theirs.prediction], names=("b", "c", "a"))
    found = compare_on_same_samples(
        "test/accuracy", (0.8, 0.9), right_below(80), other, confidence=0.95
    )
    assert found["counts"]
    assert found["test"]


@pytest.mark.parametrize(
    ("metric", "score", "baseline"),
    [
        ("test/accuracy", 0.8, None),
        ("test/accuracy", 0.7, right_below(90)),
        ("test/odd", 0.8, right_below(90)),
        ("test/accuracy", float("nan"), right_below(90)),
        ("test/accuracy", 0.8, classified((LABELS + 1) % 3, (LABELS + 1) % 3)),
    ],
    ids=["no predictions", "another value", "another metric", "NaN", "other labels"],
)
def test_a_difference_that_cannot_be_tested_counts(
    metric: str, score: float, baseline: Predictions | None
) -> None:
    reference = 1.0 if baseline is not None and baseline.is_correct.all() else 0.9
    found = compare_on_same_samples(
        metric, (score, reference), right_below(80), baseline, confidence=0.95
    )
    assert (found["test"], found["counts"]) == (None, True)
    assert found["reason"]


def test_other_metrics_are_those_of_torchmetrics_and_compared_by_the_bootstrap() -> None:
    random = np.random.default_rng(1)
    targets, predicted = random.integers(0, 4, 200), random.integers(0, 4, 200)
    mine = classified(targets, predicted, names=tuple("abcdef"))
    theirs = classified(
        targets, np.where(random.random(200) < 0.8, targets, predicted), names=tuple("abcdef")
    )
    pair = torch.from_numpy(predicted), torch.from_numpy(targets)
    for name, metric in (
        ("f1", MulticlassF1Score),
        ("precision", MulticlassPrecision),
        ("recall", MulticlassRecall),
    ):
        score = float(metric(6, average="macro")(*pair))
        interval = compute_interval(f"val/{name}", score, mine, confidence=0.95)
        assert interval is not None
        assert interval[0] < score < interval[1]
    better = float(
        MulticlassRecall(6, average="macro")(torch.from_numpy(theirs.prediction), pair[1])
    )
    found = compare_on_same_samples("val/recall", (score, better), mine, theirs, confidence=0.95)
    assert (found["test"], found["counts"]) == ("paired bootstrap", True)


def test_a_regressors_error_is_compared_by_the_bootstrap() -> None:
    random = np.random.default_rng(2)
    targets, noise = random.normal(size=60), random.normal(size=60)
    scores = [float(np.abs(noise * scale).mean()) for scale in (1, 1.001)]
    mine, theirs = (
        regressed(targets, targets + noise * scale * sign) for scale, sign in ((1, 1), (1.001, -1))
    )
    found = compare_on_same_samples("test/mae", scores, mine, theirs, confidence=0.95)
    assert found["test"] == "paired bootstrap"
    assert found["low"] <= found["difference"] <= found["high"]


def test_the_samples_that_decide_are_those_that_one_model_alone_gets_right() -> None:
    mine, theirs = classified([0, 1, 2, 0], [0, 2, 2, 1]), classified([0, 1, 2, 0], [0, 1, 0, 2])
    found = choose_deciding_samples(mine, theirs, [])
    assert [(each["kind"], each["index"], each["label"]) for each in found] == [
        ("lost", 1, "b"),
        ("won", 2, "c"),
    ]
    assert (found[0]["challenger"], found[0]["baseline"], found[0]["path"]) == ("c", "b", "1.jpg")


def test_without_a_baseline_the_worst_errors_are_chosen_and_those_of_judged_classes() -> None:
    alone = choose_deciding_samples(right_below(80), None, ["c"])
    assert {each["kind"] for each in alone} == {"wrong"}
    assert len(alone) == len({each["index"] for each in alone}) > 12
    assert choose_deciding_samples(None, None, ["c"]) == []
    assert (
        choose_deciding_samples(regressed([1, 2], [1, 5]), regressed([1, 2], [1, 2]), [])[0][
            "index"
        ]
        == 1
    )


def masked(targets: Any, predicted: Any, right: Any) -> Predictions:
    """Predictions of masks of two classes: pixels of each class, ``(samples, 2)``."""
    target = np.asarray(targets)
    counts = np.stack([np.asarray(predicted), np.asarray(right)], axis=2)
    none = np.empty(0, np.float32)
    paths: list[str | None] = [f"{index}.png" for index in range(len(target))]
    names = ("road", "car")
    return Predictions(
        "test",
        np.arange(len(target)),
        paths,
        target,
        counts,
        none,
        none,
        names,
        output_kind="mask_logits",
    )


def test_the_masks_that_decide_are_those_whose_iou_differs() -> None:
    """Of four pixels a sample.

    The IoU of road and car are 1 and 1, or 2/3 and 1/2 with one pixel of the car missed.
    """
    targets = [[2, 2], [2, 2], [2, 2]]
    missed = [3, 1], [2, 1]
    whole = [2, 2], [2, 2]
    mine = masked(targets, [missed[0], whole[0], whole[0]], [missed[1], whole[1], whole[1]])
    theirs = masked(targets, [whole[0], missed[0], whole[0]], [whole[1], missed[1], whole[1]])
    found = choose_deciding_samples(mine, theirs, [])
    assert [(each["kind"], each["index"]) for each in found] == [("lost", 0), ("won", 1)]
    assert found[0]["challenger"] == "road 75%, car 25%"
    assert found[0]["baseline"] == "road 50%, car 50%"


@pytest.mark.parametrize(
    ("numbers", "mode", "text"),
    [
        ((0.475, 0.336, 0.614), "min", "worse by 0.475 (0.336 to 0.614)"),
        ((-0.475, -0.614, -0.336), "max", "worse by 0.475 (0.336 to 0.614)"),
        ((-0.475, -0.614, -0.336), "min", "better by 0.475 (0.336 to 0.614)"),
        ((0.0141, 0.0, 0.042), "max", "better by 0.0141 (0 to 0.042)"),
        ((-0.014, -0.042, 0.013), "max", "worse by 0.014 (0.042 worse to 0.013 better)"),
        ((0.014, -0.013, 0.042), "min", "worse by 0.014 (0.042 worse to 0.013 better)"),
        ((0.0, -0.09, 0.08), "max", "equal (0.09 worse to 0.08 better)"),
        ((0.0, 0.0, -0.0), "min", "equal (0 to 0)"),
        ((0.3, 0.1, 0.5), None, "larger by 0.3 (0.1 to 0.5)"),
        ((-0.3, -0.7, 0.1), None, "smaller by 0.3 (0.7 smaller to 0.1 larger)"),
        ((-0.1, -math.inf, math.inf), "max", "worse by 0.1 (no interval: too few samples)"),
        ((-0.1, -0.2, None), "max", "worse by 0.1"),
    ],
)
def test_a_difference_is_written_in_words_with_the_direction_of_its_metric(
    numbers: tuple[float, float, float | None], mode: str | None, text: str
) -> None:
    assert format_difference(*numbers, mode=mode) == text


def test_a_larger_loss_is_written_as_worse_by_gate_and_comparison_alike() -> None:
    """The errors are 0.5 larger on each of 40 samples."""
    targets = np.linspace(0, 1, 40)
    mine = regressed(targets, targets + 1.0)
    theirs = regressed(targets, targets + 0.5)
    scores = [1.0, 0.5]
    found = compare_on_same_samples("test/mae", scores, mine, theirs, confidence=0.95)
    text = describe_significance(found, "test/mae", "the champion", mode="min")
    assert text.startswith("test/mae against the champion: worse by 0.5 (0.5 to 0.5).")
    bounded = bound_difference("test/mae", scores, mine, theirs, mode="min", confidence=0.95)
    assert bounded is not None
    words = format_difference(bounded["difference"], bounded["low"], bounded["high"], mode="max")
    assert words == "worse by 0.5 (0.5 to 0.5)"


def test_a_class_is_selected_by_name_or_number() -> None:
    for name in ("b", "1"):
        found = select_class(right_below(90), name)
        assert found is not None
        assert set(found.target.tolist()) == {1}
        assert len(found.paths) == len(found)


@pytest.mark.parametrize(
    ("only_first", "only_second", "num_samples"),
    [(12, 2, 73), (3, 7, 71), (0, 5, 30), (5, 1, 50), (1, 1, 20)],
    ids=["better", "worse", "one-sided", "nearly one-sided", "even"],
)
def test_a_paired_score_interval_holds_the_differences_that_a_score_test_does_not_reject(
    only_first: int, only_second: int, num_samples: int
) -> None:
    z = NormalDist().inv_cdf(0.95)

    def is_kept(difference: float) -> bool:
        """Test a difference with the nuisance parameter found by trial, not by its formula."""
        share = np.linspace(max(0.0, -difference), (1 - difference) / 2, 20001)[1:-1]
        rest = num_samples - only_first - only_second
        likelihood = (
            only_first * np.log(np.maximum(share + difference, 1e-300))
            + only_second * np.log(share)
            + rest * np.log(np.maximum(1 - 2 * share - difference, 1e-300))
        )
        second = float(share[np.argmax(likelihood)])
        variance = num_samples * (2 * second + difference * (1 - difference))
        return abs(only_first - only_second - num_samples * difference) < z * math.sqrt(variance)

    low, high = paired_score_interval(only_first, only_second, num_samples, confidence=0.9)
    assert [is_kept(each) for each in (low - 0.002, low + 0.002, high - 0.002, high + 0.002)] == [
        False, True, True, False,
    ]  # fmt: skip


def test_two_models_without_a_disagreement_may_still_differ() -> None:
    z = NormalDist().inv_cdf(0.95)
    low, high = paired_score_interval(0, 0, 30, confidence=0.9)
    assert (low, high) == pytest.approx((-(z**2) / (30 + z**2), z**2 / (30 + z**2)), abs=1e-9)
    assert smallest_margin(30) == pytest.approx(0.0827, abs=1e-4)


@pytest.mark.parametrize(
    ("num_samples", "drop", "margin"),
    [
        (4, None, None),
        (5, 1.0, None),
        (30, 5 / 30, 0.17),
        (71, 5 / 71, 0.094),
        (1000, 0.005, 0.025),
    ],
    ids=str,
)
def test_so_many_samples_show_so_small_a_drop(
    num_samples: int, drop: float | None, margin: float | None
) -> None:
    assert smallest_drop(num_samples) == pytest.approx(drop)
    assert suggest_margin(num_samples) == pytest.approx(margin)
    if drop is not None:  # one sample less lost is no longer significant
        lost = round(drop * num_samples)
        assert mcnemar_exact(0, lost) / 2 <= 0.05 < mcnemar_exact(0, lost - 1) / 2


@pytest.mark.parametrize(
    ("metric", "mode", "sign"),
    [
        ("test/accuracy", "max", 1),
        ("test/error", "min", 1),
        ("test/error", "max", -1),
        ("test/accuracy", "min", -1),
    ],
    ids=str,
)
def test_a_difference_is_bounded_in_the_direction_that_is_good(
    metric: str, mode: str, sign: int
) -> None:
    is_error = metric.endswith("error")
    scores = [1 - share if is_error else share for share in (0.88, 0.90)]
    found = bound_difference(
        metric, scores, right_below(88), right_below(90), mode=mode, confidence=0.95
    )
    assert found is not None
    assert found["difference"] == pytest.approx(-0.02 * sign)
    low, high = paired_score_interval(0, 2, 100, confidence=0.9)
    assert found["low"] == pytest.approx(low if sign == 1 else -high)


def test_a_loss_of_a_regressor_is_bounded_by_its_squares() -> None:
    targets = np.zeros(200)
    noise = np.random.default_rng(1).normal(size=(2, 200)).astype(np.float32)
    worse, better = regressed(targets, 1.5 * noise[0]), regressed(targets, noise[1])
    scores = [
        float((1.5 * noise[0]).astype(float).__pow__(2).mean()),
        float(noise[1].astype(float).__pow__(2).mean()),
    ]
    found = bound_difference("test/loss", scores, worse, better, mode="min", confidence=0.95)
    assert found is not None
    differences = noise[1].astype(float) ** 2 - (1.5 * noise[0].astype(float)) ** 2
    assert found["difference"] == pytest.approx(differences.mean(), abs=1e-6)
    assert found["low"] == pytest.approx(
        differences.mean() - 1.645 * differences.std() / math.sqrt(200), abs=0.06
    )


def test_a_few_samples_of_a_loss_show_nothing() -> None:
    predictions = regressed(np.zeros(19), np.ones(19))
    found = bound_difference(
        "test/mae", [1.0, 1.0], predictions, predictions, mode="min", confidence=0.95
    )
    assert found is not None
    assert (found["difference"], found["low"]) == (0.0, -math.inf)
