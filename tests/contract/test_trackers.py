"""TensorBoard, CSV, MLflow in place and on a server that leaves, and Comet offline.

Each has all of a training.
"""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.conftest import Once, copy_of
from tests.contract.examples import SMALL
from tests.contract.fault_examples import MY_FAULTS
from tests.contract.tracked import ENVIRON, TOKEN, fit_tracked
from tests.contract.workspace import Workspace, read_events, read_json, read_metrics
from tests.ports import free_port
from tests.receiving import CANARY

CONFIGS = Path(__file__).parents[2] / "configs"

pytestmark = [
    # mlflow 3.17 with SQLAlchemy 2.1 leaves connections to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
EPOCH_STEPS = [5, 11]
"""Lightning's steps of the two epochs of six batches."""


@pytest.fixture(scope="session")
def tracked_folder(made_once: Once) -> Path:
    """A working directory with a finished run of `tracked.yaml`."""
    return made_once("tracked", fit_tracked)


@pytest.fixture
def tracked_run(tracked_folder: Path) -> Path:
    """The folder of that run."""
    (run,) = tracked_folder.glob("runs/tracked/2*")
    return run


def client_of(uri: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what mlflow 3.17 says while it is imported
        from mlflow.tracking import MlflowClient

        return MlflowClient(uri)


def only_mlflow_run(client: Any, experiment: str) -> Any:
    (run,) = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return run


def history_of(client: Any, run: Any, name: str) -> list[tuple[int, float]]:
    return [
        (metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)
    ]


def losses_of(run: Path) -> list[Any]:
    return [pytest.approx(float(row["val/loss"]), rel=1e-6) for row in read_metrics(run)]


# -- TensorBoard and CSV ---------------------------------------------------------------------------


def test_tensorboard_has_the_metrics_of_each_epoch(tracked_run: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
        EventAccumulator,
    )

    events = EventAccumulator(str(tracked_run / "tensorboard")).Reload()
    scalars = events.Scalars("val/loss")
    assert [(scalar.step, scalar.value) for scalar in scalars] == list(
        zip(EPOCH_STEPS, losses_of(tracked_run), strict=True)
    )


def test_csv_has_the_metrics_of_each_epoch(tracked_run: Path) -> None:
    with (tracked_run / "csv" / "metrics.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["val/loss"]]
    assert [(int(row["step"]), float(row["val/loss"])) for row in rows] == list(
        zip(EPOCH_STEPS, losses_of(tracked_run), strict=True)
    )


def test_an_evaluation_of_a_run_adds_no_point_to_its_curves(workspace: Workspace) -> None:
    trainer = {key: value for key, value in SMALL["trainer"].items() if key != "logger"}
    mlflow = {"init_args": {"log_model": False, "log_checkpoint": False}}
    loggers = {"tensorboard": {}, "csv": {}, "mlflow": mlflow}
    workspace.write("curves.yaml", {**SMALL, "trainer": trainer, "logger": loggers})
    workspace.run("fit", "-c", "curves.yaml").ok()
    run = workspace.only_run
    before = (run / "csv" / "metrics.csv").read_bytes()
    for stage in ("validate", "test"):
        workspace.run(stage, "--run", "latest").ok()
        assert list((run / "tensorboard" / stage).glob("events.*"))
        assert (run / "csv" / stage / "metrics.csv").is_file()
    test_tensorboard_has_the_metrics_of_each_epoch(run)
    assert (run / "csv" / "metrics.csv").read_bytes() == before
    client = client_of(f"sqlite:///{workspace.folder}/runs/mlflow.db")
    mlflow_run = only_mlflow_run(client, run.parent.name)
    assert history_of(client, mlflow_run, "val/loss") == list(
        zip(EPOCH_STEPS, losses_of(run), strict=True)
    )
    of_test = [name for name in mlflow_run.data.metrics if name.startswith("test/")]
    assert of_test
    assert {step for name in of_test for step, _ in history_of(client, mlflow_run, name)} == {12}
    for name in SPEED:
        assert history_of(client, mlflow_run, name) == speed_of(run, name)

    # a test on a part of the split would be the newest value of the run
    scores = [history_of(client, mlflow_run, name) for name in of_test]
    result = workspace.run("test", "--run", "latest", "--trainer.limit_test_batches=1").ok()
    assert "MLflow gets no metrics of this evaluation, which is of other weights" in result.err
    assert [history_of(client, mlflow_run, name) for name in of_test] == scores


def test_the_closing_block_says_how_to_open_the_trackers(tracked_folder: Path) -> None:
    out = (tracked_folder.parent / f".home-{tracked_folder.name}" / "0.out").read_text(
        encoding="utf-8"
    )
    assert "tensorboard --logdir runs/tracked/" in out
    assert "mlflow ui --backend-store-uri sqlite:///runs/mlflow.db" in out


# -- MLflow in place -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def in_place(tracked_folder: Path) -> tuple[Any, Any]:
    """A client of the database below the run root, and the one run in it."""
    client = client_of(f"sqlite:///{tracked_folder}/runs/mlflow.db")
    return client, only_mlflow_run(client, "tracked")


def test_mlflow_has_an_experiment_named_after_the_job_and_a_run_named_after_its_id(
    in_place: tuple[Any, Any], tracked_run: Path
) -> None:
    _, run = in_place
    assert (run.info.run_name, run.info.status) == (tracked_run.name, "FINISHED")


SPEED = ("lr", "epoch_seconds", "samples_per_s")


def speed_of(run: Path, name: str) -> list[Any]:
    with (run / "metrics.csv").open(encoding="utf-8", newline="") as file:
        return [(int(row["step"]), pytest.approx(float(row[name]))) for row in csv.DictReader(file)]


@pytest.mark.parametrize("name", SPEED)
def test_mlflow_has_the_rate_and_the_speed_of_each_epoch(
    name: str, in_place: tuple[Any, Any], tracked_run: Path
) -> None:
    client, run = in_place
    assert history_of(client, run, name) == speed_of(tracked_run, name)


def test_mlflow_has_the_metrics_of_each_epoch(in_place: tuple[Any, Any], tracked_run: Path) -> None:
    client, run = in_place
    assert history_of(client, run, "val/loss") == list(
        zip(EPOCH_STEPS, losses_of(tracked_run), strict=True)
    )


def test_mlflow_has_the_config_as_a_file_and_few_parameters(
    in_place: tuple[Any, Any], tracked_run: Path
) -> None:
    client, run = in_place
    assert {"epochs": "2", "name": "${oc.env:TOKEN}"}.items() <= run.data.params.items()
    assert not [name for name in run.data.params if "." in name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = client.download_artifacts(run.info.run_id, "config.yaml")
    assert Path(path).read_bytes() == (tracked_run / "config.yaml").read_bytes()


def test_mlflow_has_the_tags_of_the_config_and_those_that_lead_back_to_the_run(
    in_place: tuple[Any, Any], tracked_run: Path
) -> None:
    _, run = in_place
    assert run.data.tags["team"] == "plants"
    assert run.data.tags["run_folder"] == str(tracked_run)


def test_mlflow_has_the_best_checkpoint_and_a_model(
    in_place: tuple[Any, Any], tracked_run: Path
) -> None:
    client, run = in_place
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = client.download_artifacts(run.info.run_id, "checkpoints/best.ckpt")
    assert Path(path).read_bytes() == (tracked_run / "checkpoints" / "best.ckpt").read_bytes()
    (output,) = run.outputs.model_outputs
    assert client.get_logged_model(output.model_id).status.value == "READY"


def test_mlflow_has_what_autolog_records(in_place: tuple[Any, Any]) -> None:
    client, run = in_place
    assert {"epochs", "optimizer_name"} <= run.data.params.keys()
    assert {"train/loss", "val/loss"} <= run.data.metrics.keys()
    assert "model_summary.txt" in {item.path for item in client.list_artifacts(run.info.run_id)}


def test_a_resumed_run_goes_on_in_its_mlflow_run_which_a_signal_has_marked_as_killed(
    tracked_folder: Path, workspace: Workspace
) -> None:
    copy_of(tracked_folder, workspace)
    shutil.rmtree(workspace.folder / "runs" / "tracked")
    sender = {
        "class_path": "my_project.SendSignal",
        "init_args": {"hook": "on_train_batch_start", "step": 9},
    }
    quick = {"init_args": {"log_model": False}}
    layer = {"callbacks": {"sender": sender}, "run": {"name": "again"}}
    workspace.write(
        "signal.yaml", {**layer, "logger": {"mlflow": quick, "csv": None, "tensorboard": None}}
    )
    words = ("fit", "-c", "tracked.yaml", "-c", "signal.yaml", TOKEN)
    assert workspace.run(*words, environ=ENVIRON).code == 75
    client = client_of(f"sqlite:///{workspace.folder}/runs/mlflow.db")
    first = only_mlflow_run(client, "again")
    assert first.info.status == "KILLED"
    workspace.run(*words, environ=ENVIRON).ok()
    run = only_mlflow_run(client, "again")
    assert (run.info.run_id, run.info.status) == (first.info.run_id, "FINISHED")
    assert [step for step, _ in history_of(client, run, "val/loss")] == EPOCH_STEPS
    for name in SPEED:
        assert history_of(client, run, name) == speed_of(workspace.only_run, name)


# -- MLflow's server -------------------------------------------------------------------------------


def _track(workspace: Workspace, uri: str, **settings: Any) -> None:
    logger = {"mlflow": {"init_args": {"tracking_uri": uri, "log_model": False, **settings}}}
    hold = {"hold": {"class_path": "my_project.Hold"}}
    workspace.write(
        "mlflow.yaml", {"logger": logger, "callbacks": hold, "trainer": {"logger": None}}
    )


@pytest.mark.parametrize("by_variable", [False, True], ids=["config", "variable"])
def test_a_server_that_is_not_there_is_an_error_before_training(
    by_variable: bool, workspace: Workspace
) -> None:
    uri = f"http://127.0.0.1:{free_port()}"
    _track(workspace, None if by_variable else uri)  # type: ignore[arg-type]
    environ = {
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        **({"MLFLOW_TRACKING_URI": uri} if by_variable else {}),
    }
    result = workspace.run("fit", "-c", "small.yaml", "-c", "mlflow.yaml", environ=environ)
    assert result.code != 0
    assert f"MLflow at {uri}" in result.err
    assert ("MLFLOW_TRACKING_URI" if by_variable else "tracking_uri") in result.err
    assert "Traceback" not in result.err
    assert "epoch 0 (1 of 2)" not in result.out


class Server:
    """MLflow's own server, which can be killed, and started again with the same port and store."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self.uri = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        words = ["server", "--host", "127.0.0.1", "--port", str(self._port), "--workers", "1"]
        store = ["--backend-store-uri", f"sqlite:///{self._folder}/server.db"]
        files = ["--artifacts-destination", str(self._folder / "files")]
        # it starts uvicorn by name
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environ = {**os.environ, "PATH": path, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", *words, *store, *files],
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=environ,
                start_new_session=True,
            )
        deadline = time.monotonic() + 180
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "log").read_text(encoding="utf-8")[
                -2000:
            ]
            assert time.monotonic() < deadline, (self._folder / "log").read_text(encoding="utf-8")[
                -2000:
            ]
            time.sleep(0.2)

    def stop(self) -> None:
        """Let it take connections, and never answer."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)

    def kill(self) -> None:
        """End it at once, if it runs."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"{self.uri}/health", timeout=2) as answer,
        ):
            return bool(answer.status == 200)
        return False


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server that answers."""
    (tmp_path / "server").mkdir()
    server = Server(tmp_path / "server")
    server.start()
    yield server
    server.kill()


def _hold_at(workspace: Workspace, step: int) -> None:
    aside = workspace.write("hold.aside", str(step))
    aside.replace(workspace.folder / "hold")


@pytest.mark.long
def test_a_server_that_goes_away_and_comes_back_gets_everything(
    server: Server, workspace: Workspace
) -> None:
    _track(workspace, server.uri)
    _hold_at(workspace, 3)
    process = workspace.start(
        "fit", "-c", "small.yaml", "-c", "mlflow.yaml", "--trainer.max_epochs=4"
    )
    process.wait_for((workspace.folder / "held").exists)
    server.kill()
    _hold_at(workspace, 20)
    # The training does not wait for the server.
    process.wait_for(lambda: len(read_events(workspace.only_run, "epoch")) == 3)
    server.start()
    (workspace.folder / "hold").unlink()
    process.result().ok()
    client = client_of(server.uri)
    run = only_mlflow_run(client, workspace.only_run.parent.name)
    assert run.info.status == "FINISHED"
    expected = list(zip([5, 11, 17, 23], losses_of(workspace.only_run), strict=True))
    assert history_of(client, run, "val/loss") == expected
    assert "checkpoints/best.ckpt" in {
        item.path for item in client.list_artifacts(run.info.run_id, "checkpoints")
    }


@pytest.mark.long
@pytest.mark.parametrize("is_gone", [True, False], ids=["gone", "never answers"])
def test_a_server_that_stays_away_fails_no_training_and_the_end_says_so(
    server: Server, workspace: Workspace, is_gone: bool
) -> None:
    _track(workspace, server.uri, flush_timeout_s=200.0)
    _hold_at(workspace, 3)
    process = workspace.start("fit", "-c", "small.yaml", "-c", "mlflow.yaml")
    process.wait_for((workspace.folder / "held").exists)
    if is_gone:
        server.kill()
    else:
        server.stop()
    (workspace.folder / "hold").unlink()
    result = process.result(timeout_s=150).ok()  # less than flush_timeout_s
    assert read_json(workspace.only_run / "summary.json")["epochs"] == 2
    assert server.uri in result.err
    assert str(workspace.only_run.relative_to(workspace.folder)) in result.err


def test_mlflow_tags_what_was_changed_and_logs_a_model_without_secrets(
    workspace: Workspace,
) -> None:
    """The attributes of a module are in a pickle of it, and in nothing else."""
    workspace.write("my_faults.py", MY_FAULTS)
    workspace.write(
        "held.yaml",
        {
            "model": {
                "class_path": "my_faults.Holder",
                "init_args": {"token": "${oc.env:API_TOKEN}"},
            }
        },
    )
    workspace.write(
        "mlflow.yaml", {"logger": {"mlflow": {}}, "trainer": {"logger": None, "max_epochs": 1}}
    )
    words = ("fit", "-c", "small.yaml", "-c", "held.yaml", "-c", "mlflow.yaml", "--run.name=held")
    environ = {"API_TOKEN": CANARY}
    first = workspace.run(*words, "--model.hidden=16", environ=environ).ok()
    client = client_of(f"sqlite:///{workspace.folder}/runs/mlflow.db")
    run = only_mlflow_run(client, "held")
    changed = {name: value for name, value in run.data.tags.items() if name.startswith("changed.")}
    assert changed == {"changed.model.init_args.hidden": "16"}
    files = [path for path in (workspace.folder / "runs").rglob("*") if path.is_file()]
    assert {"state_dict.pth", "MLmodel"} <= {path.name for path in files}
    assert [path for path in files if CANARY.encode() in path.read_bytes()] == []
    assert "pickle" not in first.err
    second = workspace.run(
        *words, "--logger.mlflow.log_model=pickle", "--run.name=pickled", environ=environ
    ).ok()
    assert "any secrets in them" in second.err
    assert list((workspace.folder / "runs").rglob("model.pth"))


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="needs the extra wandb")
def test_wandb_offline_keeps_its_files_in_the_run_folder_and_asks_no_server(
    workspace: Workspace,
) -> None:
    layer = ("-c", str(CONFIGS / "logger" / "wandb.yaml"), "--trainer.logger=null")
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        environ = {"WANDB_API_KEY": None, "HTTP_PROXY": address, "HTTPS_PROXY": address}
        result = workspace.run("fit", "-c", "small.yaml", *layer, environ=environ).ok()
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):
            proxy.accept()
    (path,) = workspace.only_run.glob("wandb/offline-run-*/*.wandb")
    assert b"val/loss" in path.read_bytes()
    assert "wandb sync runs/" in result.out


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="needs the extra wandb")
def test_wandb_has_the_records_of_each_trial_of_a_sweep(workspace: Workspace) -> None:
    """W&B writes them when its run ends, which is at the end of the process if nothing ends it."""
    layer = ("-c", str(CONFIGS / "logger" / "wandb.yaml"), "--trainer.logger=null")
    space = ("--space", "model.hidden=4,8", "--sweep.metric=val/loss")
    workspace.run("sweep", "-c", "small.yaml", *layer, *space).ok()
    files = list(workspace.folder.glob("runs/small/2*/wandb/offline-run-*/*.wandb"))
    assert len(files) == 3  # trial 0 is the config itself
    for path in files:
        assert b"val/loss" in path.read_bytes()


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="needs the extra wandb")
def test_wandb_gets_no_metrics_of_a_part_of_the_split(workspace: Workspace) -> None:
    layer = ("-c", str(CONFIGS / "logger" / "wandb.yaml"), "--trainer.logger=null")
    run = workspace.fit("-c", "small.yaml", *layer)
    (fitted,) = run.glob("wandb/offline-run-*/*.wandb")
    workspace.run("test", "--run", "latest").ok()
    (whole,) = set(run.glob("wandb/offline-run-*/*.wandb")) - {fitted}
    assert b"test/loss" in whole.read_bytes()
    # W&B would show it as the newest value of the run
    result = workspace.run("test", "--run", "latest", "--trainer.limit_test_batches=1").ok()
    assert "Weights & Biases gets no metrics of this evaluation" in result.err
    of_part = set(run.glob("wandb/offline-run-*/*.wandb")) - {fitted, whole}
    assert not [path for path in of_part if b"test/loss" in path.read_bytes()]


