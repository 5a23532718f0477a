"""Whether models differ beyond noise, and which samples show it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torchmetrics.classification import MulticlassF1Score, MulticlassPrecision, MulticlassRecall

from lightkit.reports.predictions import Predictions
from lightkit.reports.statistics import (
    choose_deciding_samples,
    compare_on_same_samples,
    compute_interval,
    select_class,
)


def classified(targets: Any, predicted: Any, *, names: tuple[str, ...] = ("a", "b", "c"), **more: Any) -> Predictions:
    targets, predicted = np.asarray(targets), np.asarray(predicted)
    certainty = np.where(targets == predicted, 0.9, 0.1).astype(np.float32)
    paths: list[str | None] = [f"{index}.jpg" for index in range(len(targets))]
    return Predictions(
        "test", np.arange(len(targets)), paths, targets, predicted, np.full(len(targets), 0.9, np.float32), certainty,
        names, **more,
    )  # fmt: skip


def regressed(targets: Any, predicted: Any) -> Predictions:
    targets, predicted = np.asarray(targets, np.float32), np.asarray(predicted, np.float32)
    none = targets[:0]
    return Predictions("test", np.arange(len(targets)), [None] * len(targets), targets, predicted, none, none)


LABELS = np.arange(100) % 3


def right_below(number: int) -> Predictions:
    return classified(LABELS, np.where(np.arange(100) < number, LABELS, (LABELS + 1) % 3))


@pytest.mark.parametrize(
    ("mine", "theirs", "p_value", "counts"),
    [(80, 90, 2 / 2**10, True), (88, 90, 0.5, False), (90, 90, 1.0, False)],
    ids=["ten lost", "two lost", "equal"],
)
def test_accuracy_is_compared_by_mcnemars_test(mine: int, theirs: int, p_value: float, counts: bool) -> None:
    found = compare_on_same_samples(
        "test/accuracy", (mine / 100, theirs / 100), right_below(mine), right_below(theirs), confidence=0.95
    )
    assert (found["test"], found["counts"]) == ("McNemar's exact test", counts)
    assert found["p_value"] == pytest.approx(p_value)
    assert found["difference"] == pytest.approx((mine - theirs) / 100)
    assert (found["only_challenger"], found["only_baseline"]) == (0, theirs - mine)


def test_classes_in_another_order_are_the_same_samples() -> None:
    theirs = right_below(90)
    order = np.array([2, 0, 1])
    other = classified(order[theirs.target], order[theirs.prediction], names=("b", "c", "a"))
    found = compare_on_same_samples("test/accuracy", (0.8, 0.9), right_below(80), other, confidence=0.95)
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
def test_a_difference_that_cannot_be_tested_counts(metric: str, score: float, baseline: Predictions | None) -> None:
    reference = 1.0 if baseline is not None and baseline.is_correct.all() else 0.9
    found = compare_on_same_samples(metric, (score, reference), right_below(80), baseline, confidence=0.95)
    assert (found["test"], found["counts"]) == (None, True)
    assert found["reason"]


def test_other_metrics_are_those_of_torchmetrics_and_compared_by_the_bootstrap() -> None:
    random = np.random.default_rng(1)
    targets, predicted = random.integers(0, 4, 200), random.integers(0, 4, 200)
    mine = classified(targets, predicted, names=tuple("abcdef"))
    theirs = classified(targets, np.where(random.random(200) < 0.8, targets, predicted), names=tuple("abcdef"))
    pair = torch.from_numpy(predicted), torch.from_numpy(targets)
    for name, metric in (("f1", MulticlassF1Score), ("precision", MulticlassPrecision), ("recall", MulticlassRecall)):
        score = float(metric(6, average="macro")(*pair))
        interval = compute_interval(f"val/{name}", score, mine, confidence=0.95)
        assert interval is not None
        assert interval[0] < score < interval[1]
    better = float(MulticlassRecall(6, average="macro")(torch.from_numpy(theirs.prediction), pair[1]))
    found = compare_on_same_samples("val/recall", (score, better), mine, theirs, confidence=0.95)
    assert (found["test"], found["counts"]) == ("paired bootstrap", True)


def test_a_regressors_error_is_compared_by_the_bootstrap() -> None:
    random = np.random.default_rng(2)
    targets, noise = random.normal(size=60), random.normal(size=60)
    scores = [float(np.abs(noise * scale).mean()) for scale in (1, 1.001)]
    mine, theirs = (regressed(targets, targets + noise * scale * sign) for scale, sign in ((1, 1), (1.001, -1)))
    found = compare_on_same_samples("test/mae", scores, mine, theirs, confidence=0.95)
    assert found["test"] == "paired bootstrap"
    assert found["low"] <= found["difference"] <= found["high"]


def test_the_samples_that_decide_are_those_that_one_model_alone_gets_right() -> None:
    mine, theirs = classified([0, 1, 2, 0], [0, 2, 2, 1]), classified([0, 1, 2, 0], [0, 1, 0, 2])
    found = choose_deciding_samples(mine, theirs, [])
    assert [(each["kind"], each["index"], each["label"]) for each in found] == [("lost", 1, "b"), ("won", 2, "c")]
    assert (found[0]["challenger"], found[0]["baseline"], found[0]["path"]) == ("c", "b", "1.jpg")


def test_without_a_baseline_the_worst_errors_are_chosen_and_those_of_judged_classes() -> None:
    alone = choose_deciding_samples(right_below(80), None, ["c"])
    assert {each["kind"] for each in alone} == {"wrong"}
    assert len(alone) == len({each["index"] for each in alone}) > 12
    assert choose_deciding_samples(None, None, ["c"]) == []
    assert choose_deciding_samples(regressed([1, 2], [1, 5]), regressed([1, 2], [1, 2]), [])[0]["index"] == 1


def test_a_class_is_selected_by_name_or_number() -> None:
    for name in ("b", "1"):
        found = select_class(right_below(90), name)
        assert found is not None
        assert set(found.target.tolist()) == {1}
        assert len(found.paths) == len(found)
