"""The decision: scores against thresholds, the baseline and the best of late."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightkit.cli.command_table import parse
from lightkit.config import Problems, resolve
from lightkit.config.resolved import Resolved
from lightkit.config.validation import check_sections
from lightkit.errors import ConfigError
from lightkit.registry.gate import GateSettings, ModelScores, decide, read_gate, split_of
from lightkit.reports.predictions import Predictions
from lightkit.reports.statistics import paired_score_interval

METRIC = "test/accuracy"


def judged(
    settings: GateSettings,
    value: float,
    baseline: float | None = None,
    *,
    slices: Mapping[str, float | None] | None = None,
    drift: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The decision on a model of one score."""
    other = (
        None
        if baseline is None
        else ModelScores("flowers version 1 (champion)", {METRIC: baseline})
    )
    candidate = ModelScores("run", {METRIC: value}, slices or {})
    return decide(settings, candidate, other, drift=drift, num_samples=9, run="a/b")


def single(value: float) -> float:
    """A score as torch gives it, in float32."""
    return float(np.float32(value))


@pytest.mark.parametrize(
    ("settings", "value", "baseline", "passes"),
    [
        (GateSettings(METRIC, min=0.7), single(0.7), None, True),
        (GateSettings(METRIC, min=0.7), 0.6999, None, False),
        (GateSettings(METRIC, max=0.3, mode="min"), single(0.3), None, True),
        (GateSettings(METRIC, max=0.3, mode="min"), 0.3001, None, False),
        (GateSettings(METRIC, min=0.2, max=0.9), 0.91, None, False),
        (GateSettings(METRIC, max_drop=0.01), single(0.79), single(0.80), True),
        (GateSettings(METRIC, max_drop=0.01), 0.79, 0.80, True),
        (GateSettings(METRIC, max_drop=0.01), 0.7899, 0.80, False),
        (GateSettings(METRIC, max_drop=0.0), 0.80, 0.80, True),
        (GateSettings(METRIC, max_drop=0.0), 0.799, 0.80, False),
        (GateSettings(METRIC, max_drop=0.01, mode="min"), 0.81, 0.80, True),
        (GateSettings(METRIC, max_drop=0.01, mode="min"), 0.82, 0.80, False),
        (GateSettings(METRIC, max_drop=0.01, mode="min"), 0.10, 0.80, True),
        (GateSettings(METRIC, max_drop=0.01), 0.1, None, True),
        (GateSettings(METRIC, max_drop=0.01, min=0.8), 0.9, float("nan"), True),
        (GateSettings(METRIC, max_drop=0.01), 0.9, float("nan"), False),
        (GateSettings(METRIC, min=0.1), float("nan"), None, False),
        (GateSettings(METRIC, max=0.1), float("nan"), None, False),
        (GateSettings(METRIC, max_drop=9.0), float("nan"), 0.5, False),
        (GateSettings(METRIC), float("nan"), None, False),
        (GateSettings(METRIC, max=1.0), float("-inf"), None, False),
        (GateSettings(METRIC), 0.5, None, True),
    ],
    ids=["at min", "below min", "at max", "above max", "above both", "float32 drop", "exact drop",
         "too large a drop",
         "no drop", "any drop", "rise of a loss", "too large a rise", "a lower loss", "no champion",
         "champion of NaN",
         "only a champion of NaN",
         "NaN and min", "NaN and max", "NaN and a drop", "NaN alone", "infinite", "no condition"],
)  # fmt: skip
def test_a_score_passes_by_its_conditions(
    settings: GateSettings, value: float, baseline: float | None, passes: bool
) -> None:
    decision = judged(settings, value, baseline)
    assert decision["passed"] is passes
    assert bool(decision["reasons"]) is not passes


@pytest.mark.parametrize(
    ("mode", "bound", "value", "passes"),
    [("max", 0.7, 0.7, True), ("max", 0.7, 0.69, False), ("min", 0.3, 0.4, False),
     ("min", 0.3, 0.2, True),
     ("max", 0.0, None, False)],
    ids=["enough", "too little", "too much", "little enough", "no sample"],
)  # fmt: skip
def test_each_class_has_a_bound_of_its_own(
    mode: str, bound: float, value: float | None, passes: bool
) -> None:
    settings = GateSettings(METRIC, mode=mode, slices={"roses": bound})  # type: ignore[arg-type]
    decision = judged(settings, 0.9, slices={"roses": value})
    assert decision["passed"] is passes
    failed = [check["name"] for check in decision["checks"] if not check["passed"]]
    assert failed == ["test/accuracy of roses"] * (not passes)


