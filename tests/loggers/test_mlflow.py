from __future__ import annotations

import dataclasses
import math
import os
import pickle
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint

from lightkit import runs
from lightkit.errors import LightkitError
from lightkit.loggers import MLflow
from lightkit.loggers.mlflow_address import as_key

pytestmark = [
    pytest.mark.slow,  # MLflow's first tables take 2 s
    # 2026-11: mlflow 3.17 with pydantic 2 and SQLAlchemy 2.0 leave connections to the garbage
    # collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    # 2026-11: mlflow 3.17 says so to SQLAlchemy 2.1 while it is imported, which then fails for
    # good.
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

Train = Callable[..., pl.Trainer]


def _client(uri: str) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(uri)


def _artifacts(client: Any, run_id: str | None, folder: str | None = None) -> set[str]:
    found: set[str] = set()
    for item in client.list_artifacts(run_id, folder):
        found |= _artifacts(client, run_id, item.path) if item.is_dir else {item.path}
    return found


def _model_files(client: Any, model_id: str, folder: str | None = None) -> set[str]:
    found: set[str] = set()
    for item in client.list_logged_model_artifacts(model_id, folder):
        found |= _model_files(client, model_id, item.path) if item.is_dir else {item.path}
    return found


def test_what_autolog_records_is_recorded(
    train: Train,
    net: Any,
    loader: Any,
    mlflow_run: runs.Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import mlflow

    monkeypatch.chdir(tmp_path)
    # Spares a second Python that loads the model to see what it imports.
    monkeypatch.setattr(mlflow.models, "infer_pip_requirements", lambda *_, fallback: fallback)
    torch.manual_seed(7)
    shutil.copyfile(mlflow_run.root / "mlflow.db", "autolog.db")
    uri = "sqlite:///autolog.db"
    mlflow.set_tracking_uri(uri)
    mlflow.pytorch.autolog()
    try:
        with mlflow.start_run() as active:
            trainer = train(
                tmp_path / "theirs",
                False,
                EarlyStopping("val_loss", min_delta=100.0, patience=2),
                max_epochs=6,
            )
            trainer.test(net(), loader())
    finally:
        mlflow.pytorch.autolog(disable=True)
        mlflow.set_tracking_uri("")
    client = _client(uri)
    theirs = client.get_run(active.info.run_id)

    torch.manual_seed(7)
    logger = MLflow(log_model="pickle")
    callbacks = (
        EarlyStopping("val_loss", min_delta=100.0, patience=2),
        ModelCheckpoint(mlflow_run.checkpoints, "best", "val_loss"),
    )
    trainer = train(tmp_path / "ours", logger, *callbacks, max_epochs=6)
    trainer.test(net(), loader())
    ours_client = logger.experiment
    ours = ours_client.get_run(logger.version)

    assert theirs.data.params.items() <= ours.data.params.items()
    hidden = {"hidden", "train_loss"}  # from loggers, by the module or by Lightning
    assert theirs.data.metrics.keys() - hidden <= ours.data.metrics.keys()
    for name in (
        "val_loss",
        "train_loss_epoch",
        "stopped_epoch",
        "restored_epoch",
        "best_score",
        "wait_count",
    ):
        assert ours.data.metrics[name] == pytest.approx(theirs.data.metrics[name], rel=1e-6)
    assert theirs.data.tags.keys() - {"Mode"} <= ours.data.tags.keys()
    same = {"mlflow.user", "mlflow.source.name", "mlflow.source.type"}
    assert {name: ours.data.tags[name] for name in same} == {
        name: theirs.data.tags[name] for name in same
    }

    # The best checkpoint keeps its name here, and is kept once.
    named_here = {"checkpoints/latest_checkpoint.pth": "checkpoints/best.ckpt"}
    their_files = {
        named_here.get(name, name)
        for name in _artifacts(client, theirs.info.run_id)
        if "restored_model" not in name and "latest_checkpoint_metrics" not in name
    }
    assert their_files <= _artifacts(ours_client, ours.info.run_id)
    assert ours.data.tags["mlflow.latest_checkpoint_artifact"] == "checkpoints/best.ckpt"

    (their_model,), (our_model,) = theirs.outputs.model_outputs, ours.outputs.model_outputs
    assert _model_files(client, their_model.model_id) == _model_files(
        ours_client, our_model.model_id
    )
    their_logged, our_logged = (
        client.get_logged_model(their_model.model_id),
        ours_client.get_logged_model(our_model.model_id),
    )
    assert our_logged.status == their_logged.status
    assert {metric.key for metric in their_logged.metrics} - hidden <= {
        metric.key for metric in our_logged.metrics
    }
    assert their_logged.tags.keys() <= our_logged.tags.keys()


def test_the_model_and_the_checkpoint_load_with_mlflow(
    train: Train, net: Any, mlflow_run: runs.Run
) -> None:
    import mlflow

    logger = MLflow()
    module = net()
    train(
        mlflow_run.folder,
        logger,
        ModelCheckpoint(mlflow_run.checkpoints, "best", "val_loss"),
        module=module,
    )
    (output,) = logger.experiment.get_run(logger.version).outputs.model_outputs
    mlflow.set_tracking_uri(f"sqlite:///{mlflow_run.root / 'mlflow.db'}")
    try:
        with warnings.catch_warnings():
            # 2026-11: what mlflow 3.17 and Lightning 2.6.6 say of pickle
            warnings.simplefilter("ignore")
            weights = mlflow.pytorch.load_state_dict(f"models:/{output.model_id}")
            best = mlflow.pytorch.load_checkpoint(
                net, logger.version, kwargs={"weights_only": False}
            )
    finally:
        mlflow.set_tracking_uri("")
    torch.testing.assert_close(weights, dict(module.state_dict()))
    assert isinstance(best, net)


def test_a_run_is_named_and_tagged_and_holds_its_config(
    train: Train, net: Any, mlflow_run: runs.Run
) -> None:
    mlflow_run.config_path.write_text("trainer:\n  max_epochs: 3\n")
    logger = MLflow(tags={"team": "plants"})
    logger.log_manifest(
        {
            "git": {"commit": "f00d", "dirty": True},
            "data": {"fingerprint": "beef", "source": "photos"},
            "seed": 7,
        }
    )
    logger.log_hyperparams({"model": {"width": 3, "blocks": [{"depth": 2}]}, "long": "x" * 7000})
    logger.add_picture("val/confusion", torch.zeros(3, 8, 9, dtype=torch.uint8), step=12)
    train(mlflow_run.folder, logger, module=net(lr=0.02, stage={"depth": 5}))

    client = logger.experiment
    recorded = client.get_run(logger.version)
    assert client.get_experiment(recorded.info.experiment_id).name == "daisies"
    assert recorded.info.run_name == mlflow_run.id
    assert recorded.info.status == "FINISHED"
    said = {
        "git_commit": "f00d",
        "git_dirty": "True",
        "data_fingerprint": "beef",
        "data_source": "photos",
    }
    assert said.items() <= recorded.data.tags.items()
    assert {"team", "host", "run_folder"} <= recorded.data.tags.keys()
    params = {
        "model.width": "3",
        "model.blocks.0.depth": "2",
        "long": "x" * 6000,
        "lr": "0.02",
        "stage.depth": "5",
    }
    assert params.items() <= recorded.data.params.items()
    assert {
        "config.yaml",
        "model_summary.txt",
        "pictures/val/confusion/step=000012.png",
    } <= _artifacts(client, logger.version)
    history = client.get_metric_history(logger.version, "train_loss_step")
    assert [metric.step for metric in history] == [1, 3, 5, 7, 9, 11]


def test_a_resumed_run_continues_and_keeps_first_values(
    train: Train, net: Any, mlflow_run: runs.Run
) -> None:
    first = MLflow()
    keep = ModelCheckpoint(mlflow_run.checkpoints, "best", "val_loss", save_last=True)
    train(mlflow_run.folder, first, keep, max_epochs=2, module=net(lr=0.02))
    with runs.activate(dataclasses.replace(mlflow_run, resumed=True)):
        second = MLflow()
    keep = ModelCheckpoint(mlflow_run.checkpoints, "best", "val_loss", save_last=True)
    ckpt_path = str(mlflow_run.checkpoints / "last.ckpt")
    train(mlflow_run.folder, second, keep, max_epochs=4, module=net(lr=0.03), ckpt_path=ckpt_path)

    assert second.version == first.version
    recorded = second.experiment.get_run(second.version)
    assert recorded.info.status == "FINISHED"
    assert recorded.data.params["lr"] == "0.02"
    history = second.experiment.get_metric_history(second.version, "val_loss")
    assert [metric.step for metric in history] == [3, 7, 11, 15]
    assert len(recorded.outputs.model_outputs) == 1


@pytest.mark.parametrize(
    ("stage", "is_of_other_run", "expected"),
    [
        ("test", False, {"early": 1.0, "late": 2.0}),
        ("validate", True, {}),
        ("predict", None, {"early": 1.0, "late": 2.0}),
    ],
    ids=["own", "other", "predict"],
)
def test_what_a_stage_logs_after_its_result_is_judged_as_the_result_is(
    mlflow_run: runs.Run, stage: str, is_of_other_run: bool | None, expected: dict[str, float]
) -> None:
    """A module's own `on_test_end` is called after the result is recorded."""
    with runs.activate(dataclasses.replace(mlflow_run, stage=stage)):
        logger = MLflow()
    logger.log_metrics({"early": 1.0}, step=1)
    if is_of_other_run is not None:
        logger.record_result(is_of_other_run)
    logger.log_metrics({"late": 2.0}, step=1)
    client = logger.experiment
    logger.finalize("success")
    assert client.get_run(logger.version).data.metrics == expected


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (KeyboardInterrupt(), "KILLED"),
        (SystemExit(143), "KILLED"),
        (ZeroDivisionError("no"), "FAILED"),
    ],
    ids=["interrupted", "terminated", "crashed"],
)
def test_the_status_reports_how_it_ended(
    train: Train, mlflow_run: runs.Run, error: BaseException, status: str
) -> None:
    class Break(pl.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            raise error

    logger = MLflow()
    with pytest.raises(type(error) if not isinstance(error, KeyboardInterrupt) else SystemExit):
        train(mlflow_run.folder, logger, Break())
    assert logger.experiment.get_run(logger.version).info.status == status


def test_outside_a_run_it_works_in_the_working_directory(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    logger = MLflow(log_model=False)
    train(tmp_path / "checkpoints", logger, enable_checkpointing=False)
    recorded = logger.experiment.get_run(logger.version)
    assert recorded.data.metrics["val_loss"] > 0
    assert recorded.outputs.model_outputs == []
    assert {path.name for path in tmp_path.iterdir()} == {"mlflow.db", "mlflow-artifacts"}


def test_a_deleted_run_is_replaced_by_a_new_one(
    mlflow_run: runs.Run, caplog: pytest.LogCaptureFixture
) -> None:
    first = MLflow()
    first.log_metrics({"x": 1.0}, step=1)
    first.finalize("success")
    first.experiment.delete_run(first.version)
    second = MLflow()
    second.log_metrics({"x": 1.0}, step=1)
    second.finalize("success")
    assert second.version != first.version
    assert f"no longer has run {first.version}" in caplog.text


def test_a_refused_record_does_not_hold_up_the_others(
    mlflow_run: runs.Run, caplog: pytest.LogCaptureFixture
) -> None:
    logger = MLflow()
    logger.experiment.log_param(logger.version, "taken", "by another process")
    logger.log_hyperparams({"taken": "here"})
    logger.log_metrics({"after": 2.0}, step=2)
    logger.finalize("success")
    recorded = logger.experiment.get_run(logger.version)
    assert recorded.data.params == {"taken": "by another process"}
    assert recorded.data.metrics == {"after": 2.0}
    assert logger.unsent == 1
    assert "a message was not delivered" in caplog.text


def test_metrics_that_are_refused_do_not_hold_up_later_ones(
    mlflow_run: runs.Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logger = MLflow()
    send = logger.experiment.log_batch

    def refuse_the_first(*args: Any, metrics: Any = (), **more: Any) -> None:
        if any(metric.key == "first" for metric in metrics):
            raise ValueError("no such metric")
        send(*args, metrics=metrics, **more)

    monkeypatch.setattr(logger.experiment, "log_batch", refuse_the_first)
    logger.log_metrics({"first": 1.0}, step=1)
    assert logger._sender is not None
    logger._sender.close(10.0)
    logger.log_metrics({"second": 2.0}, step=2)
    logger.finalize("success")
    assert logger.experiment.get_run(logger.version).data.metrics == {"second": 2.0}
    assert logger.unsent == 1
    assert "a message was not delivered" in caplog.text


def test_what_the_server_has_not_taken_at_the_end_is_counted(
    mlflow_run: runs.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError("away")

    logger = pickle.loads(pickle.dumps(MLflow(flush_timeout_s=0.1)))
    monkeypatch.setattr(logger.experiment, "log_batch", refuse)
    logger.log_metrics({"x": 1.0}, step=1)
    logger.finalize("success")
    assert logger.unsent > 0


def test_a_server_that_never_answers_holds_up_the_end_no_longer_than_one_that_is_gone(
    mlflow_run: runs.Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    is_over = threading.Event()

    def wait(*_: Any, **__: Any) -> None:
        is_over.wait()
        raise ConnectionError("away")

    monkeypatch.setattr("lightkit.loggers.mlflow._UNREACHABLE_TIMEOUT_S", 0.1)
    logger = MLflow(flush_timeout_s=3600)
    for name in ("get_run", "log_batch"):
        monkeypatch.setattr(logger.experiment, name, wait)
    logger.log_metrics({"x": 1.0}, step=1)
    logger.finalize("success")  # the time limit of the tests is below flush_timeout_s
    assert "did not take" in caplog.text
    is_over.set()


def test_a_resume_sends_the_epochs_that_the_server_lacks_once(mlflow_run: runs.Run) -> None:
    first = MLflow()
    first.log_metrics({"val/loss": 0.5}, step=5)
    first.finalize("failed")
    table = runs.MetricsTable(mlflow_run.metrics_path)
    table.record(0, 6, {"val/loss": 0.5})
    table.record(1, 12, {"val/loss": 0.25})
    for _ in range(2):
        resumed = MLflow()
        resumed.log_metrics({"val/loss": 0.125}, step=17)
        resumed.finalize("success")
        history = resumed.experiment.get_metric_history(resumed.version, "val/loss")
    found = [(metric.step, metric.value) for metric in history]
    assert {*found} == {(5, 0.5), (12, 0.25), (17, 0.125)}
    assert (found.count((5, 0.5)), found.count((12, 0.25))) == (1, 1)


def test_names_become_such_as_mlflow_takes() -> None:
    validation = pytest.importorskip("mlflow.utils.validation")
    names = ["val/accuracy", "acc@1 (top)", "größe", "/val//loss/", "../../etc", "..", "x" * 300]
    keys = ["val/accuracy", "acc_1 _top_", "größe", "val/loss", "etc", "_", "x" * 250]
    assert [as_key(name) for name in names] == keys
    for key in keys:
        validation._validate_metric_name(key)
        validation._validate_param_name(key)


def test_names_that_mlflow_takes_stay_and_what_collides_is_numbered_and_kept(
    mlflow_run: runs.Run,
) -> None:
    names = [
        "val/größe",
        "val/grösse",
        "val/精度",
        "val/損失",
        "val/acc@1",
        "val/acc#1",
        "val/acc_1",
    ]
    names += ["x" * 260, "x" * 255]
    values = {name: float(at) for at, name in enumerate(names)}
    first = MLflow()
    first.log_hyperparams(values)
    first.log_metrics(values, step=1)
    first.finalize("failed")
    resumed = MLflow()
    resumed.log_metrics(dict(reversed(values.items())), step=2)
    resumed.finalize("success")
    run = resumed.experiment.get_run(resumed.version)
    keys = [
        "val/größe",
        "val/grösse",
        "val/精度",
        "val/損失",
        "val/acc_1",
        "val/acc_1_2",
        "val/acc_1_3",
    ]
    keys += ["x" * 250, f"{'x' * 248}_2"]
    expected = dict(zip(keys, values.values(), strict=True))
    assert run.data.metrics == expected
    assert run.data.params == {key: str(value) for key, value in expected.items()}
    assert [
        metric.step
        for metric in resumed.experiment.get_metric_history(resumed.version, "val/acc_1_2")
    ] == [1, 2]
    assert resumed.unsent == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")], ids=str)
def test_a_metric_that_is_not_finite_belongs_to_the_run_alone(
    train: Train, net: Any, mlflow_run: runs.Run, value: float
) -> None:
    logger = MLflow()
    train(mlflow_run.folder, logger, max_epochs=1, module=net())
    resumed = MLflow()
    resumed.log_metrics({"val/score": value, "val/other": 0.5}, step=9)
    resumed.finalize("success")
    run = resumed.experiment.get_run(resumed.version)
    (output,) = run.outputs.model_outputs
    model = resumed.experiment.get_logged_model(output.model_id)
    assert {metric.key for metric in model.metrics if metric.key.startswith("val/")} == {
        "val/other"
    }
    assert math.isnan(run.data.metrics["val/score"]) or abs(run.data.metrics["val/score"]) > 1e300


def test_a_resume_of_a_finished_run_links_its_model_once_and_loses_nothing(
    train: Train, net: Any, mlflow_run: runs.Run, caplog: pytest.LogCaptureFixture
) -> None:
    for epochs in (1, 2, 3):
        logger = MLflow()
        train(mlflow_run.folder, logger, max_epochs=epochs, module=net())
        assert logger.unsent == 0
    assert "not delivered" not in caplog.text
    run = logger.experiment.get_run(logger.version)
    assert len(run.outputs.model_outputs) == 1


def test_a_deleted_experiment_is_an_error_whose_advice_works_as_printed(
    mlflow_run: runs.Run,
) -> None:
    logger = MLflow(experiment_name="gone")
    logger.log_metrics({"x": 1.0}, step=1)
    logger.finalize("success")
    client = logger.experiment
    client.delete_experiment(client.get_experiment_by_name("gone").experiment_id)
    (mlflow_run.folder / "mlflow.json").unlink()
    with pytest.raises(LightkitError, match="the experiment 'gone' was deleted") as raised:
        _ = MLflow(experiment_name="gone").experiment
    command = str(raised.value).rpartition("\n")[2].strip()
    assert command.startswith("MLFLOW_TRACKING_URI=sqlite:///")
    environ = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    subprocess.run(command, shell=True, check=True, env=environ)
    assert client.get_experiment_by_name("gone").lifecycle_stage == "active"


def test_a_database_that_cannot_be_made_is_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    logger = MLflow(f"sqlite:///{tmp_path}/file/mlflow.db")
    with pytest.raises(
        LightkitError,
        match=r"does not take this run: .*comes from tracking_uri of the logger MLflow",
    ):
        _ = logger.experiment