# -- Comet -----------------------------------------------------------------------------------------


@pytest.mark.skipif(importlib.util.find_spec("comet_ml") is None, reason="needs the extra comet")
def test_comet_offline_keeps_an_archive_in_the_run_folder_and_asks_no_server(
    workspace: Workspace,
) -> None:
    workspace.write(
        "comet.yaml",
        {"logger": {"comet": {"init_args": {"online": False}}}, "trainer": {"logger": None}},
    )
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        environ = {"COMET_API_KEY": None, "HTTP_PROXY": address, "HTTPS_PROXY": address}
        workspace.run("fit", "-c", "small.yaml", "-c", "comet.yaml", environ=environ).ok()
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):
            proxy.accept()
    (path,) = workspace.only_run.rglob("*.zip")
    metrics = read_comet_metrics(path)
    assert [
        metric["step"] for metric in metrics if metric["metricName"] == "val/loss"
    ] == EPOCH_STEPS


def read_comet_metrics(archive_path: Path) -> list[dict[str, Any]]:
    """Read the metrics of an archive of Comet's."""
    with zipfile.ZipFile(archive_path) as archive:
        messages = [json.loads(line) for line in archive.read("messages.json").splitlines()]
    return [message["payload"]["metric"] for message in messages if message["type"] == "metric_msg"]


