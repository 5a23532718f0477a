"""MLflow: records that outlive a lost connection and a killed process.

Training never waits for the server: a thread sends, in order, and again until the server takes it.
The journal is the run folder: epochs that the server lacks at the end of a process are sent from
``metrics.csv`` by the next resume.
"""

from __future__ import annotations

import copy
import logging
import math
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

from lightning_fabric.loggers.logger import rank_zero_experiment
from lightning_utilities.core.rank_zero import rank_zero_only
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.core.optimizer import LightningOptimizer
from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.utilities.model_summary.model_summary import ModelSummary
from torch import Tensor

from lightkit import runs
from lightkit.config import shown_path
from lightkit.config.bounds import NonNegativeFloat
from lightkit.config.secrets import mask
from lightkit.errors import ConfigError, Interrupted, LightkitError, ServerAway
from lightkit.loggers.evaluation import EvaluationMetrics
from lightkit.loggers.mlflow_address import (
    CONNECT_SETTINGS,
    UniqueKeys,
    find_address,
    find_or_create_experiment,
    manifest_tags,
    send_model_files,
)
from lightkit.loggers.mlflow_database import prepare_database, require_writable
from lightkit.loggers.mlflow_errors import can_pass, find_status
from lightkit.runs.fence import check_fences
from lightkit.runs.index import flatten
from lightkit.runs.metrics import is_of_last_step
from lightkit.runs.webhook import BackgroundSender, DeliveryError
from lightkit.version import __version__

_log = logging.getLogger("lightkit.loggers")

_TIMEOUT = "MLFLOW_HTTP_REQUEST_TIMEOUT"
_UNREACHABLE_TIMEOUT_S = 10.0  # the longest wait at the end for a server that does not answer
_TERMINATED_TIMEOUT_S = 5.0  # a signal leaves little time
# 4xx that can pass: credentials are renewed, limits end
_TEMPORARY = {401, 403, 407, 408, 425, 429}
_MAX_BATCH = 100  # params or tags; mlflow.utils.validation of MLflow 3.17
_MAX_METRICS = 1000
# characters: the same module
_MAX_PARAM = 6000
_MAX_TAG = 8000
_SHARDED = ("FSDPStrategy", "ModelParallelStrategy", "DeepSpeedStrategy")


