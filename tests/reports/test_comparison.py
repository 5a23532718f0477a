"""Samples that two models have in common, and what a test says of them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightkit.reports import comparison, figures
from lightkit.reports.comparison import (
    describe_difference,
    match_samples,
    pair_predictions,
    render_comparison,
)
from lightkit.reports.facts import RunFacts, Score, Setting
from lightkit.reports.predictions import Predictions
from lightkit.reports.statistics import mark_differences
from tests.reports.examples import facts_of, predict, regress


def test_samples_are_matched_by_path_below_the_folder_of_the_data() -> None:
    first = predict([0, 1, 1], [0, 1, 1], paths=["/a/x.png", "/a/y.png", "/a/z.png"])
    second = predict(
        [1, 0, 1], [1, 0, 1], paths=["/b/y.png", "/b/x.png", "/b/other.png"], fingerprint="f2"
    )
    rows = match_samples(first, second, roots=("/a", "/b/"))
    assert rows is not None
    assert rows.tolist() == [[0, 1], [1, 0]]
    assert match_samples(first, second) is None


def test_a_sample_whose_label_has_changed_is_another() -> None:
    rows = match_samples(predict([0, 1], [0, 1]), predict([0, 0], [0, 1], fingerprint="f2"))
    assert rows is not None
    assert rows.tolist() == [[0, 0]]


def test_classes_may_be_numbered_differently() -> None:
    rows = match_samples(
        predict([0, 1], [0, 1]), predict([1, 0], [1, 0], class_names=("dog", "cat"))
    )
    assert rows is not None
    assert len(rows) == 2


@pytest.mark.parametrize(
    ("changes", "num"),
    [
        ({}, 2),
        ({"fingerprint": "f2"}, None),
        ({"fingerprint": None}, None),
        ({"target": np.array([1, 0])}, None),
    ],
    ids=["same-data", "other-data", "unknown-data", "other-split"],
)
def test_samples_without_names_are_matched_by_position_in_the_same_data(
    changes: dict[str, Any], num: int | None
) -> None:
    first = predict([0, 1], [0, 1], paths=[None, None])
    rows = match_samples(first, replace(first, **changes))
    assert (None if rows is None else len(rows)) == num


def test_a_classifier_and_a_regressor_have_no_sample_in_common() -> None:
    assert match_samples(predict([0], [0]), regress([0.0], [0.0])) is None


def test_equal_models_have_no_difference_beyond_noise(tmp_path: Path) -> None:
    labels = [0, 1] * 20
    first, second = ([1 - labels[0], *labels[1:]], [labels[0], 1 - labels[1], *labels[2:]])
    pair = pair_predictions(
        facts_of(tmp_path, predict(labels, first)), facts_of(tmp_path, predict(labels, second))
    )
    assert pair is not None
    headline, detail = describe_difference(*pair, "AB")
    assert headline == "No difference beyond noise between A and B."
    assert "Of 40 samples, B alone is right on 1 and A alone on 1." in detail
    assert "McNemar's exact test, p = 1)" in detail


def test_a_better_classifier_is_said_to_be_better() -> None:
    labels = [0, 1] * 20
    wrong = [1 - label for label in labels[:10]] + labels[10:]
    weak, good = (predict(labels, predicted) for predicted in (wrong, labels))
    for pair, said in (((weak, good), "B is better than A."), ((good, weak), "B is worse than A.")):
        assert describe_difference(*pair, "AB")[0] == said
        assert describe_difference(*pair, "AB", level=0.001)[0].startswith("No difference")


def log_scores(predictions: Predictions) -> dict[str, Score]:
    """Return accuracy and loss as a training logs them."""
    loss = float(-np.log(predictions.label_probability.astype(float)).mean())
    accuracy = float(predictions.is_correct.mean())
    return {
        "test/accuracy": Score("test/accuracy", accuracy),
        "test/loss": Score("test/loss", loss, is_loss=True),
    }


def test_models_that_are_equally_often_right_are_compared_by_their_losses_too() -> None:
    labels = [0, 1] * 20
    sure = predict(labels, labels, label_probability=np.full(40, 0.9, np.float32))
    unsure = predict(labels, labels, label_probability=np.full(40, 0.6, np.float32))
    logged = [log_scores(sure), log_scores(unsure)]
    headline, detail = describe_difference(sure, unsure, "AB", logged=logged)
    assert (
        headline == "B is worse than A in test/loss; no difference beyond noise in test/accuracy."
    )
    first, second = detail.splitlines()
    assert first.startswith("test/accuracy of B against A: equal (0 to 0).")
    # ln(0.9 / 0.6) = 0.405 for each sample
    assert second.startswith("test/loss of B against A: worse by 0.405 (0.405 to 0.405).")
    assert describe_difference(sure, sure, "AB", logged=logged[:1] * 2)[0].startswith(
        "No difference"
    )


def test_a_model_that_is_more_often_right_and_has_a_larger_loss_is_both() -> None:
    labels = [0, 1] * 20
    wrong = [1 - label for label in labels[:10]] + labels[10:]
    weak = predict(
        labels,
        wrong,
        label_probability=np.where(np.equal(labels, wrong), 0.9, 0.45).astype(np.float32),
    )
    good = predict(labels, labels, label_probability=np.full(40, 0.52, np.float32))
    headline, _ = describe_difference(weak, good, "AB", logged=[log_scores(weak), log_scores(good)])
    assert headline == "B is better than A in test/accuracy, and worse in test/loss."


def test_a_logged_score_of_other_samples_is_not_compared() -> None:
    labels = [0, 1] * 20
    pair = predict(labels, labels), predict(labels, labels)
    logged = [{"test/loss": Score("test/loss", value, is_loss=True)} for value in (3.0, 4.0)]
    _, detail = describe_difference(*pair, "AB", logged=logged)
    assert "test/loss" not in detail


def test_of_many_differences_the_smallest_p_value_needs_most() -> None:
    tests: list[dict[str, Any]] = [{"p_value": value} for value in (0.03, 0.01, 0.04)]
    mark_differences(tests, level=0.05)  # Holm: 0.01 <= 0.05/3, 0.03 > 0.05/2, and nothing after it
    assert [each["counts"] for each in tests] == [False, True, False]


def test_regressors_are_compared_by_their_errors() -> None:
    targets = np.linspace(0, 1, 50)
    near, far = (regress(targets.tolist(), (targets + gap).tolist()) for gap in (0.1, 0.3))
    headline, detail = describe_difference(near, far, "AB")
    assert headline == "B is worse than A."
    assert detail.startswith("test/mae of B against A: worse by 0.2 (0.2 to 0.2).")
    assert "paired bootstrap" in detail


def test_whether_a_model_with_values_that_are_not_finite_differs_is_unknown() -> None:
    pair = regress([0.0, 1.0], [0.0, 1.0]), regress([0.0, 1.0], [0.0, float("nan")])
    assert describe_difference(*pair, "AB")[0] == "Whether A and B differ is unknown."


def test_a_target_that_has_changed_by_little_is_another_sample() -> None:
    rows = match_samples(regress([1.0, 2.0], [1.0, 2.0]), regress([1.00001, 2.0], [1.0, 2.0]))
    assert rows is not None
    assert rows.tolist() == [[1, 1]]


def test_the_page_shows_what_differs_alone(tmp_path: Path) -> None:
    def trained(rate: float, commit: str) -> RunFacts:
        settings = [
            Setting("model.learning_rate", rate, "a.yaml:3"),
            Setting("data.root", "photos", "a.yaml:5"),
        ]
        manifest = {
            "git": {"commit": commit, "dirty": False},
            "python": "3.12",
            "data": {"fingerprint": "f1"},
        }
        rows = [
            {"epoch": 0, "step": 5, "val/loss": 1.0},
            {"epoch": 1, "step": 10, "val/loss": rate},
        ]
        return facts_of(tmp_path, settings=settings, manifest=manifest, rows=rows)

    page = render_comparison([trained(0.25, "c0ffee"), trained(0.125, "decade")])
    for shown in (
        "model.learning_rate",
        "0.125",
        "a.yaml:3",
        "git.commit",
        "c0ffee",
        "decade",
        "val/loss",
    ):
        assert shown in page
    for hidden in ("data.root", "git.dirty", "3.12", "The data differs"):
        assert hidden not in page
    assert "lightkit test --run RUN" in page  # no predictions, no test


def test_a_loss_in_a_unit_of_each_models_own_is_not_compared() -> None:
    pair = regress([0.0, 1.0] * 20, [0.1, 0.9] * 20), regress([0.0, 1.0] * 20, [0.3, 0.7] * 20)
    # the values are those of the samples, so that the unit alone keeps them apart
    logged = [{"test/loss": Score("test/loss", value, is_loss=True)} for value in (0.01, 0.09)]
    headline, detail = describe_difference(*pair, "AB", logged=logged)
    assert headline == "B is worse than A."
    assert "test/loss" not in detail


def test_usual_metrics_have_the_first_curves_and_each_says_how_the_runs_end(tmp_path: Path) -> None:
    first = [
        {"epoch": 0, "step": 5, "noise": 7.0, "train/loss": 3.0, "val/loss": 2.0},
        {"epoch": 1, "step": 9, "noise": 8.0, "train/loss": 1.5, "val/loss": 1.25},
    ]
    second = [{"epoch": 0, "step": 5, "val/loss": 0.5, "val/accuracy": 0.75, "lr": 0.1}]
    page = render_comparison([facts_of(tmp_path, rows=rows) for rows in (first, second)])
    assert re.findall(r'aria-label="([^"]*at the end[^"]*)"', page) == [
        "val/loss; at the end: A 1.25, B 0.5",
        "train/loss; at the end: A 1.5",
        "val/accuracy; at the end: B 0.75",
        "noise; at the end: A 8",
    ]
    charts = json.loads(re.findall(r"<script[^>]*json[^>]*>(.*?)</script>", page, re.DOTALL)[0])
    names = ["curve-0-val-loss", "curve-1-train-loss", "curve-2-val-accuracy", "curve-3-noise"]
    assert [chart["name"] for chart in charts] == names


def test_of_long_runs_every_third_epoch_and_the_last_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    draw = figures.draw_curves

    def note(rows: list[dict[str, float]], *words: Any, **options: Any) -> Any:
        drawn.append(rows)
        return draw(rows, *words, **options)

    monkeypatch.setattr(figures, "draw_curves", note)
    # of 22, so that one in 1 + 22 // 10 is drawn
    monkeypatch.setattr(comparison, "_MAX_POINTS", 10)
    rows = [{"epoch": epoch, "step": epoch, "val/loss": float(epoch)} for epoch in range(11)]
    render_comparison([facts_of(tmp_path, rows=rows), facts_of(tmp_path, rows=rows[:9])])
    assert drawn == [
        [
            {"epoch": 0, "A": 0.0, "B": 0.0},
            {"epoch": 3, "A": 3.0, "B": 3.0},
            {"epoch": 6, "A": 6.0, "B": 6.0},
            {"epoch": 9, "A": 9.0},
            {"epoch": 10, "A": 10.0},
        ]
    ]


def test_a_banner_says_that_the_data_differs(tmp_path: Path) -> None:
    runs = [facts_of(tmp_path, manifest={"data": {"fingerprint": each}}) for each in ("f1", "f2")]
    assert "The data differs" in render_comparison(runs)


def test_with_many_runs_a_difference_needs_more_evidence(tmp_path: Path) -> None:
    labels = [0, 1] * 20
    wrong = [1 - label for label in labels[:6]] + labels[6:]  # p = 0.031
    weak, good = (facts_of(tmp_path, predict(labels, predicted)) for predicted in (wrong, labels))
    assert "B is better than A." in render_comparison([weak, good])
    page = render_comparison([weak, good, weak])
    assert "No difference beyond noise between A and B." in page
    assert "Bonferroni" in page
