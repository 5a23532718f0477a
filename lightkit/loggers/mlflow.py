"""MLflow: records that outlive a lost connection and a killed process.

Training never waits for the server: a thread sends, in order, and again until the server takes it. The journal is the
run folder: epochs that the server lacks at the end of a process are sent from ``metrics.csv`` by the next resume.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import os
import queue
import shutil
import socket
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
from lightning_fabric.loggers.logger import rank_zero_experiment
from lightning_utilities.core.rank_zero import rank_zero_only
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import EarlyStopping
from pytorch_lightning.core.optimizer import LightningOptimizer
from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.utilities.model_summary.model_summary import ModelSummary
from torch import Tensor

from lightkit import runs
from lightkit.config import shown_path
from lightkit.errors import Interrupted, LightkitError, ServerAway
from lightkit.loggers.mlflow_address import (
    CONNECT_SETTINGS,
    as_key,
    find_address,
    find_or_create_experiment,
    manifest_tags,
    mask_password,
    send_model_files,
)

_log = logging.getLogger("lightkit.loggers")

_UPLOAD_TIMEOUT_S = "600"  # the server answers only when it has stored the whole file
_UNREACHABLE_TIMEOUT_S = 10.0  # the longest wait at the end for a server that does not answer
_TERMINATED_TIMEOUT_S = 5.0  # a signal leaves little time
_TEMPORARY = {401, 403, 407, 408, 425, 429}  # 4xx that can pass: credentials are renewed, limits end
_MAX_BATCH = {"metrics": 1000, "params": 100, "tags": 100}  # mlflow.utils.validation of MLflow 3.17
_MAX_PARAM, _MAX_TAG = 6000, 8000  # characters: the same module
_SHARDED = ("FSDPStrategy", "ModelParallelStrategy", "DeepSpeedStrategy")
# Named, since MLflow infers requirements by loading the model in a second Python, which takes about 8 s.
_PACKAGES = ("pytorch-lightning", "torchvision", "torchmetrics", "timm", "numpy", "lightkit")


class MLflow(Logger):
    """Record a run in MLflow, with everything that ``mlflow.pytorch.autolog()`` records.

    Training never waits for the server. What it misses is sent when it is back; epochs that it still lacks when the
    process ends are sent from ``metrics.csv`` by the next resume, which continues the same MLflow run.

    Args:
        tracking_uri: Database (``sqlite:///…``, ``postgresql://…``) or server (``http://…``). By default the
            environment variable MLFLOW_TRACKING_URI, else ``mlflow.db`` in the run root with its files in
            ``mlflow-artifacts/`` beside it. Folders are refused, because MLflow refuses them since 3.13.
        experiment_name: By default the run's name; ``lightkit`` outside the lightkit command.
        run_name: By default the run's id; a name of MLflow's making outside the lightkit command.
        tags: Further tags of the run.
        log_model: Record the trained model too: its weights, as ``mlflow.pytorch.load_state_dict`` reads them, and the
            config without secrets. ``pickle``: the whole module, as ``mlflow.pytorch.load_model`` reads it, with all
            attributes, secrets too; a warning says so. ``lightkit register`` makes a version that MLflow can serve.
        log_checkpoint: Upload the best checkpoint at the end.
        flush_timeout_s: Longest wait, in seconds, for the server to take the rest at the end; 10 at most where it
            does not answer, 5 where a signal ends the run.
    """

    def __init__(
        self,
        tracking_uri: str | None = None,
        experiment_name: str | None = None,
        run_name: str | None = None,
        tags: dict[str, str] | None = None,
        log_model: Literal["pickle"] | bool = True,
        log_checkpoint: bool = True,
        flush_timeout_s: float = 60.0,
    ) -> None:
        super().__init__()
        self._run = run = runs.current()
        self._address = find_address(tracking_uri)
        self._experiment_name = experiment_name or (run.name if run else "lightkit")
        self._run_name = run_name or (run.id if run else None)
        self._tags = {**(tags or {}), "host": socket.gethostname()}
        self._log_model, self._log_checkpoint = log_model, log_checkpoint
        self._flush_timeout_s = flush_timeout_s
        self._sender: _Sender | None = None
        self._client: Any = None  # MlflowClient, whose type-only import jsonargparse would run: 1 s
        self._run_id = self._experiment_id = ""
        self._model_id: str | None = None
        self._params: dict[str, str] = {}  # that the MLflow run has
        self._trainer: Trainer | None = None
        self._best: dict[str, tuple[tuple[str, float | None], dict[str, float]]] = {}  # by ModelCheckpoint
        self._newest: dict[str, float] = {}  # of each metric that Lightning has logged
        self._epoch_metrics: tuple[dict[str, float], int] = {}, 0
        self._points: list[tuple[str, float, int, int]] = []  # name, value, milliseconds, step; not sent yet
        self._sent_config = ""
        self._has_manifest = False
        for name, value in CONNECT_SETTINGS.items():
            self._may_wait_for_uploads = os.environ.setdefault(name, value) == value
        for chatty in ("mlflow.store.db.utils", "alembic"):  # a page of lines about tables that are made
            logging.getLogger(chatty).setLevel(logging.WARNING)

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return self._experiment_name

    @property
    def version(self) -> str | None:
        """The MLflow run's id, once it is open."""
        return self._run_id or None

    @property
    def save_dir(self) -> str | None:
        """The run's folder; None outside a run."""
        return str(self._run.folder) if self._run else None

    @property
    def unsent(self) -> int:
        """Number of records that have not reached the server."""
        return 0 if self._sender is None else self._sender.num_unsent

    @property
    def view_command(self) -> list[str] | None:
        """Command that shows the recorded run; None for a server, which has its own address."""
        if self._address.database is None:
            return None
        return ["mlflow", "ui", "--backend-store-uri", f"sqlite:///{shown_path(self._address.database)}"]

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """An ``MlflowClient``; the first use opens the run.

        Raises:
            ServerAway: If the server does not answer.
        """
        return self._open()

    # -- Lightning's interface

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Send the metrics that are numbers."""
        known = _numbers(metrics)
        self._newest.update(known)
        self._put_metrics(known, step)

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *_args: Any, **_kwargs: Any) -> None:
        """Send all hyper-parameters, nested names joined by dots."""
        self._put_params(dict(_flatten(params, ())))

    @rank_zero_only
    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Note the metrics with which a best checkpoint was saved; it is uploaded at the end."""
        path, score = checkpoint_callback.best_model_path, checkpoint_callback.best_model_score
        best = path, None if score is None else float(score)
        key = str(checkpoint_callback.state_key)
        if not self._log_checkpoint or not path or (score is not None and self._best.get(key, (None,))[0] == best):
            return
        metrics = self._newest if score is None else {**self._newest, str(checkpoint_callback.monitor): float(score)}
        if self._trainer is not None:
            metrics = {**metrics, "epoch": self._trainer.current_epoch, "global_step": self._trainer.global_step}
        self._best[key] = best, dict(metrics)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Send the rest, end the MLflow run, and warn of what could not be sent."""
        if self._client is None or self._sender is None:
            return
        self._put_config()
        self._put_manifest()
        for (path, _), metrics in self._best.values():
            if Path(path).is_file():
                facts = self._stage("latest_checkpoint_metrics.json")
                facts.write_text(json.dumps(metrics, indent=2))
                for file in (Path(path), facts):
                    self._put_file(file, "checkpoints")
                # mlflow.pytorch.load_checkpoint() finds the file by this tag
                self._put_tags({"mlflow.latest_checkpoint_artifact": f"checkpoints/{Path(path).name}"})
        self._best = {}
        run_status = "FINISHED" if status in ("success", "finished") else "FAILED"
        if run_status == "FAILED" and isinstance(sys.exc_info()[1], (KeyboardInterrupt, SystemExit, Interrupted)):
            run_status = "KILLED"  # Lightning says "failed" of a run that was stopped, while it handles the exception
        self._put(self._client.set_terminated, self._run_id, run_status, int(time.time() * 1000))
        timeout_s = min(self._flush_timeout_s, _TERMINATED_TIMEOUT_S if run_status == "KILLED" else math.inf)
        if num_lost := self._sender.drain(timeout_s):
            journal = f"; the next resume sends the epochs of {self._run.metrics_path}" if self._run else ""
            _log.warning("MLflow at %s did not take %d records%s", self._address.shown, num_lost, journal)
        shutil.rmtree(self._staging, ignore_errors=True)

    # -- called by lightkit's command line, models and callbacks on every logger that has the method

    @rank_zero_only
    def log_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Tag the run with the code and the data that it was made from."""
        folder = {"run_folder": str(self._run.folder)} if self._run else {}
        self._put_tags({**manifest_tags(manifest), **folder})
        self._has_manifest = True

    @rank_zero_only
    def add_picture(self, name: str, image: Tensor, step: int) -> None:
        """Upload ``image``, uint8 ``(3, height, width)``, as ``pictures/<name>/step=<step>.png``."""
        from PIL import Image  # 0.1 s to import

        folder = f"pictures/{as_key(name)}"
        path = self._stage(f"{folder}/step={step:06d}.png")
        Image.fromarray(image.permute(1, 2, 0).cpu().numpy()).save(path)
        self._put_file(path, folder)

    @rank_zero_only
    def record_fit_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Record what is known when training starts; belongs in ``on_fit_start``."""
        self._trainer = trainer
        self._put_manifest()
        self._put_config()
        self._put_tags({"Mode": "training"})
        self._put_params(_fit_params(trainer))
        path = self._stage("model_summary.txt")
        path.write_text(_summarize(trainer, module))
        self._put_file(path, None)
        if self._log_model == "pickle":
            _log.warning("log_model: pickle records the whole module, with all its attributes and any secrets in them")
        if self._logs_model(trainer):
            self._put(self._send_model_entry)

    def record_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Record the metrics that Lightning keeps from loggers; belongs in ``on_train_epoch_end`` of every rank."""
        metrics = trainer.callback_metrics  # on every rank: reading may reduce them
        self._put_unlogged_metrics()
        self._epoch_metrics = _numbers(metrics), trainer.global_step

    @rank_zero_only
    def record_fit_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Record how training ended, and the model; belongs in ``on_fit_end``."""
        self._put_unlogged_metrics()
        self._put_metrics(_stopping_metrics(trainer), trainer.global_step)
        if not self._logs_model(trainer):
            return
        folder = self._stage("model")
        try:
            if self._log_model == "pickle":
                _save_pickle(module, folder)
            else:
                _save_weights(module, folder, None if self._run is None else self._run.config_path)
        except Exception as error:  # noqa: BLE001 - pickling the user's module may raise anything, and it is trained
            _log.warning("MLflow gets no model: %s cannot be saved (%s)", type(module).__name__, error)
        else:
            self._put(self._send_model_files, folder)

    def _logs_model(self, trainer: Trainer) -> bool:
        return bool(self._log_model) and type(trainer.strategy).__name__ not in _SHARDED

    @rank_zero_only
    def log_changed(self, values: Mapping[str, Any]) -> None:
        """Tag the run with the values that the command line and the environment changed; the config is an artifact.

        Args:
            values: By dotted key, without secrets.
        """
        self._put_tags({f"changed.{key}": str(value) for key, value in values.items()})

    def record_test_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Record the metrics of a test that Lightning keeps from loggers; belongs in ``on_test_end`` of every rank."""
        self.record_epoch_end(trainer, module)
        self._put_unlogged_metrics(mode="testing")

    @rank_zero_only
    def _put_unlogged_metrics(self, mode: str | None = None) -> None:
        metrics, step = self._epoch_metrics
        self._epoch_metrics = {}, 0
        self._put_metrics({name: value for name, value in metrics.items() if name not in self._newest}, step)
        if mode is not None:
            self._put_tags({"Mode": mode})

    # -- the MLflow run

    def _open(self) -> Any:
        """Continue the MLflow run of this run's folder, or start one."""
        if self._client is not None:
            return self._client
        from mlflow.tracking import MlflowClient  # mlflow takes 2 s to import

        try:
            if self._address.artifacts is not None:
                self._address.artifacts.parent.mkdir(parents=True, exist_ok=True)
            client = MlflowClient(self._address.uri)
            is_continued = self._continue_run(client)
            if not is_continued:
                self._start_run(client)
        except LightkitError:
            raise
        except Exception as error:
            kind = ServerAway if _is_temporary(error) else LightkitError
            raise kind(
                f"MLflow at {self._address.shown} does not take this run: {_describe(error)}. The address comes from "
                f"{self._address.origin}. Start the server, or correct the address, or remove the logger MLflow; "
                f"nothing has been trained yet."
            ) from error
        self._client, self._sender = client, _Sender(f"MLflow at {self._address.shown}")
        self._staging = Path(tempfile.mkdtemp(prefix="lightkit-mlflow-"))
        if is_continued:
            self._put(client.update_run, self._run_id, "RUNNING")
            self._put_tags(self._tags)
            if self._run is not None and (rows := runs.MetricsTable(self._run.metrics_path).rows):
                self._put(self._send_missing_epochs, rows)
        return client

    def _continue_run(self, client: Any) -> bool:
        kept = runs.read_json(self._run.folder / "mlflow.json") if self._run else None
        if not kept:
            return False
        try:
            run = client.get_run(kept["run_id"])
        except Exception as error:
            if _is_temporary(error):
                raise
            run = None
        if run is None or run.info.lifecycle_stage == "deleted":
            _log.warning("MLflow at %s no longer has run %s; a new one is started", self._address.shown, kept["run_id"])
            return False
        self._run_id, self._experiment_id = run.info.run_id, run.info.experiment_id
        self._model_id, self._params = kept.get("model_id"), dict(run.data.params)
        return True

    def _start_run(self, client: Any) -> None:
        from mlflow.tracking.context.registry import resolve_tags  # mlflow takes 2 s to import

        name, setting = self._experiment_name, "experiment_name of the logger MLflow"
        artifacts = self._address.artifacts
        self._experiment_id = find_or_create_experiment(client, name, artifacts=artifacts, setting=setting)
        run = client.create_run(self._experiment_id, tags=resolve_tags(self._tags), run_name=self._run_name)
        self._run_id = run.info.run_id
        self._save_ids()

    def _save_ids(self) -> None:
        """Keep the ids in the run folder: the next resume continues the same MLflow run."""
        if self._run is not None:
            ids = {"experiment_id": self._experiment_id, "run_id": self._run_id, "model_id": self._model_id}
            text = json.dumps({"tracking_uri": self._address.shown, **ids}, indent=2) + "\n"
            runs.write_text(self._run.folder / "mlflow.json", text)

    # -- what is put into the queue

    def _put(self, send: Callable[..., Any], *arguments: Any) -> None:
        self._open()
        assert self._sender is not None
        self._sender.put(send, *arguments)

    def _put_metrics(self, metrics: Mapping[str, float], step: int | None) -> None:
        """Send points; of an evaluation, at the last step of the run, those that its training has no curve of."""
        if self._run is not None and self._run.stage != "fit":
            rows = runs.MetricsTable(self._run.metrics_path).rows
            metrics = {name: value for name, value in metrics.items() if not any(name in row for row in rows)}
            step = int(rows[-1]["step"]) if rows else step
        time_ms = int(time.time() * 1000)
        points = [(as_key(name), value, time_ms, step or 0) for name, value in metrics.items()]
        self._points += points
        if points and len(self._points) == len(points):  # else a call is in the queue that sends them too
            self._put(self._send_points)

    def _put_params(self, params: Mapping[str, Any]) -> None:
        """Send new parameters, and changed ones as tags, since MLflow keeps the first value of a parameter."""
        self._open()
        new: dict[str, str] = {}
        changed: dict[str, str] = {}
        for name, value in params.items():
            key, text = as_key(name), str(value)
            if len(text) > _MAX_PARAM:
                _log.warning("MLflow keeps %d of the %d characters of the parameter %s", _MAX_PARAM, len(text), name)
                text = text[:_MAX_PARAM]
            if key not in self._params:
                new[key] = self._params[key] = text
            elif self._params[key] != text:
                changed[f"changed.{key}"] = text
        if new:
            from mlflow.entities import Param  # mlflow takes 2 s to import

            self._put_batches("params", [Param(key, text) for key, text in new.items()])
        if changed:
            _log.warning("MLflow keeps the first value of a parameter; the new ones are tags: %s", ", ".join(changed))
            self._put_tags(changed)

    def _put_tags(self, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag  # mlflow takes 2 s to import

        self._put_batches("tags", [RunTag(as_key(name), value[:_MAX_TAG]) for name, value in tags.items()])

    def _put_batches(self, kind: str, items: list[Any]) -> None:
        for start in range(0, len(items), _MAX_BATCH[kind]):
            self._put(self._send_batch, kind, items[start : start + _MAX_BATCH[kind]])

    def _put_file(self, path: Path, folder: str | None) -> None:
        self._put(self._upload, self._open().log_artifact, self._run_id, str(path), folder)

    def _put_config(self) -> None:
        if self._run is None or not self._run.config_path.is_file():
            return
        if (text := self._run.config_path.read_text(encoding="utf-8")) != self._sent_config:
            self._sent_config = text
            self._put_file(self._run.config_path, None)

    def _put_manifest(self) -> None:
        if not self._has_manifest and self._run is not None and (manifest := runs.read_json(self._run.manifest_path)):
            self.log_manifest(manifest)

    def _stage(self, name: str) -> Path:
        """Return the path of a temporary file that is kept until it is sent."""
        self._open()
        path = self._staging / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    # -- what the thread sends

    def _send_points(self) -> None:
        from mlflow.entities import Metric  # mlflow takes 2 s to import

        while points := self._points[: _MAX_BATCH["metrics"]]:
            self._send_batch("metrics", [Metric(*point, model_id=self._model_id) for point in points])
            del self._points[: len(points)]

    def _send_batch(self, kind: str, items: list[Any], *, is_retry: bool = False) -> None:
        """Send entities; if the server refuses them together, one by one, so that it takes all others."""
        entities: dict[str, Any] = {kind: items}
        try:
            self._open().log_batch(self._run_id, **entities)
        except Exception as error:
            if is_retry or _is_temporary(error):
                raise
            for item in items:
                self._put(partial(self._send_batch, is_retry=True), kind, [item])

    def _upload(self, method: Callable[..., Any], *arguments: Any) -> None:
        """Call a method that sends files, which may take longer than others unless the user has set a limit."""
        name = "MLFLOW_HTTP_REQUEST_TIMEOUT"
        before = os.environ[name]
        os.environ[name] = _UPLOAD_TIMEOUT_S if self._may_wait_for_uploads else before
        try:
            method(*arguments)
        finally:
            os.environ[name] = before

    def _send_missing_epochs(self, rows: list[dict[str, float]]) -> None:
        """Send the epochs of ``metrics.csv`` that the server lacks: the last ones, because records arrive in order."""
        from mlflow.entities import Metric  # mlflow takes 2 s to import

        time_ms, points = int(time.time() * 1000), []
        for name in sorted({name for row in rows for name in row} - {"epoch", "step"}):
            history = self._open().get_metric_history(self._run_id, as_key(name))
            missing = [row for row in rows if name in row][len({each.step for each in history}) :]
            points += [Metric(as_key(name), row[name], time_ms, int(row["step"])) for row in missing]
        for start in range(0, len(points), _MAX_BATCH["metrics"]):
            self._send_batch("metrics", points[start : start + _MAX_BATCH["metrics"]])

    def _send_model_entry(self) -> None:
        """Announce the model, so that the metrics that follow belong to it; its files come at the end."""
        from mlflow.tracking.context.registry import resolve_tags  # mlflow takes 2 s to import

        client = self._open()
        if self._model_id is not None:
            try:
                if str(client.get_logged_model(self._model_id).status) == "PENDING":
                    return
            except Exception as error:
                if _is_temporary(error):  # else it was deleted
                    raise
        model = client.create_logged_model(self._experiment_id, "model", self._run_id, tags=resolve_tags({}))
        self._model_id = model.model_id
        self._save_ids()

    def _send_model_files(self, folder: Path) -> None:
        client = self._open()
        self._upload(send_model_files, client, self._run_id, client.get_logged_model(self._model_id or ""), folder)


class _Sender:
    """Call functions in order from a thread, each again until the server answers.

    Args:
        server: Name of the server in messages, without secrets.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._calls: queue.Queue[tuple[Callable[..., Any], tuple[Any, ...]]] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._num_failures = 0
        self._is_closing, self._is_over = threading.Event(), False

    @property
    def num_unsent(self) -> int:
        """Number of calls that have not succeeded, or were given up."""
        return self._calls.unfinished_tasks

    def put(self, send: Callable[..., Any], *arguments: Any) -> None:
        """Queue ``send(*arguments)``."""
        self._calls.put((send, arguments))
        if self._thread is None or not self._thread.is_alive():  # as in a process that was forked
            self._is_over = False
            self._thread = threading.Thread(target=self._work, name=f"sender to {self._server}", daemon=True)
            self._thread.start()

    def drain(self, timeout_s: float) -> int:
        """Wait until the queue is empty; return the number of calls that are given up.

        Args:
            timeout_s: Longest wait, in seconds; 10 at most while the server does not answer.
        """
        began_s = time.monotonic()
        self._is_closing.set()
        with self._calls.all_tasks_done:
            while self._calls.unfinished_tasks:
                limit_s = min(timeout_s, _UNREACHABLE_TIMEOUT_S) if self._num_failures else timeout_s
                if (left_s := began_s + limit_s - time.monotonic()) <= 0:
                    break
                self._calls.all_tasks_done.wait(min(left_s, 0.5))
            self._is_over = self._calls.unfinished_tasks > 0
        self._is_closing.clear()
        return self.num_unsent

    def _work(self) -> None:
        while True:
            send, arguments = self._calls.get()
            while not self._try(send, arguments):
                if self._is_over:
                    return
            self._calls.task_done()

    def _try(self, send: Callable[..., Any], arguments: tuple[Any, ...]) -> bool:
        """Call once; return False, after a pause, if the call is to be repeated."""
        try:
            send(*arguments)
        except Exception as error:  # noqa: BLE001 - a defect must not end the thread, and with it all further records
            if _is_temporary(error):
                self._num_failures += 1
                if self._num_failures == 1:
                    _log.warning("%s does not answer (%s); records wait for it", self._server, _describe(error))
                if self._is_closing.wait(min(0.5 * 2 ** min(self._num_failures, 5), 15.0)):
                    time.sleep(0.2)
                return False
            _log.warning("%s refused a record, which is dropped: %s", self._server, _describe(error))
        if self._num_failures:
            _log.info("%s is back; %d records follow", self._server, self.num_unsent - 1)
        self._num_failures = 0
        return True


def _is_temporary(error: Exception) -> bool:
    """Whether the server may take later a request that failed with ``error``."""
    from mlflow.exceptions import MlflowException  # mlflow takes 2 s to import
    from requests import RequestException

    if isinstance(error, MlflowException):
        status = int(error.get_http_status_code())  # type: ignore[no-untyped-call]
    elif isinstance(error, RequestException):
        status = 503 if error.response is None else error.response.status_code
    else:  # files: one that is gone stays gone, a full disk does not
        return isinstance(error, OSError) and not isinstance(error, FileNotFoundError)
    return status >= 500 or status in _TEMPORARY


def _describe(error: Exception) -> str:
    return mask_password(" ".join(str(error).split()))[:300] or type(error).__name__


def _flatten(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Give the leaves of nested mappings, namespaces, dataclasses and lists of them; names are joined by dots."""
    below: Mapping[Any, Any] = {}
    if isinstance(value, Namespace):
        below = vars(value)
    elif isinstance(value, Mapping):
        below = value
    elif is_dataclass(value) and not isinstance(value, type):
        below = {field.name: getattr(value, field.name) for field in fields(value)}
    elif isinstance(value, (list, tuple)) and any(isinstance(item, (Mapping, Namespace)) for item in value):
        below = dict(enumerate(value))
    if path and not below:
        yield ".".join(path), value
    for name, inner in below.items():
        yield from _flatten(inner, (*path, str(name)))


# -- what mlflow.pytorch.autolog() records, under the same names: mlflow/pytorch/_lightning_autolog.py of MLflow 3.17


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, (int, float)) or (isinstance(value, Tensor) and value.numel() == 1)
    }


