"""Disks that fill up, folders that vanish, trackers that die: what a real process makes of them."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from lightkit import runs
from tests.cli.commands import (
    PICTURES,
    SMALL,
    ended,
    events,
    fit,
    leash,
    only_run,
    started,
    summary,
    wait_for,
    workplace,
)
from tests.loggers.test_server import Server

pytestmark = pytest.mark.slow

LEASH = {"leash": {"class_path": "mine.Leash"}}


def test_a_checkpoint_folder_that_is_lost_fails_the_fit(tmp_path: Path) -> None:
    undo = {"undo": {"class_path": "mine.Undo", "init_args": {"epoch": 0}}}
    folder = workplace(tmp_path, {**SMALL, "callbacks": undo})
    done = fit(folder)
    assert done.code == 1
    assert "The checkpoint " in done.err
    assert "cannot be written" in done.err
    assert "Traceback" not in done.err
    assert summary(folder)["status"] == "failed"
    assert runs.verify(only_run(folder) / "moved" / "last.ckpt")


def test_a_full_disk_fails_the_fit_and_costs_no_earlier_checkpoint(tmp_path: Path) -> None:
    folder = workplace(tmp_path, {**PICTURES, "callbacks": {**PICTURES["callbacks"], **LEASH}}, pictures=60)
    held = leash(folder, 8)  # five are an epoch
    with started(folder, "fit", "-c", "job.yaml") as process:
        assert wait_for(lambda: events(folder, "epoch"), process)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (100_000, 100_000))  # a checkpoint is of 1 MB
        held.unlink()
        _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "cannot be written: " in err
    assert "Free space or change the folder's permissions, then run the same command to resume." in err
    assert "Traceback" not in err
    checkpoints = only_run(folder) / "checkpoints"
    assert runs.verify(checkpoints / "last.ckpt")
    assert not list(checkpoints.glob(".*.aside"))
    resumed = fit(folder)
    assert resumed.code == 0, resumed.err
    assert len(events(folder, "resume")) == 1


def test_a_killed_fit_goes_on_in_its_mlflow_run(tmp_path: Path) -> None:
    job = {**PICTURES, "logger": {"mlflow": {}}, "trainer": {"accelerator": "cpu", "max_epochs": 3}}
    folder = workplace(tmp_path, {**job, "callbacks": {**PICTURES["callbacks"], **LEASH}}, pictures=60)
    held = leash(folder, 8)
    with started(folder, "fit", "-c", "job.yaml") as process:
        assert wait_for(lambda: events(folder, "epoch"), process)
        process.kill()
        process.communicate()
    held.unlink()
    done = fit(folder)
    assert done.code == 0, done.err
    assert len(events(folder, "resume")) == 1

    from mlflow.tracking import MlflowClient  # here, because it takes a second that other tests need not wait

    client = MlflowClient(f"sqlite:///{folder}/runs/mlflow.db")
    (experiment,) = (found for found in client.search_experiments() if found.name != "Default")
    (recorded,) = client.search_runs([experiment.experiment_id])
    assert recorded.info.status == "FINISHED"
    params = recorded.data.params
    assert (params["model.init_args.backbone"], params["trainer.max_epochs"]) == ("small_cnn", "3")
    assert recorded.data.metrics["val/loss"] == pytest.approx(summary(folder)["metrics"]["last"]["val/loss"])
    told = " ".join([*recorded.data.tags, *recorded.data.tags.values()])
    assert runs.read_json(only_run(folder) / "manifest.json")["data"]["fingerprint"] in told  # type: ignore[index]
    assert "host" in told
    names = {item.path for item in client.list_artifacts(recorded.info.run_id)}
    assert "config.yaml" in names
    assert "checkpoints/best.ckpt" in {item.path for item in client.list_artifacts(recorded.info.run_id, "checkpoints")}


def test_a_tracker_that_dies_costs_its_records_and_the_end_says_so(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.start()
    tracker = {"tracking_uri": server.uri, "log_model": False, "flush_timeout_s": 2.0}
    job = {**SMALL, "logger": {"mlflow": {"init_args": tracker}}, "callbacks": LEASH}
    folder = workplace(tmp_path / "work", {**job, "trainer": {"accelerator": "cpu", "max_epochs": 3}})
    held = leash(folder, 8)  # six are an epoch
    try:
        with started(folder, "fit", "-c", "job.yaml") as process:
            assert wait_for(lambda: events(folder, "epoch"), process)
            server.kill()
            held.unlink()
            done = ended(process)
    finally:
        server.kill()
    assert done.code == 0, done.err
    assert "records have not reached MLflow; they are kept in the run folder" in done.out
    assert (only_run(folder) / "mlflow-unsent.jsonl").read_text(encoding="utf-8").count("val/loss") >= 1
    assert summary(folder)["status"] == "done"