@pytest.mark.parametrize(
    ("best", "value", "passes"),
    [(0.9, 0.87, True), (0.9, 0.869, False), (None, 0.1, True)],
    ids=["within", "slid", "nothing promoted"],
)
def test_the_best_of_late_bounds_a_slow_slide(
    best: float | None, value: float, passes: bool
) -> None:
    settings = GateSettings(METRIC, drift={"window": 5, "max_drop": 0.03})
    drift = {"window": 5, "best": best, "version": None if best is None else "2"}
    decision = judged(settings, value, 0.88, drift=drift)
    assert decision["passed"] is passes
    if not passes:
        assert decision["reasons"] == [
            (
                "test/accuracy of late is 0.869, expected at most 0.03 worse than the best of the"
                " last 5 promoted models (version 2: 0.9)"
            ),
        ]


def test_the_record_holds_every_field_and_is_json() -> None:
    decision = judged(GateSettings(METRIC, min=0.8, max_drop=0.01), 0.5, 0.9)
    record = json.loads(json.dumps(decision))
    assert record["passed"] is False
    assert record["scores"] == {"challenger": {METRIC: 0.5}, "baseline": {METRIC: 0.9}}
    assert record["baseline"] == "flowers version 1 (champion)"
    assert record["reasons"] == [
        "test/accuracy is 0.5, expected at least 0.8",
        (
            "test/accuracy is 0.5, expected at most 0.01 worse than flowers version 1 (champion)"
            " (that has 0.9); it is worse by 0.4"
        ),
    ]
    assert (record["schema"], record["num_samples"], record["run"]) == (1, 9, "a/b")


def test_the_checks_are_in_the_order_of_the_conditions_each_with_its_reason() -> None:
    settings = GateSettings(
        METRIC,
        min=0.5,
        max=0.6,
        max_drop=0.05,
        slices={"roses": 0.7},
        drift={"window": 1, "max_drop": 0.1},
    )
    candidate = ModelScores("run", {METRIC: 0.75}, {"roses": 0.5})
    baseline = ModelScores("net version 1", {METRIC: 0.85}, {"roses": 0.625})
    drift = {"window": 1, "best": 0.875, "version": "4"}
    decision = decide(settings, candidate, baseline, drift=drift, num_samples=9, run="a/b")
    late = "at most 0.1 worse than the last promoted model (version 4: 0.875)"
    expected = [
        (METRIC, 0.75, 0.85, "at least 0.5", True),
        (METRIC, 0.75, 0.85, "at most 0.6", False),
        (METRIC, 0.75, 0.85, "at most 0.05 worse than net version 1", False),
        (f"{METRIC} of roses", 0.5, 0.625, "at least 0.7", False),
        (f"{METRIC} of late", 0.75, 0.875, late, False),
    ]
    keys = ("name", "challenger", "baseline", "asks", "passed")
    assert decision["checks"] == [dict(zip(keys, values, strict=True)) for values in expected]
    assert [*decision["checks"][0]] == [*keys]
    assert decision["reasons"] == [
        "test/accuracy is 0.75, expected at most 0.6",
        (
            "test/accuracy is 0.75, expected at most 0.05 worse than net version 1 (that has 0.85);"
            " it is worse by 0.1"
        ),
        "test/accuracy of roses is 0.5, expected at least 0.7",
        f"test/accuracy of late is 0.75, expected {late}",
    ]
    assert decision["slices"] == {
        "roses": {"challenger": 0.5, "baseline": 0.625, "num_samples": None, "interval": None}
    }
    assert decision["smallest_drop"] == pytest.approx(5 / 9)
    assert [*decision] == [
        *("schema", "passed", "metric", "mode", "scores", "slices", "intervals", "significance"),
        *("non_inferiority", "smallest_drop", "drift", "reasons", "baseline", "num_samples"),
        *("run", "checks"),
    ]


