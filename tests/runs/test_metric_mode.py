"""Which value of a metric is best."""

from __future__ import annotations

import math
from typing import Any

import pytest

from lightkit.runs.metric_mode import infer_mode, is_better, merge_modes, override_modes, rank_value


@pytest.mark.parametrize(
    ("metric", "mode"),
    [
        ("val/loss", "min"),
        ("test/rmse", "min"),
        ("val_error", "min"),
        ("MeanSquaredError", "min"),
        ("val/nll", "min"),
        ("val/wer", "min"),
        ("loss/dataloader_idx_0", "min"),
        ("test/accuracy", "max"),
        ("valAccuracy", "max"),
        ("acc@1", "max"),
        ("val/acc5", "max"),
        ("test/f1", "max"),
        ("BinaryF1Score", "max"),
        ("val/MulticlassAUROC", "max"),
        ("val/R2Score", "max"),
        ("val/mIoU", "max"),
        ("val/mAP50", "max"),
        ("test/mAP_50_95", "max"),
        ("val/AP/red", "max"),
        ("val/mAR", "max"),
        ("val/loss_giou", "min"),
        ("val/closeness", None),
        ("closs", None),
        ("val/neg_loss", None),
        ("val/accuracy_loss", None),
        ("val/accuracy_std", None),
        ("test/energy", None),
    ],
)
def test_the_name_of_a_metric_says_what_is_best_where_it_is_usual(
    metric: str, mode: str | None
) -> None:
    assert infer_mode(metric) == mode


@pytest.mark.parametrize(
    ("known", "mode"),
    [
        ({}, "max"),
        ({"chosen": "min"}, "max"),
        ({"recorded": {"val/accuracy": "min"}, "chosen": "max"}, "min"),
        ({"recorded": {"test/accuracy": "min"}}, "min"),
        ({"recorded": {"accuracy_epoch": "min"}}, "min"),
        ({"recorded": {"test/accuracy": "min", "accuracy": "max"}}, "max"),
        ({"recorded": {"val/accuracy": 1, "val/loss": "min"}}, "max"),
        ({"explicit": "max", "recorded": {"val/accuracy": "min"}, "chosen": "min"}, "max"),
    ],
    ids=[
        "name",
        "a default",
        "recorded",
        "of another split",
        "another form",
        "contradiction",
        "damaged",
        "explicit",
    ],
)
def test_the_first_that_is_known_decides(known: dict[str, Any], mode: str) -> None:
    assert infer_mode("val/accuracy", **known) == mode


def test_a_default_decides_for_a_name_that_says_nothing() -> None:
    assert infer_mode("val/energy", chosen="max") == "max"
    assert infer_mode("val/energy") is None


def test_a_stronger_mode_is_that_of_the_metric_on_each_split() -> None:
    known = {"val/energy": "min", "test/energy_epoch": "min", "val/loss": "min"}
    assert override_modes(known, {"test/energy": "max"}) == {
        "val/loss": "min",
        "test/energy": "max",
    }


def test_the_newest_run_that_recorded_a_mode_counts() -> None:
    summaries: list[dict[str, Any]] = [
        {},
        {"modes": {"a": "max"}},
        {"modes": None},
        {"modes": {"a": "min", "b": "min"}},
    ]
    assert merge_modes(summaries) == {"a": "max", "b": "min"}


@pytest.mark.parametrize("mode", ["min", "max"])
def test_values_that_are_not_finite_are_worst_and_those_that_are_missing_come_last(
    mode: str,
) -> None:
    values = [None, math.nan, -math.inf, math.inf, 0.2, 0.0, -1.5]
    ranked = sorted(values, key=lambda value: rank_value(value, mode))
    assert ranked[:3] == ([-1.5, 0.0, 0.2] if mode == "min" else [0.2, 0.0, -1.5])
    assert ranked[-1] is None
    assert not is_better(math.nan, 5.0, mode)
    assert not is_better(-math.inf if mode == "min" else math.inf, 5.0, mode)
    assert is_better(5.0, math.nan, mode)
    assert not is_better(math.nan, math.nan, mode)
    assert is_better(0.0, 1.0, mode) == (mode == "min")
