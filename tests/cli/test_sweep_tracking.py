"""A sweep in MLflow: the runs of its trials are below one of the sweep."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from lightkit.cli.sweep_tracking import track_sweep
from lightkit.config import resolve
from lightkit.runs.files import read_json, write_json
from lightkit.sweep.record import SweepRecord, Trial
from lightkit.sweep.settings import Plan
from lightkit.sweep.space import Dimension, Space

PLAN = Plan(space=Space((Dimension("rate", "choice", choices=(1, 2)),)))


def record_trials(folder: Path, values: list[float]) -> SweepRecord:
    """Record complete trials, of which each has a run folder."""
    record = SweepRecord(folder / "sweeps/job/trials.jsonl")
    record.write_head({}, "digest")
    for number, value in enumerate(values):
        trial = Trial(number, {"rate": number + 1})
        record.begin(trial)
        trial.state = "complete"
        trial.value = value
        trial.run = f"job/{number}"
        record.end(trial)
    return record


@pytest.mark.slow
def test_the_runs_of_trials_are_below_one_of_the_sweep(tmp_path: Path) -> None:
    from mlflow import MlflowClient  # here: it takes two seconds

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    client = MlflowClient(uri)
    experiment = client.create_experiment("flowers", artifact_location=str(tmp_path / "artifacts"))
    record = record_trials(tmp_path, [0.5, 0.25])
    children = []
    for number in range(2):
        run_id = client.create_run(experiment).info.run_id
        children.append(run_id)
        ids: dict[str, object] = {
            "tracking_uri": uri,
            "experiment_id": experiment,
            "run_id": run_id,
            "model_id": None,
            "keys": {},
        }
        write_json(tmp_path / f"runs/job/{number}/mlflow.json", ids)
    logger = "logger: {mlflow: {init_args: {tracking_uri: '" + uri + "'}}}\n"
    (tmp_path / "config.yaml").write_text(logger, encoding="utf-8")
    resolved = resolve([tmp_path / "config.yaml"], environ={})

    for _ in range(2):  # the second time goes on with the same run
        track_sweep(resolved, tmp_path / "runs", record, PLAN, "val/loss", "min")
    parent = (read_json(tmp_path / "sweeps/job/tracking.json") or {})["run_id"]
    for number, run_id in enumerate(children):
        tags = client.get_run(run_id).data.tags
        assert (tags["mlflow.parentRunId"], tags["lightkit.trial"]) == (parent, str(number))
    found = client.get_run(parent)
    assert found.data.metrics == {"val/loss": 0.25}
    assert found.data.tags["best.rate"] == "2"
    assert found.info.status == "FINISHED"
    assert len(client.search_runs([experiment])) == 3


def test_a_tracker_that_is_away_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record = record_trials(tmp_path, [0.5])
    ids: dict[str, object] = {
        "tracking_uri": "x",
        "experiment_id": "1",
        "run_id": "2",
        "model_id": None,
        "keys": {},
    }
    write_json(tmp_path / "runs/job/0/mlflow.json", ids)
    (tmp_path / "config.yaml").write_text(
        "logger: {mlflow: {init_args: {tracking_uri: 'sqlite:////nowhere/at/all.db'}}}\n",
        encoding="utf-8",
    )
    resolved = resolve([tmp_path / "config.yaml"], environ={})
    with caplog.at_level(logging.WARNING, logger="lightkit"):
        track_sweep(resolved, tmp_path / "runs", record, PLAN, "val/loss", "min")
    assert "the sweep is not in MLflow" in caplog.text