@pytest.mark.parametrize(
    ("settings", "mine", "theirs", "reasons"),
    [
        (GateSettings(METRIC, min=0.7), {}, None,
         ["test/accuracy has no value, expected at least 0.7"]),
        (GateSettings(METRIC), {}, None, ["test/accuracy has no value, expected a finite number"]),
        (
            GateSettings(METRIC, max_drop=0.1),
            {METRIC: 0.5},
            {},
            ["test/accuracy is 0.5, expected at most 0.1 worse than net"],
        ),
        (
            GateSettings(METRIC, max_drop=0.1, confidence=0.9),
            {METRIC: 0.5},
            {METRIC: 0.75},
            [
                "test/accuracy is 0.5, expected at most 0.1 worse than net, or no different with "
                "0.9 confidence (that has 0.75); it is worse by 0.25"
            ],
        ),
        (
            GateSettings("test/loss", max_drop=0.1),
            {"test/loss": 2.0},
            {"test/loss": 1.5},
            [
                "test/loss is 2, expected at most 0.1 worse than net (that has 1.5); "
                "it is worse by 0.5"
            ],
        ),
        (GateSettings(METRIC, margin=0.1, min=0.5), {METRIC: 0.9}, {METRIC: float("nan")}, []),
        (
            GateSettings(METRIC, margin=0.1),
            {METRIC: 0.9},
            {METRIC: float("nan")},
            [
                "test/accuracy is 0.9, expected less than 0.1 worse than net, "
                "with 0.95 confidence (that has nan)"
            ],
        ),
        (
            GateSettings(METRIC, margin=0.1),
            {METRIC: 0.9},
            {},
            ["test/accuracy is 0.9, expected less than 0.1 worse than net, with 0.95 confidence"],
        ),
    ],
    ids=["no value", "nothing asked and no value", "baseline without the metric", "confidence",
         "loss",
         "margin to NaN with a threshold", "margin to NaN alone", "margin to nothing"],
)  # fmt: skip
def test_a_reason_says_what_was_found_and_what_was_expected(
    settings: GateSettings,
    mine: dict[str, float],
    theirs: dict[str, float] | None,
    reasons: list[str],
) -> None:
    baseline = None if theirs is None else ModelScores("net", theirs)
    decision = decide(settings, ModelScores("run", mine), baseline, num_samples=9, run="a/b")
    assert decision["reasons"] == reasons


@pytest.mark.parametrize(
    ("value", "passes"), [(0.7, False), (0.9, True)], ids=["smaller", "larger"]
)
def test_of_a_metric_whose_mode_is_unknown_large_values_are_good_and_no_mode_is_recorded(
    value: float, passes: bool
) -> None:
    models = [
        ModelScores(name, {"test/foo": each}) for name, each in (("run", value), ("net", 0.8))
    ]
    decision = decide(GateSettings("test/foo", max_drop=0.05), *models, num_samples=9, run="a/b")
    assert decision["mode"] is None
    assert decision["passed"] is passes
    assert decision["smallest_drop"] is None


def test_without_a_metric_nothing_is_judged() -> None:
    decision = decide(GateSettings(), ModelScores("run", {}), None, num_samples=0, run="a/b")
    assert (decision["passed"], decision["checks"], decision["metric"]) == (True, [], None)


def resolved(folder: Path, gate: str, *words: str) -> Resolved:
    """A config file with a gate block, and flags on top, whose keys and values are checked."""
    (folder / "job.yaml").write_text(f"gate: {gate}\n", encoding="utf-8")
    flags = parse(["fit", *words]).overrides
    problems = Problems()
    found = check_sections(resolve([folder / "job.yaml"], flags=flags, environ={}), problems)
    problems.raise_any()
    return found


def test_what_flags_say_is_read_as_numbers_on_top_of_the_file(tmp_path: Path) -> None:
    config = resolved(
        tmp_path,
        "{metric: test/accuracy, min: 0.8, drift: {window: 5.0, max_drop: 0.03}}",
        "--gate.min=0.7",
        "--gate.slices.roses=0.5",
        "--gate.baseline=3",
    )
    assert read_gate(config) == GateSettings(
        "test/accuracy",
        min=0.7,
        baseline="3",
        slices={"roses": 0.5},
        drift={"window": 5.0, "max_drop": 0.03},
    )