def _early_stopping(trainer: Trainer) -> EarlyStopping | None:
    found = [callback for callback in trainer.callbacks if isinstance(callback, EarlyStopping)]  # type: ignore[attr-defined]
    return found[-1] if found else None


def _fit_params(trainer: Trainer) -> dict[str, Any]:
    """Collect epochs, the first optimizer's name and settings, and early stopping's settings."""
    params: dict[str, Any] = {"epochs": trainer.max_epochs}
    if trainer.optimizers:
        optimizer = trainer.optimizers[0]
        inner = optimizer._optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
        params |= {"optimizer_name": type(inner).__name__, **getattr(inner, "defaults", {})}
    if (stopping := _early_stopping(trainer)) is not None:
        params |= {n: getattr(stopping, n) for n in ("monitor", "mode", "patience", "min_delta", "stopped_epoch")}
    return params


def _stopping_metrics(trainer: Trainer) -> dict[str, float]:
    """Collect when and where early stopping ended the fit; nothing where it did not."""
    stopping = _early_stopping(trainer)
    if stopping is None or stopping.stopped_epoch == 0:
        return {}
    restored = stopping.stopped_epoch - max(1, stopping.patience)
    found = {name: float(getattr(stopping, name)) for name in ("stopped_epoch", "best_score", "wait_count")}
    return {**found, "restored_epoch": float(restored)}