@pytest.mark.skipif(importlib.util.find_spec("comet_ml") is None, reason="needs the extra comet")
def test_comet_gets_no_metrics_of_a_part_of_the_split(workspace: Workspace) -> None:
    workspace.write(
        "comet.yaml",
        {"logger": {"comet": {"init_args": {"online": False}}}, "trainer": {"logger": None}},
    )
    run = workspace.fit("-c", "small.yaml", "-c", "comet.yaml")
    (fitted,) = run.rglob("*.zip")
    of_fit = fitted.read_bytes()
    workspace.run("test", "--run", "latest").ok()
    # the archives of two stages of one seed are two
    (whole,) = set(run.rglob("*.zip")) - {fitted}
    assert fitted.read_bytes() == of_fit
    metrics = read_comet_metrics(whole)
    assert [each["step"] for each in metrics if each["metricName"] == "test/loss"] == [12]
    # Comet would show it as the newest value of the run
    result = workspace.run("test", "--run", "latest", "--trainer.limit_test_batches=1").ok()
    assert "Comet gets no metrics of this evaluation" in result.err
    of_part = set(run.rglob("*.zip")) - {fitted, whole}
    names = [metric["metricName"] for path in of_part for metric in read_comet_metrics(path)]
    assert "test/loss" not in names


