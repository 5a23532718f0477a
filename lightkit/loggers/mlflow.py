"""Runs in MLflow that outlive a lost connection and a killed process."""

from __future__ import annotations

import json
import logging
import shutil
import socket
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning_fabric.loggers.logger import rank_zero_experiment
from lightning_utilities.core.rank_zero import rank_zero_only
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.loggers.logger import Logger
from torch import Tensor

from lightkit import runs
from lightkit.config import shown_path
from lightkit.loggers import fit_facts
from lightkit.loggers.address import find_address
from lightkit.loggers.best_checkpoint import BestCheckpoints
from lightkit.loggers.entries import MAX_TAG, as_key, as_run_status, flatten, sort_params, tags_of
from lightkit.loggers.outbox import Outbox
from lightkit.loggers.saved_model import FirstBatch, save_model
from lightkit.loggers.tracker import Tracker

__all__ = ["MLflow"]

_log = logging.getLogger("lightkit.loggers")
_SHARDED = ("FSDPStrategy", "ModelParallelStrategy", "DeepSpeedStrategy")


class MLflow(Logger):
    """Record a run in MLflow, with everything that ``mlflow.pytorch.autolog()`` records.

    Training never waits for the server. What it misses is sent when it is back, or kept in the run's folder as
    ``mlflow-unsent.jsonl``, which the next resume sends first. A resumed run continues its MLflow run.

    Args:
        tracking_uri: Database (``sqlite:///…``, ``postgresql://…``) or server (``http://…``). By default the
            environment variable MLFLOW_TRACKING_URI, else ``mlflow.db`` in the run root with its files in
            ``mlflow-artifacts/`` beside it. Folders are refused, because MLflow refuses them since 3.13.
        experiment_name: By default the run's name; ``lightkit`` outside the lightkit command.
        run_name: By default the run's id; a name of MLflow's making outside the lightkit command.
        tags: Further tags of the run.
        log_model: Record the trained model too, as ``mlflow.pytorch.load_model`` reads it.
        log_checkpoint: Upload the best checkpoint at the end.
        flush_timeout_s: Longest wait, in seconds, for the server to take what is left at the end; 5 at most where
            the run is stopped from outside.
    """

    def __init__(
        self,
        tracking_uri: str | None = None,
        experiment_name: str | None = None,
        run_name: str | None = None,
        tags: dict[str, str] | None = None,
        log_model: bool = True,
        log_checkpoint: bool = True,
        flush_timeout_s: float = 60.0,
    ) -> None:
        super().__init__()
        self.mask: Callable[[Any], Any] | None = None  # set by whoever knows the secrets; for the recorded model
        self._run = run = runs.current()
        self._address = find_address(tracking_uri)
        self._experiment_name = experiment_name or (run.name if run else "lightkit")
        self._run_name = run_name or (run.id if run else None)
        self._tags = tags or {}
        self._log_model = log_model
        self._log_checkpoint = log_checkpoint
        self._flush_timeout_s = flush_timeout_s
        self._tracker: Tracker | None = None
        self._outbox: Outbox | None = None
        self._trainer: Trainer | None = None
        self._first_batch: FirstBatch | None = None
        self._best = BestCheckpoints()
        self._newest: dict[str, float] = {}  # of each metric that Lightning has handed over
        self._epoch_metrics: tuple[dict[str, float], int] = {}, 0
        self._config_digest = ""
        self._manifest_logged = False

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return self._experiment_name

    @property
    def version(self) -> str | None:
        """The MLflow run's id, once it is open."""
        return self._tracker.run_id if self._tracker else None

    @property
    def save_dir(self) -> str | None:
        """Folder of what waits to be sent: the run's folder, or one below ``mlflow-files`` outside a run."""
        return str(self._folder) if self._tracker else None

    @property
    def unsent(self) -> int:
        """Number of records that have not reached the server."""
        return self._outbox.unsent if self._outbox else 0

    @property
    def view_command(self) -> list[str] | None:
        """What to type to look at it; None for a server, which has its own address."""
        database = self._address.shown.removeprefix("sqlite:///")
        if database == self._address.shown:
            return None
        return ["mlflow", "ui", "--backend-store-uri", f"sqlite:///{shown_path(Path(database))}"]

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """An ``MlflowClient``; the first use opens the run.

        Raises:
            LightkitError: If the server does not answer.
        """
        return self._open()[0].client

    def _open(self) -> tuple[Tracker, Outbox]:
        if self._tracker is None or self._outbox is None:
            tracker = Tracker(self._address, state=self._run.folder / "mlflow.json" if self._run else None)
            tags = {**self._tags, "host": socket.gethostname()}
            tracker.open(experiment=self._experiment_name, run_name=self._run_name, tags=tags)
            self._tracker = tracker
            server = f"MLflow at {self._address.shown}"
            self._outbox = Outbox(tracker.deliver, self._folder / "mlflow-unsent.jsonl", server=server)
            if tracker.continued:
                self._put("status", status="RUNNING")
                self._put_tags({**self._tags, "host": socket.gethostname()})
        return self._tracker, self._outbox

    @property
    def _folder(self) -> Path:
        assert self._tracker is not None
        return self._run.folder if self._run else Path("mlflow-files") / self._tracker.run_id

    def _stage(self, name: str) -> Path:
        """A path to keep a file at until it is sent."""
        path = self._folder.absolute() / "mlflow-staging" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _put(self, kind: str, **fields: Any) -> None:
        self._open()[1].put({"kind": kind, **fields})

    # what Lightning calls

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Queue the metrics that are numbers."""
        known = fit_facts.numbers(metrics)
        self._newest.update(known)
        self._put_metrics(known, step)

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *_args: Any, **_kwargs: Any) -> None:
        """Queue all hyper-parameters, nested names joined by dots."""
        self._put_params(flatten(params))

    @rank_zero_only
    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Note the best checkpoint and the metrics it was saved with."""
        if self._log_checkpoint:
            self._best.note(checkpoint_callback, trainer=self._trainer, metrics=self._newest)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Send what is left, end the MLflow run, and say what could not be sent."""
        if self._outbox is None:
            return
        self._put_config()
        self._put_run_manifest()
        self._put_best_checkpoints()
        ended = as_run_status(status)
        self._put("status", status=ended, time_ms=int(time.time() * 1000))
        started = time.monotonic()
        if left := self._outbox.drain(self._flush_timeout_s if ended != "KILLED" else min(self._flush_timeout_s, 5.0)):
            _log.warning(
                "MLflow at %s did not take %d records within %.0f s; they are kept in %s%s",
                self._address.shown,
                left,
                time.monotonic() - started,
                self._folder / "mlflow-unsent.jsonl",
                ", and the next resume of this run sends them first" if self._run else "",
            )
        else:
            shutil.rmtree(self._folder / "mlflow-staging", ignore_errors=True)
            if self._run is None:
                with suppress(OSError):  # not empty: checkpoints may lie there
                    self._folder.rmdir()
                    self._folder.parent.rmdir()
        if self._outbox.dropped > 1:
            _log.warning("MLflow at %s refused %d records in all", self._address.shown, self._outbox.dropped)

    # what lightkit's command line, models and callbacks call where a logger has it

    @rank_zero_only
    def log_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Tag the run with the code and the data that it was made from."""
        self._put_tags({**tags_of(manifest), **({"run_folder": str(self._run.folder)} if self._run else {})})
        self._manifest_logged = True

    @rank_zero_only
    def add_picture(self, name: str, image: Tensor, step: int) -> None:
        """Keep ``image``, uint8 ``(3, height, width)``, as ``pictures/<name>/step=<step>.png``."""
        from PIL import Image  # 0.1 s to import

        self._open()
        place = f"pictures/{as_key(name)}"
        path = self._stage(f"{place}/step={step:06d}.png")
        Image.fromarray(image.permute(1, 2, 0).cpu().numpy()).save(path)
        self._put("artifact", path=str(path), to=place, staged=True)

    @rank_zero_only
    def record_fit_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Record what is known when training starts; belongs in ``on_fit_start``."""
        self._trainer = trainer
        self._put_run_manifest()
        self._put_config()
        self._put_tags({"Mode": "training"})
        self._put_params(fit_facts.params_at_start(trainer))
        self._put_text("model_summary.txt", fit_facts.summary_of(trainer, module))
        if self._log_model and type(trainer.strategy).__name__ not in _SHARDED:
            self._first_batch = FirstBatch(module)
            self._put("model")

    def record_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Record the metrics that Lightning keeps from loggers; belongs in ``on_train_epoch_end`` of every rank."""
        metrics = trainer.callback_metrics  # before ranks part: reading may reduce them over all
        self._put_missed_metrics()
        self._epoch_metrics = fit_facts.numbers(metrics), trainer.global_step

    @rank_zero_only
    def record_fit_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Record how training ended, and the model; belongs in ``on_fit_end``."""
        self._put_missed_metrics()
        self._put_metrics(fit_facts.stopping_at_end(trainer), trainer.global_step)
        if self._first_batch is None:
            return
        folder = self._stage("model")
        try:
            save_model(module, folder, first_batch=self._first_batch, mask=self.mask)
        except Exception as error:  # noqa: BLE001 - whatever the user's module raises when pickled, it is trained
            _log.warning("MLflow gets no model: %s cannot be saved (%s)", type(module).__name__, error)
        else:
            self._put("model_files", path=str(folder))
        self._first_batch = None

    def record_test_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Record the metrics of a test that Lightning keeps from loggers; belongs in ``on_test_end`` of every rank."""
        self.record_epoch_end(trainer, module)
        self._put_missed_metrics()
        self._put_tags({"Mode": "testing"})

    # what is put where

    @rank_zero_only
    def _put_missed_metrics(self) -> None:
        metrics, step = self._epoch_metrics
        self._epoch_metrics = {}, 0
        self._put_metrics({name: value for name, value in metrics.items() if name not in self._newest}, step)

    def _put_metrics(self, metrics: Mapping[str, float], step: int | None) -> None:
        time_ms = int(time.time() * 1000)
        if items := [[as_key(name), value, time_ms, step or 0] for name, value in metrics.items()]:
            self._put("metrics", items=items)

    def _put_params(self, params: Mapping[str, Any]) -> None:
        """Queue what the run does not have; MLflow takes no second value, so that one becomes a tag."""
        new, changed = sort_params(params, known=self._open()[0].params)
        if new:
            self._put("params", items=new)
        if changed:
            _log.warning("MLflow keeps the first value of a parameter; the new ones are tags: %s", ", ".join(changed))
            self._put_tags(changed)

    @rank_zero_only
    def _put_tags(self, tags: Mapping[str, str]) -> None:
        self._put("tags", items={as_key(name): value[:MAX_TAG] for name, value in tags.items()})

    def _put_text(self, name: str, text: str) -> None:
        self._open()
        path = self._stage(name)
        path.write_text(text)
        self._put("artifact", path=str(path), to=None, staged=True)

    def _put_config(self) -> None:
        if self._run is None or not self._run.config_path.is_file():
            return
        if (digest := runs.digest(self._run.config_path)) != self._config_digest:
            self._config_digest = digest
            self._put("artifact", path=str(self._run.config_path), to=None, staged=False)

    def _put_run_manifest(self) -> None:
        if not self._manifest_logged and self._run is not None and self._run.manifest_path.is_file():
            self.log_manifest(json.loads(self._run.manifest_path.read_text()))

    def _put_best_checkpoints(self) -> None:
        for checkpoint, metrics in self._best.set_aside(self._folder / "mlflow-staging" / "checkpoints"):
            for file in (checkpoint, metrics):
                self._put("artifact", path=str(file), to="checkpoints", staged=True)
            # mlflow.pytorch.load_checkpoint() finds the file by this tag
            self._put_tags({"mlflow.latest_checkpoint_artifact": f"checkpoints/{checkpoint.name}"})