class MLflow(Logger):
    """Record a run in MLflow, with what ``mlflow.pytorch.autolog()`` records.

    Training never waits for the server. What it misses is sent when it is back; epochs that it
    still lacks when the process ends are sent from ``metrics.csv`` by the next resume, which
    continues the same MLflow run.

    Args:
        tracking_uri: Database (``sqlite:///…``, ``postgresql://…``) or server (``http://…``). By
            default the environment variable MLFLOW_TRACKING_URI, else ``mlflow.db`` in the run root
            with its files in ``mlflow-artifacts/`` beside it. Folders are refused, because MLflow
            refuses them since 3.13.
        experiment_name: By default the run's name; ``lightkit`` outside the lightkit command.
        run_name: By default the run's id; a name of MLflow's making outside the lightkit command.
        tags: Further tags of the run.
        log_model: Record the trained model too: its weights, as ``mlflow.pytorch.load_state_dict``
            reads them, and the config without secrets. ``pickle``: the whole module, as
            ``mlflow.pytorch.load_model`` reads it, with all attributes, secrets too; a warning says
            so. ``lightkit register`` makes a version that MLflow can serve.
        log_checkpoint: Upload the best checkpoint at the end.
        flush_timeout_s: Longest wait, in seconds, for the server to take the rest at the end; 10 at
            most where it does not answer, 5 where a signal ends the run.
    """

    def __init__(
        self,
        tracking_uri: str | None = None,
        experiment_name: str | None = None,
        run_name: str | None = None,
        tags: dict[str, str] | None = None,
        log_model: Literal["pickle"] | bool = True,
        log_checkpoint: bool = True,
        flush_timeout_s: NonNegativeFloat = 60.0,
    ) -> None:
        super().__init__()
        self._run = run = runs.current()
        self._address = find_address(tracking_uri)
        self._experiment_name = experiment_name or (run.name if run else "lightkit")
        self._run_name = run_name or (run.id if run else None)
        self._tags = {**(tags or {}), "host": socket.gethostname()}
        self._log_model = log_model
        self._log_checkpoint = log_checkpoint
        self._flush_timeout_s = flush_timeout_s
        self._sender: BackgroundSender | None = None
        self._client: Any = None  # MlflowClient, whose type-only import jsonargparse would run: 1 s
        self._run_id = self._experiment_id = ""
        self._model_id: str | None = None
        self._keys = UniqueKeys()
        self._params: dict[str, str] = {}  # whose names the MLflow run has
        self._evaluation = EvaluationMetrics("MLflow")
        # name, value, milliseconds, step; not sent yet
        self._points: list[tuple[str, float, int, int]] = []
        # a page of lines about tables that are made
        for chatty in ("mlflow.store.db.utils", "alembic"):
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
        return [
            "mlflow",
            "ui",
            "--backend-store-uri",
            f"sqlite:///{shown_path(self._address.database)}",
        ]

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """An ``MlflowClient``; the first use opens the run.

        Raises:
            ServerAway: If the server does not answer.
            ConfigError: If it refuses, or its database is of a newer MLflow.
        """
        return self._open()

    # -- Lightning's interface

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Send the metrics that are numbers; those of an evaluation wait for `record_result`."""
        for record in self._evaluation.add(metrics, step):
            self._put_metrics(*record)

    @rank_zero_only
    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, *_args: Any, **_kwargs: Any
    ) -> None:
        """Send all hyper-parameters, nested names joined by dots."""
        values = flatten(vars(params) if isinstance(params, Namespace) else params)
        self._put_params({".".join(map(str, path)): value for path, value in values})

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Send the rest, end the MLflow run, and warn of what could not be sent."""
        if self._client is None or self._sender is None:
            return
        run_status = "FINISHED" if status in ("success", "finished") else "FAILED"
        if run_status == "FAILED" and isinstance(
            sys.exc_info()[1], (KeyboardInterrupt, SystemExit, Interrupted)
        ):
            # Lightning says "failed" of a run that was stopped, while it handles the exception
            run_status = "KILLED"
        self._put(self._client.set_terminated, self._run_id, run_status, int(time.time() * 1000))
        # A server that takes connections and never answers shows by a short request: a record may
        # take long because the server stores a file.
        began_s = time.monotonic()
        is_there = threading.Event()
        client = self._client

        def ask() -> None:
            with suppress(Exception):
                client.get_run(self._run_id)
                is_there.set()

        threading.Thread(target=ask, daemon=True).start()
        limit_s = min(
            self._flush_timeout_s, _TERMINATED_TIMEOUT_S if run_status == "KILLED" else math.inf
        )
        if not is_there.wait(min(limit_s, _UNREACHABLE_TIMEOUT_S)):
            limit_s = 0.0
        if num_lost := self._sender.close(max(0.0, began_s + limit_s - time.monotonic())):
            table = self._run and self._run.metrics_path
            journal = (
                f"; the next resume sends the epochs of {table} that it lacks" if table else ""
            )
            _log.warning(
                "MLflow at %s did not take %d records%s", self._address.shown, num_lost, journal
            )

    # -- called by lightkit's command line, models and callbacks on every logger that has the method

    @rank_zero_only
    def log_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Tag the run with the code and the data that it was made from."""
        self._put_tags(manifest_tags(manifest))

    @rank_zero_only
    def log_changed(self, values: Mapping[str, Any]) -> None:
        """Tag the run with the values that the command line and the environment changed.

        The config is an artifact.

        Args:
            values: By dotted key, without secrets.
        """
        self._put_tags({f"changed.{key}": str(value) for key, value in values.items()})

    @rank_zero_only
    def add_picture(self, name: str, image: Tensor, step: int) -> None:
        """Upload ``image``, uint8 ``(3, height, width)``: ``pictures/<name>/step=<step>.png``."""
        picture = image.permute(1, 2, 0).cpu().numpy()
        self._put(
            self._open().log_image,
            self._run_id,
            picture,
            f"pictures/{self._key_of(name)}/step={step:06d}.png",
        )

    @rank_zero_only
    def record_fit_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Record what is known when training starts; belongs in ``on_fit_start``."""
        params: dict[str, Any] = {"epochs": trainer.max_epochs}
        for optimizer in trainer.optimizers[:1]:
            inner = optimizer._optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
            params |= {"optimizer_name": type(inner).__name__, **getattr(inner, "defaults", {})}
        if (stopping := trainer.early_stopping_callback) is not None:
            params |= {
                n: getattr(stopping, n)
                for n in ("monitor", "mode", "patience", "min_delta", "stopped_epoch")
            }
        self._put_params(params)
        example = module.example_input_array
        # with it the summary runs a forward pass, for the sizes of outputs
        module.example_input_array = None
        self._put(
            self._open().log_text,
            self._run_id,
            str(ModelSummary(module, max_depth=-1)),
            "model_summary.txt",
        )
        module.example_input_array = example
        if self._log_model == "pickle":
            _log.warning(
                "log_model: pickle records the whole module, with all its attributes and any"
                " secrets in them"
            )
        if self._logs_model(trainer):
            self._put(self._send_model_entry)

    @rank_zero_only
    def record_speed(self, step: int, speed: Mapping[str, float]) -> None:
        """Send the learning rates, the duration and the speed of an epoch, which no module logs.

        Args:
            step: Optimizer steps at the epoch's end.
            speed: By the names of ``metrics.csv``.
        """
        self._put_metrics(speed, step)

    @rank_zero_only
    def record_result(self, is_of_other_run: bool) -> None:
        """Send the metrics of an evaluation, where they are those of the run.

        Args:
            is_of_other_run: Whether they are of other weights, data or settings.
        """
        for record in self._evaluation.release(is_of_other_run):
            self._put_metrics(*record)

    @rank_zero_only
    def record_fit_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Record how training ended, the best checkpoint and the model.

        Belongs in ``on_fit_end``.
        """
        stopping = trainer.early_stopping_callback
        if stopping is not None and stopping.stopped_epoch:
            names = ("stopped_epoch", "best_score", "wait_count")
            found = {name: float(getattr(stopping, name)) for name in names}
            found["restored_epoch"] = found["stopped_epoch"] - max(1, stopping.patience)
            self._put_metrics(found, trainer.global_step)
        for keeper in trainer.checkpoint_callbacks if self._log_checkpoint else ():
            path = Path(getattr(keeper, "best_model_path", "") or ".")
            if path.is_file():
                self._put(self._open().log_artifact, self._run_id, str(path), "checkpoints")
                # mlflow.pytorch.load_checkpoint() finds the file by this tag
                self._put_tags({"mlflow.latest_checkpoint_artifact": f"checkpoints/{path.name}"})
        if not self._logs_model(trainer):
            return
        folder = Path(tempfile.mkdtemp(prefix="lightkit-mlflow-"))
        try:
            if self._log_model == "pickle":
                _save_pickle(module, folder)
            else:
                _save_weights(module, folder, None if self._run is None else self._run.config_path)
        except Exception as error:  # noqa: BLE001 - pickling the user's module may raise anything, and it is trained
            _log.warning(
                "MLflow gets no model: %s cannot be saved (%s)", type(module).__name__, error
            )
            shutil.rmtree(folder, ignore_errors=True)
        else:
            self._put(self._send_model_files, folder)

    def _logs_model(self, trainer: Trainer) -> bool:
        return bool(self._log_model) and type(trainer.strategy).__name__ not in _SHARDED

    # -- the MLflow run

    def _open(self) -> Any:
        """Continue the MLflow run of this run's folder, or start one."""
        if self._client is not None:
            return self._client
        client, is_continued = self._connect()
        self._client = client
        self._sender = BackgroundSender(f"MLflow at {self._address.shown}", retries=math.inf)
        if is_continued:
            self._put(client.update_run, self._run_id, "RUNNING")
            self._put_tags(self._tags)
        if self._run is not None:
            self._put_run(self._run, client)
            if is_continued:
                self._put_missing_epochs(self._run)
        return client

    def _connect(self) -> tuple[Any, bool]:
        """Return a client whose server has the MLflow run, and whether that run is continued.

        Raises:
            ServerAway: If the server does not answer, or takes nothing for now.
            ConfigError: If it does not take this run.
        """
        from mlflow.tracking import MlflowClient  # mlflow takes 2 s to import

        has_timeout = _TIMEOUT in os.environ
        for name, value in CONNECT_SETTINGS.items():
            os.environ.setdefault(name, value)
        try:
            if self._address.artifacts is not None:
                self._address.artifacts.parent.mkdir(parents=True, exist_ok=True)
            prepare_database(self._address)
            require_writable(self._address, option="logger.mlflow.init_args.tracking_uri")
            client = MlflowClient(self._address.uri)
            is_continued = self._continue_run(client)
            if not is_continued:
                self._start_run(client)
        except LightkitError:
            raise
        except Exception as error:
            waits = can_pass(error, self._address)
            advice = "Start the server, or correct" if waits else "Correct"
            raise (ServerAway if waits else ConfigError)(
                f"MLflow at {self._address.shown} does not take this run: {_describe(error)}. The"
                f" address comes from {self._address.origin}. {advice} the address, or remove the"
                " logger MLflow; nothing has been trained yet."
            ) from error
        finally:
            if not has_timeout:
                # MLflow's own is longer, since an answer comes when a file is stored
                del os.environ[_TIMEOUT]
        return client, is_continued

    def _put_run(self, run: runs.Run, client: Any) -> None:
        """Send the manifest as tags, and the config."""
        manifest = runs.read_json(run.manifest_path) or {}
        self._put_tags({**manifest_tags(manifest), "run_folder": str(run.folder)})
        if run.config_path.is_file():
            self._put(client.log_artifact, self._run_id, str(run.config_path))

    def _put_missing_epochs(self, run: runs.Run) -> None:
        """Send the epochs of the run that the server lacks."""
        rows = runs.MetricsTable(run.metrics_path).rows
        if rows:
            names = dict.fromkeys(
                name for row in rows for name in sorted({*row} - {"epoch", "step"})
            )
            # of a metric that is logged by step alone, the server has the steps themselves
            keys = {name: self._key_of(name) for name in names if not is_of_last_step(name, names)}
            self._put(self._send_missing_epochs, rows, keys)

    def _continue_run(self, client: Any) -> bool:
        kept = runs.read_json(self._run.folder / "mlflow.json") if self._run else None
        if not kept or not kept.get("run_id"):
            return False
        try:
            run = client.get_run(kept["run_id"])
        except Exception as error:
            if _is_temporary(error):
                raise
            run = None
        if run is None or run.info.lifecycle_stage == "deleted":
            _log.warning(
                "MLflow at %s no longer has run %s; a new one is started",
                self._address.shown,
                kept["run_id"],
            )
            return False
        self._run_id = run.info.run_id
        self._experiment_id = run.info.experiment_id
        self._model_id = kept.get("model_id")
        self._params = dict(run.data.params)
        self._keys = UniqueKeys(kept.get("keys"))
        return True

    def _start_run(self, client: Any) -> None:
        from mlflow.tracking.context.registry import resolve_tags  # mlflow takes 2 s to import

        name = self._experiment_name
        setting = "experiment_name of the logger MLflow"
        self._experiment_id = find_or_create_experiment(
            client, name, address=self._address, setting=setting
        )
        run = client.create_run(
            self._experiment_id, tags=resolve_tags(self._tags), run_name=self._run_name
        )
        self._run_id = run.info.run_id
        self._save_ids()

    def _save_ids(self) -> None:
        """Keep ids and changed keys in the run folder: a resume continues the same MLflow run."""
        if self._run is not None:
            ids = {
                "experiment_id": self._experiment_id,
                "run_id": self._run_id,
                "model_id": self._model_id,
            }
            kept = {"tracking_uri": self._address.shown, **ids, "keys": self._keys.changed}
            runs.write_json(self._run.folder / "mlflow.json", kept)

    def _key_of(self, name: str) -> str:
        """Return the key of a metric, parameter or tag; the next resume gives the same one."""
        num_changed = len(self._keys.changed)
        key = self._keys.key_of(name)
        if len(self._keys.changed) > num_changed:
            self._save_ids()
        return key

    # -- what is put into the queue

    def _put(self, send: Callable[..., Any], *arguments: Any) -> None:
        self._open()
        assert self._sender is not None
        self._sender.put(partial(_deliver, send, *arguments))

    def _put_metrics(self, metrics: Mapping[str, Any], step: int | None) -> None:
        """Send points."""
        self._open()
        time_ms = int(time.time() * 1000)
        for name, value in metrics.items():
            if isinstance(value, (int, float)) or (
                isinstance(value, Tensor) and value.numel() == 1
            ):
                self._points.append((self._key_of(name), float(value), time_ms, step or 0))
        self._put(self._send_points)

    def _put_params(self, params: Mapping[str, Any]) -> None:
        """Send new parameters: MLflow keeps the first value of each."""
        from mlflow.entities import Param  # mlflow takes 2 s to import

        self._open()
        texts = {self._key_of(name): str(value)[:_MAX_PARAM] for name, value in params.items()}
        self._put_batches(
            "params", [Param(key, text) for key, text in texts.items() if key not in self._params]
        )
        self._params |= texts

    def _put_tags(self, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag  # mlflow takes 2 s to import

        self._open()
        self._put_batches(
            "tags", [RunTag(self._key_of(name), value[:_MAX_TAG]) for name, value in tags.items()]
        )

    def _put_batches(self, kind: str, items: list[Any]) -> None:
        for start in range(0, len(items), _MAX_BATCH):
            self._put(self._send_batch, kind, items[start : start + _MAX_BATCH])

    # -- what the thread sends

    def _send_batch(self, kind: str, items: list[Any]) -> None:
        entities: dict[str, Any] = {kind: items}
        self._open().log_batch(self._run_id, **entities)

    def _send_points(self) -> None:
        """Send all points that wait, together; those that the server refuses are dropped."""
        from mlflow.entities import Metric  # mlflow takes 2 s to import

        while points := self._points[:_MAX_METRICS]:
            is_over = True
            try:
                self._send_batch(
                    "metrics",
                    [Metric(*point, model_id=self._model_of(point[1])) for point in points],
                )
            except Exception as error:
                is_over = not _is_temporary(error)
                raise
            finally:
                if is_over:
                    del self._points[: len(points)]

    def _model_of(self, value: float) -> str | None:
        """Return the model that a metric belongs to.

        None for NaN, which MLflow 3.17 keeps as 0.0, and infinity.
        """
        return self._model_id if math.isfinite(value) else None

    def _send_missing_epochs(self, rows: list[dict[str, float]], keys: Mapping[str, str]) -> None:
        """Send the epochs of ``metrics.csv`` that the server lacks.

        The last ones, because records arrive in order.

        Args:
            rows: Of that file.
            keys: Of its metrics, by their names.
        """
        from mlflow.entities import Metric  # mlflow takes 2 s to import

        time_ms = int(time.time() * 1000)
        points = []
        for name, key in sorted(keys.items()):
            history = self._open().get_metric_history(self._run_id, key)
            missing = [row for row in rows if name in row][len({each.step for each in history}) :]
            points += [Metric(key, row[name], time_ms, int(row["step"])) for row in missing]
        for start in range(0, len(points), _MAX_METRICS):
            self._send_batch("metrics", points[start : start + _MAX_METRICS])

    def _send_model_entry(self) -> None:
        """Announce the model, so that the metrics that follow belong to it.

        Its files come at the end.
        """
        from mlflow.tracking.context.registry import resolve_tags  # mlflow takes 2 s to import

        if self._model_id is None:
            model = self._open().create_logged_model(
                self._experiment_id, "model", self._run_id, tags=resolve_tags({})
            )
            self._model_id = model.model_id
            self._save_ids()

    def _send_model_files(self, folder: Path) -> None:
        client = self._open()
        send_model_files(
            client, self._run_id, client.get_logged_model(self._model_id or ""), folder
        )
        shutil.rmtree(folder, ignore_errors=True)


def _deliver(send: Callable[..., Any], *arguments: Any) -> None:
    try:
        check_fences()  # the MLflow run is that of the process which has the job
        send(*arguments)
    except Exception as error:
        raise DeliveryError(_describe(error), is_temporary=_is_temporary(error)) from error


def _is_temporary(error: Exception) -> bool:
    """Return whether the server may take later a request that failed with ``error``."""
    status = find_status(error)
    if status is None:  # a connection, or files: one that is gone stays gone, a full disk does not
        return isinstance(error, OSError) and not isinstance(error, FileNotFoundError)
    return status >= 500 or status in _TEMPORARY


def _describe(error: Exception) -> str:
    return mask(" ".join(str(error).split()), hides_users=True)[:300] or type(error).__name__


def _save_weights(module: LightningModule, folder: Path, config: Path | None) -> None:
    """Write the weights, as ``mlflow.pytorch.load_state_dict`` reads it, and the run's config."""
    import mlflow.pytorch  # mlflow takes 2 s to import
    from mlflow.models import Model

    mlflow.pytorch.save_state_dict(
        {name: value.cpu() for name, value in module.state_dict().items()}, str(folder)
    )
    if config is not None and config.is_file():
        shutil.copy(config, folder)
    Model().save(str(folder / "MLmodel"))


def _save_pickle(module: LightningModule, folder: Path) -> None:
    """Write the module on the CPU, pickled as autolog does.

    ``mlflow.pytorch.load_model`` reads it.
    """
    import mlflow.pytorch  # mlflow takes 2 s to import

    mlflow.pytorch.save_model(
        module if module.device.type == "cpu" else copy.deepcopy(module).cpu(),
        str(folder),
        # Named, since MLflow infers them by loading the model in a second Python, which takes about
        # 8 s.
        pip_requirements=[
            *mlflow.pytorch.get_default_pip_requirements(),
            f"lightkit-train=={__version__}",
        ],
        serialization_format="pickle",
    )