@pytest.mark.skipif(importlib.util.find_spec("comet_ml") is None, reason="needs the extra comet")
def test_comets_mode_create_does_not_replace_an_archive(workspace: Workspace) -> None:
    comet = {"init_args": {"online": False, "mode": "create"}}
    workspace.write("comet.yaml", {"logger": {"comet": comet}, "trainer": {"logger": None}})
    run = workspace.fit("-c", "small.yaml", "-c", "comet.yaml")
    (fitted,) = run.rglob("*.zip")
    of_fit = fitted.read_bytes()
    result = workspace.run("test", "--run", "latest")
    assert result.code == 2
    assert "Comet's mode create would replace the archive runs/small/" in result.err
    assert fitted.read_bytes() == of_fit
    workspace.run("test", "--run", "latest", "--logger.comet.mode=get_or_create").ok()
    assert len(list(run.rglob("*.zip"))) == 2


def test_each_logger_of_lightkit_is_known_by_its_short_name(workspace: Workspace) -> None:
    names = ["CSV", "Comet", "MLflow", "TensorBoard", "WandB"]
    trainer = {key: value for key, value in SMALL["trainer"].items() if key != "logger"}
    loggers = {name.lower(): {"class_path": name} for name in names}
    workspace.write("job.yaml", {**SMALL, "trainer": trainer, "logger": loggers})
    workspace.run_cold("check", "--full", "-c", "job.yaml").ok()
