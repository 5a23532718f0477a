"""What of a run's records is the best checkpoint's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from lightkit import runs
from lightkit.reports.comparison import pair_predictions
from lightkit.reports.facts import (
    RunFacts,
    contradict,
    list_scores,
    read_facts,
    select_checkpoint,
)
from lightkit.reports.pages import describe_model
from lightkit.reports.predictions import predictions_path, write_predictions
from lightkit.runs.folder import Run
from tests.reports.examples import predict

_RUN_ID = "20260101-030000-0001"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run with best and last checkpoints and a test of the best, on data of fingerprint f1."""
    folder = tmp_path / "runs" / "job" / _RUN_ID
    run = Run(folder, "job", _RUN_ID, tmp_path / "runs")
    run.checkpoints.mkdir(parents=True)
    for name in ("best", "last"):
        (run.checkpoints / f"{name}.ckpt").write_text(name)
    runs.write_json(run.manifest_path, {"subcommand": "fit", "data": {"fingerprint": "f1"}})
    record(run, [score(run, "best", 0.75)])
    return run


def score(run: Run, name: str, value: float, **changes: Any) -> dict[str, Any]:
    path = run.checkpoints / f"{name}.ckpt"
    of = {
        "checkpoint": f"checkpoints/{name}.ckpt",
        "sha256": runs.digest(path),
        "data": "f1",
        "num_samples": 4,
    }
    return {"stage": "test", "metrics": {"test/accuracy": value}, **of, **changes}


def record(run: Run, scores: list[dict[str, Any]]) -> None:
    metrics = {
        "best": {"epoch": 1, "val/accuracy": 0.5},
        "last": {"epoch": 2, "val/accuracy": 0.25},
    }
    summary = runs.new_summary(f"job/{_RUN_ID}")
    runs.write_json(
        run.summary_path, {**summary, "status": "done", "metrics": metrics, "scores": scores}
    )


def shown(facts: RunFacts) -> dict[str, float]:
    return {metric: score.value for metric, score in list_scores(facts).items()}


@pytest.mark.parametrize(
    ("changes", "is_shown"),
    [
        ({}, True),
        ({"data": "f2"}, False),
        ({"data": None}, True),
        ({"sha256": "0" * 64}, False),
        ({"sha256": None}, False),
        ({"changed": {"trainer.limit_test_batches": 1}}, False),
    ],
    ids=[
        "own",
        "other data",
        "data without a fingerprint",
        "other weights",
        "unknown weights",
        "another limit",
    ],
)
def test_a_score_is_the_best_checkpoints_where_weights_data_and_settings_are(
    run: Run, changes: dict[str, Any], is_shown: bool
) -> None:
    record(run, [score(run, "best", 0.75, **changes)])
    facts = read_facts(run)
    assert shown(facts) == {"val/accuracy": 0.5} | ({"test/accuracy": 0.75} if is_shown else {})
    assert [each.metrics["test/accuracy"] for each in facts.other_scores] == (
        [] if is_shown else [0.75]
    )


@pytest.mark.parametrize(
    ("logged", "num_ranks", "is_contradicted"),
    [
        (5 / 6, 1, True),
        (5 / 6, 3, False),  # the first two of four samples once more: five of six are right
        (0.75, 3, False),
        (0.8, 3, True),
        (5 / 6, 4, True),  # four ranks have one sample each
    ],
)
def test_samples_that_lightning_repeats_on_the_ranks_contradict_no_prediction(
    logged: float, num_ranks: int, is_contradicted: bool
) -> None:
    found = predict([0, 0, 1, 1], [0, 0, 1, 0])
    contradiction = contradict(found, {"test/accuracy": logged}, num_ranks=num_ranks)
    assert (contradiction is not None) == is_contradicted


@pytest.mark.parametrize(
    ("about", "is_shown"),
    [
        ({}, True),
        ({"sha256": "0" * 64}, False),
        ({"fingerprint": "f2"}, False),
        ({"changed": ("data.root",)}, False),
    ],
    ids=["own", "other weights", "other data", "other settings"],
)
def test_predictions_are_the_best_checkpoints_where_weights_data_and_settings_are(
    run: Run, about: dict[str, Any], is_shown: bool
) -> None:
    found = predict(
        [0, 0, 1, 1],
        [0, 0, 1, 0],
        **{"sha256": runs.digest(run.checkpoints / "best.ckpt"), **about},
    )
    write_predictions(predictions_path(run.folder, "test"), found)
    assert ("test" in read_facts(run).predictions) == is_shown


