"""Runs in MLflow that outlive a lost connection and a killed process."""

from __future__ import annotations

import json
import logging
from argparse import Namespace
from collections.abc import Callable, Mapping
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
from lightkit.loggers.delivery import Delivery
from lightkit.loggers.entries import as_key, as_run_status, flatten, tags_of
from lightkit.loggers.saved_model import FirstBatch, save_model

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
        self._delivery = Delivery(
            self._address,
            run,
            experiment=self._experiment_name,
            run_name=run_name or (run.id if run else None),
            tags=tags or {},
        )
        self._log_model = log_model
        self._log_checkpoint = log_checkpoint
        self._flush_timeout_s = flush_timeout_s
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
        return self._delivery.run_id

    @property
    def save_dir(self) -> str | None:
        """Folder of what waits to be sent: the run's folder, or one below ``mlflow-files`` outside a run."""
        return str(self._delivery.folder) if self._delivery.run_id else None

    @property
    def unsent(self) -> int:
        """Number of records that have not reached the server."""
        return self._delivery.unsent

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
        return self._delivery.tracker.client

    # what Lightning calls

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Queue the metrics that are numbers."""
        known = fit_facts.numbers(metrics)
        self._newest.update(known)
        self._delivery.put_metrics(known, step)

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *_args: Any, **_kwargs: Any) -> None:
        """Queue all hyper-parameters, nested names joined by dots."""
        self._delivery.put_params(flatten(params))

    @rank_zero_only
    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Note the best checkpoint and the metrics it was saved with."""
        if self._log_checkpoint:
            self._best.note(checkpoint_callback, trainer=self._trainer, metrics=self._newest)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Send what is left, end the MLflow run, and say what could not be sent."""
        if not self._delivery.is_open:
            return
        self._put_config()
        self._put_run_manifest()
        self._put_best_checkpoints()
        self._delivery.end(as_run_status(status), timeout_s=self._flush_timeout_s)

    # what lightkit's command line, models and callbacks call where a logger has it

    @rank_zero_only
    def log_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Tag the run with the code and the data that it was made from."""
        self._delivery.put_tags({**tags_of(manifest), **({"run_folder": str(self._run.folder)} if self._run else {})})
        self._manifest_logged = True

    @rank_zero_only
    def add_picture(self, name: str, image: Tensor, step: int) -> None:
        """Keep ``image``, uint8 ``(3, height, width)``, as ``pictures/<name>/step=<step>.png``."""
        from PIL import Image  # 0.1 s to import

        place = f"pictures/{as_key(name)}"
        path = self._delivery.aside(f"{place}/step={step:06d}.png")
        Image.fromarray(image.permute(1, 2, 0).cpu().numpy()).save(path)
        self._delivery.put_file(path, to=place)

    @rank_zero_only
    def record_fit_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Record what is known when training starts; belongs in ``on_fit_start``."""
        self._trainer = trainer
        self._put_run_manifest()
        self._put_config()
        self._delivery.put_tags({"Mode": "training"})
        self._delivery.put_params(fit_facts.params_at_start(trainer))
        self._delivery.put_text("model_summary.txt", fit_facts.summary_of(trainer, module))
        if self._log_model and type(trainer.strategy).__name__ not in _SHARDED:
            self._first_batch = FirstBatch(module)
            self._delivery.put("model")

    def record_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Record the metrics that Lightning keeps from loggers; belongs in ``on_train_epoch_end`` of every rank."""
        metrics = trainer.callback_metrics  # before ranks part: reading may reduce them over all
        self._put_missed_metrics()
        self._epoch_metrics = fit_facts.numbers(metrics), trainer.global_step

    @rank_zero_only
    def record_fit_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Record how training ended, and the model; belongs in ``on_fit_end``."""
        self._put_missed_metrics()
        self._delivery.put_metrics(fit_facts.stopping_at_end(trainer), trainer.global_step)
        if self._first_batch is None:
            return
        folder = self._delivery.aside("model")
        try:
            save_model(module, folder, first_batch=self._first_batch, mask=self.mask)
        except Exception as error:  # noqa: BLE001 - whatever the user's module raises when pickled, it is trained
            _log.warning("MLflow gets no model: %s cannot be saved (%s)", type(module).__name__, error)
        else:
            self._delivery.put("model_files", path=str(folder))
        self._first_batch = None

    def record_test_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Record the metrics of a test that Lightning keeps from loggers; belongs in ``on_test_end`` of every rank."""
        self.record_epoch_end(trainer, module)
        self._put_missed_metrics()
        self._put_testing()

    # what is put where

    @rank_zero_only
    def _put_missed_metrics(self) -> None:
        metrics, step = self._epoch_metrics
        self._epoch_metrics = {}, 0
        self._delivery.put_metrics({name: value for name, value in metrics.items() if name not in self._newest}, step)

    @rank_zero_only
    def _put_testing(self) -> None:
        self._delivery.put_tags({"Mode": "testing"})

    def _put_config(self) -> None:
        if self._run is None or not self._run.config_path.is_file():
            return
        if (digest := runs.digest(self._run.config_path)) != self._config_digest:
            self._config_digest = digest
            self._delivery.put_file(self._run.config_path, is_aside=False)

    def _put_run_manifest(self) -> None:
        if not self._manifest_logged and self._run is not None and self._run.manifest_path.is_file():
            self.log_manifest(json.loads(self._run.manifest_path.read_text()))

    def _put_best_checkpoints(self) -> None:
        for checkpoint, metrics in self._best.set_aside(self._delivery.aside("checkpoints")):
            for file in (checkpoint, metrics):
                self._delivery.put_file(file, to="checkpoints")
            # mlflow.pytorch.load_checkpoint() finds the file by this tag
            self._delivery.put_tags({"mlflow.latest_checkpoint_artifact": f"checkpoints/{checkpoint.name}"})