def _summarize(trainer: Trainer, module: LightningModule) -> str:
    """Format the table of all layers; with sizes, which need a forward pass, on one device only."""
    example = module.example_input_array
    if trainer.world_size > 1:
        module.example_input_array = None
    try:
        with torch.random.fork_rng(devices=[]):
            return str(ModelSummary(module, max_depth=-1))
    finally:
        module.example_input_array = example


def _save_weights(module: LightningModule, folder: Path, config: Path | None) -> None:
    """Write the state dict, as ``mlflow.pytorch.load_state_dict`` reads it, and the run's config beside it."""
    import mlflow.pytorch  # mlflow takes 2 s to import
    from mlflow.models import Model

    shutil.rmtree(folder, ignore_errors=True)
    mlflow.pytorch.save_state_dict({name: value.cpu() for name, value in module.state_dict().items()}, str(folder))
    if config is not None and config.is_file():
        shutil.copy(config, folder)
    Model().save(str(folder / "MLmodel"))


def _save_pickle(module: LightningModule, folder: Path) -> None:
    """Write the module on the CPU, pickled as autolog does, as ``mlflow.pytorch.load_model`` reads it."""
    import mlflow.pytorch  # mlflow takes 2 s to import

    used = [name for name in _PACKAGES if name.replace("-", "_") in sys.modules]
    requirements: list[str] = mlflow.pytorch.get_default_pip_requirements()
    shutil.rmtree(folder, ignore_errors=True)
    logger = logging.getLogger("mlflow.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)  # a paragraph about pickle
    try:
        mlflow.pytorch.save_model(
            module if module.device.type == "cpu" else copy.deepcopy(module).cpu(),
            str(folder),
            pip_requirements=[*requirements, *(f"{name}=={version(name)}" for name in used)],
            serialization_format="pickle",
        )
    finally:
        logger.setLevel(level)