@pytest.mark.parametrize(
    ("logged", "value", "interval"),
    [
        (0.75, 0.75, (0.301, 0.954)),  # Wilson's of 3 of 4
        (0.5, 0.5, (0.150, 0.850)),  # of 2 of 4
        (0.7, 0.7, None),  # no share of 4 samples
    ],
    ids=["as predicted", "by another threshold", "a mean over classes"],
)
def test_a_score_is_the_logged_one_where_the_predictions_give_another(
    run: Run, logged: float, value: float, interval: tuple[float, float] | None
) -> None:
    record(run, [score(run, "best", logged)])
    found = predict([0, 0, 1, 1], [0, 0, 1, 0], sha256=runs.digest(run.checkpoints / "best.ckpt"))
    write_predictions(predictions_path(run.folder, "test"), found)
    facts = read_facts(run)
    of_test = list_scores(facts)["test/accuracy"]
    assert of_test.value == value
    assert of_test.interval == (None if interval is None else pytest.approx(interval, abs=5e-4))
    is_contradicted = logged != 0.75
    assert (pair_predictions(facts, facts) is None) == is_contradicted
    said = f"gives 0.75 for test/accuracy, and the model logged {logged}"
    assert any(said in each for each in facts.problems) == is_contradicted


@pytest.mark.parametrize(
    ("about", "is_shown"),
    [
        ({}, True),
        ({"sha256": "0" * 64}, False),
        ({"fingerprint": "f2"}, False),
        ({"sha256": None}, False),
    ],
    ids=["own", "other weights", "other data", "unknown weights"],
)
def test_the_importance_of_columns_is_that_of_the_best_checkpoint(
    run: Run, about: dict[str, Any], is_shown: bool
) -> None:
    own = {
        "fingerprint": "f1",
        "sha256": runs.digest(run.checkpoints / "best.ckpt"),
        "split": "test",
    }
    columns = [{"name": "age", "importance": 0.25, "std": 0.0}]
    runs.write_json(
        run.folder / "importance.json", {"schema": 1, **own, "columns": columns, **about}
    )
    facts = read_facts(run)
    assert bool(facts.importance) == is_shown
    assert not select_checkpoint(facts, runs.digest(run.checkpoints / "last.ckpt")).importance


def test_another_checkpoint_has_its_own_score_and_digest_and_nothing_of_the_best(run: Run) -> None:
    record(run, [score(run, "best", 0.75), score(run, "last", 0.25)])
    last = runs.digest(run.checkpoints / "last.ckpt")
    write_predictions(
        predictions_path(run.folder, "test"),
        predict([0, 1], [0, 1], sha256=runs.digest(run.checkpoints / "best.ckpt")),
    )
    facts = select_checkpoint(read_facts(run), last)
    assert shown(facts) == {"test/accuracy": 0.25}
    text = describe_model(facts)
    assert last in text
    assert "0.75" not in text
    assert "Classes of the" not in text


def test_a_gates_decision_on_another_checkpoint_is_not_shown(run: Run) -> None:
    decision = {
        "metric": "test/loss",
        "scores": {"challenger": {"test/loss": 0.1}, "baseline": {"test/loss": 0.3}},
    }
    for name, is_shown in (("best", True), ("last", False)):
        digest = runs.digest(run.checkpoints / f"{name}.ckpt")
        runs.write_json(
            run.folder / "gate.json", {**decision, "passed": True, "checkpoint": {"sha256": digest}}
        )
        facts = read_facts(run)
        assert bool(facts.gate) == is_shown
        assert (
            any("gate.json is of another checkpoint" in each for each in facts.problems) != is_shown
        )


def test_the_digest_beside_a_checkpoint_counts_while_it_is_as_new(run: Run) -> None:
    best = run.checkpoints / "best.ckpt"
    runs.sidecar(best).write_text(f"{'a' * 64}  best.ckpt\n")
    assert read_facts(run).sha256 == "a" * 64
    os.utime(runs.sidecar(best), (1, 1))
    best.write_text("another")  # copied there by hand
    assert read_facts(run).sha256 == runs.digest(best)