def test_no_block_judges_nothing(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("run: {name: a}\n", encoding="utf-8")
    assert read_gate(resolve([tmp_path / "job.yaml"], environ={})) == GateSettings()


def test_a_slice_of_null_has_no_bound(tmp_path: Path) -> None:
    """A layer takes away the bound that the layer below it sets."""
    gate = "{metric: test/accuracy, slices: {roses: null, tulips: 0.5}}"
    assert read_gate(resolved(tmp_path, gate)).slices == {"tulips": 0.5}


@pytest.mark.parametrize(
    ("gate", "says", "places"),
    [
        ("{metric: train/accuracy}",
         "gate.metric: expected a metric of the test or the validation split", 1),
        ("{metric: test/a, max_drop: -0.1}",
         "gate.max_drop: expected a number of at least 0 or null, got -0.1", 1),
        ("{metric: test/a, confidence: 95}", "gate.confidence: expected a number between 0 and 1",
         1),
        ("{metric: test/a, margin: 0}",
         "gate.margin: expected a number above 0, such as 0.02, or null, got 0", 1),
        ("{metric: test/a, margin: 0.1, confidence: 0.4}",
         "gate.confidence: with gate.margin expected a number between 0.5 and 1", 1),
        ("{metric: test/a, margin: 0.1, baseline: null}",
         "gate.margin: there is nothing that the model could", 2),
        ("{metric: test/a, max_drop: 0.1, confidence: .inf}",
         "gate.confidence: expected a number between 0 and 1, such as 0.95, or null, got inf", 1),
        ("{metric: test/a, slices: {roses: .nan}}",
         "gate.slices.roses: expected a finite number, got nan", 1),
        ("{metric: test/a, mode: '', max_drop: 0.1}", "gate.mode: expected", 1),
        ("{metric: test/a, max_drop: 0.1, baseline: ''}",
         "gate.baseline: expected a name or null, got ''", 1),
        ("{metric: test/a, drift: {window: 3, max_drop: 1, windw: 3}}",
         "gate.drift.windw: there is no such argument; did you mean 'window'?", 1),
        ("{metric: test/a, drift: {window: 0, max_drop: 1}}",
         "gate.drift.window: expected a number of promoted models, 1 or more, got 0", 1),
        ("{metric: test/a, drift: {window: 1.5, max_drop: 1}}",
         "gate.drift.window: expected a number of promoted models, 1 or more, got 1.5", 1),
        ("{metric: test/a, drift: {window: x, max_drop: 1}}",
         "gate.drift.window: expected a number, got 'x'", 1),
        ("{metric: test/a, drift: {window: 2, max_drop: -1}}",
         "gate.drift.max_drop: expected a number of at least 0, got -1", 1),
        ("{metric: test/a, drift: {window: 2}}", "gate.drift: needs max_drop, a number", 1),
        ("{metric: test/a, drift: 3}",
         "gate.drift: expected a mapping of window and max_drop or null, got 3", 1),
        ("{metric: test/a, min: 0.9, max: 0.5}", "gate.min: 0.9 is above gate.max, which is 0.5",
         2),
        ("{metric: test/a, max_drop: 0.1, baseline: null}",
         "gate.max_drop: there is nothing that the model could", 2),
        ("{min: 0.5}", "gate.min: of which metric?", 1),
        ("{slices: {roses: 0.7}}", "gate.slices: of which metric?", 1),
        ("{metric: null, drift: {window: 2, max_drop: 1}}", "gate.drift: of which metric?", 1),
    ],
    ids=["train", "drop", "confidence", "margin", "one-sided confidence", "margin to nothing",
         "infinity", "NaN", "no mode", "no name", "drift key", "window",
         "part of a window", "window of text", "drift drop", "half a drift", "drift of no mapping",
         "min above max", "no baseline",
         "no metric",
         "slices of no metric", "drift of no metric"],
)  # fmt: skip
def test_an_error_is_reported_with_its_places(
    tmp_path: Path, gate: str, says: str, places: int
) -> None:
    with pytest.raises(ConfigError) as raised:
        read_gate(resolved(tmp_path, gate))
    assert str(raised.value).startswith(says)
    assert str(raised.value).count("job.yaml:1:") == places


@pytest.mark.parametrize(
    ("metric", "split"),
    [
        ("test/accuracy", "test"),
        ("val/loss", "val"),
        ("val_loss", "val"),
        ("valid/f1", "val"),
        ("f1", "test"),
    ],
)
def test_the_first_part_of_a_metric_names_the_split(metric: str, split: str) -> None:
    assert split_of(metric) == split


LABELS = np.arange(30) % 3


def right_on(samples: Any) -> Predictions:
    """Predictions for 30 samples that are right on some."""
    predicted = np.where(np.isin(np.arange(30), [*samples]), LABELS, (LABELS + 1) % 3)
    certainty = np.where(predicted == LABELS, 0.9, 0.1).astype(np.float32)
    return Predictions(
        "test",
        np.arange(30),
        [None] * 30,
        LABELS,
        predicted,
        np.full(30, 0.9, np.float32),
        certainty,
        ("a", "b", "c"),
    )


def test_the_smallest_drop_is_of_samples_that_are_right_or_wrong() -> None:
    """A mean absolute error of 30 numbers may drop by any amount, and not by fifths of 30."""
    numbers = np.arange(30, dtype=np.float32)
    none = numbers[:0]
    found = Predictions("test", np.arange(30), [None] * 30, numbers, numbers, none, none)
    metric = "test/mean_absolute_error"
    model = ModelScores("run", {metric: 0.0}, {}, found)
    decision = decide(GateSettings(metric, max=1), model, None, num_samples=30, run="a/b")
    assert decision["smallest_drop"] is None


def compared(settings: GateSettings, mine: Predictions, theirs: Predictions) -> dict[str, Any]:
    """The decision on two models by their predictions."""
    models = [
        ModelScores(name, {METRIC: float(each.is_correct.mean())}, {}, each)
        for name, each in (("run", mine), ("net version 1", theirs))
    ]
    return decide(settings, *models, num_samples=30, run="a/b")


@pytest.mark.parametrize(
    ("lost", "won", "passes"),
    [
        (0, 0, True),
        (1, 0, True),
        (2, 0, False),
        (2, 2, True),
        (3, 3, True),
        (5, 5, False),
        (0, 5, True),
    ],
    ids=[
        "equal",
        "one worse",
        "two worse",
        "as good",
        "as good with six",
        "as good with ten",
        "better",
    ],
)
def test_a_model_passes_that_is_shown_to_be_no_worse_than_the_margin(
    lost: int, won: int, passes: bool
) -> None:
    theirs = right_on(range(20))
    mine = right_on([*range(lost, 20), *range(20, 20 + won)])
    decision = compared(GateSettings(METRIC, margin=0.17), mine, theirs)
    assert decision["passed"] is passes
    found = decision["non_inferiority"]
    assert found["low"] == pytest.approx(paired_score_interval(won, lost, 30, confidence=0.9)[0])
    assert (found["low"] > -0.17) is passes
    assert decision["smallest_drop"] == pytest.approx(5 / 30)


def test_a_drop_that_looks_like_noise_is_no_proof_of_none() -> None:
    """Three of 30 lost: no significant difference, and still as much as 0.2 may be lost."""
    mine, theirs = right_on(range(3, 20)), right_on(range(20))
    assert (
        compared(GateSettings(METRIC, max_drop=0.0, confidence=0.95), mine, theirs)["passed"]
        is True
    )
    refused = compared(GateSettings(METRIC, margin=0.17), mine, theirs)
    assert refused["passed"] is False
    assert (
        "expected less than 0.17 worse than net version 1, with 0.95 confidence"
        in refused["reasons"][0]
    )


def test_a_margin_that_no_model_can_show_is_reported() -> None:
    decision = compared(GateSettings(METRIC, margin=0.05), right_on(range(20)), right_on(range(20)))
    assert decision["passed"] is False
    assert "30 samples show no margin of 0.083 or less" in decision["reasons"][0]


def test_the_baseline_itself_is_no_worse_than_it() -> None:
    predictions = right_on(range(20))
    assert compared(GateSettings(METRIC, margin=0.001), predictions, predictions)["passed"] is True


def test_a_margin_needs_predictions_of_each_sample_also_before_there_is_a_champion() -> None:
    settings = GateSettings(METRIC, margin=0.1)
    with pytest.raises(
        ConfigError, match=r"gate\.margin: run has no prediction of each sample.*test_step"
    ):
        judged(settings, 0.9)
    with pytest.raises(ConfigError, match=r"gate\.margin: .*has no prediction of each sample"):
        judged(settings, 0.9, 0.9)
    assert judged(settings, float("nan"), 0.9)["passed"] is False


@pytest.mark.parametrize(
    ("settings", "lost_a_night", "last"),
    [
        (GateSettings(METRIC, max_drop=0.091), 2, 0.0),
        (GateSettings(METRIC, margin=0.17, drift={"window": 10, "max_drop": 0.17}), 2, 20 / 30),
        (GateSettings(METRIC, margin=0.17, drift={"window": 10, "max_drop": 0.17}), 1, 15 / 30),
    ],
    ids=["a drop of a standard error", "two images a night", "one image a night"],
)
def test_a_model_sinks_night_by_night_no_further_than_its_gate_allows(
    settings: GateSettings, lost_a_night: int, last: float
) -> None:
    """Each night the new model is wrong on one or two more of 30 images.

    Until none is right, or the gate says no.
    """
    right, champions = 20, [20 / 30]
    while right >= lost_a_night:
        mine, theirs = right_on(range(right - lost_a_night)), right_on(range(right))
        drift = {"window": 10, "best": max(champions[-10:]), "version": "1"}
        models = [
            ModelScores(name, {METRIC: float(each.is_correct.mean())}, {}, each)
            for name, each in (("run", mine), ("net version 1", theirs))
        ]
        if not decide(settings, *models, drift=drift, num_samples=30, run="a/b")["passed"]:
            break
        right -= lost_a_night
        champions.append(right / 30)
    assert champions[-1] == pytest.approx(last)
