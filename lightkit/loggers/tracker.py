"""The MLflow server's side: how a run is opened there, and what each record becomes."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit.errors import ConfigError, LightkitError
from lightkit.loggers.address import Address, without_secret
from lightkit.loggers.outbox import Record, Refused, Unreachable

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

__all__ = ["Tracker"]

_log = logging.getLogger("lightkit.loggers")

# MLflow's own patience is seven tries over two minutes; here the outbox tries again, and a start should fail soon.
_PATIENCE = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
_UPLOAD_TIMEOUT_S = 600  # the server answers only when it has stored the whole file, wherever that is
_TRY_AGAIN = {401, 403, 407, 408, 425, 429}  # 4xx that can pass: credentials are renewed, limits end
_MAX_PARAMS_TAGS = 100  # mlflow.utils.validation.MAX_PARAMS_TAGS_PER_BATCH


class Tracker:
    """One run on the server.

    Args:
        address: Where the server is.
        state: File that keeps the MLflow run's id for the next resume; None keeps nothing.
    """

    def __init__(self, address: Address, *, state: Path | None) -> None:
        self.address = address
        self._state = state
        self.run_id = self.experiment_id = ""
        self.model_id: str | None = None
        self.params: dict[str, str] = {}
        self.continued = False
        for name, value in _PATIENCE.items():
            self._patient = os.environ.setdefault(name, value) == value
        for chatty in ("mlflow.store.db.utils", "alembic"):  # a page of lines about tables that are made
            logging.getLogger(chatty).setLevel(logging.WARNING)
        self.client: MlflowClient

    def open(self, *, experiment: str, run_name: str | None, tags: dict[str, str]) -> None:
        """Continue the run that the state file names, or start one.

        Raises:
            LightkitError: If the server does not answer.
        """
        from mlflow.tracking import MlflowClient  # mlflow takes 2 s to import

        try:
            if self.address.artifacts is not None:
                self.address.artifacts.parent.mkdir(parents=True, exist_ok=True)
            self.client = MlflowClient(self.address.uri)
            self.continued = self._continue_run()
            if not self.continued:
                self._start_run(experiment, run_name, tags)
        except LightkitError:
            raise
        except Exception as error:
            cause = _as_outcome(error)
            raise LightkitError(
                f"MLflow at {self.address.shown} does not take this run: {cause}. The address comes from "
                f"{self.address.origin}. Start the server, or correct the address, or remove the logger MLflow; "
                f"nothing has been trained yet."
            ) from error

    def _continue_run(self) -> bool:
        from mlflow.exceptions import MlflowException  # mlflow takes 2 s to import

        if self._state is None or not self._state.is_file():
            return False
        kept = json.loads(self._state.read_text())
        try:
            run = self.client.get_run(kept["run_id"])
        except MlflowException as error:
            if isinstance(_as_outcome(error), Unreachable):
                raise
            run = None
        if run is None or run.info.lifecycle_stage == "deleted":
            _log.warning("MLflow at %s no longer has run %s; a new one is started", self.address.shown, kept["run_id"])
            return False
        self.run_id, self.experiment_id = run.info.run_id, run.info.experiment_id
        self.model_id, self.params = kept.get("model_id"), dict(run.data.params)
        return True

    def _start_run(self, experiment: str, run_name: str | None, tags: dict[str, str]) -> None:
        from mlflow.tracking.context.registry import resolve_tags  # mlflow takes 2 s to import

        self.experiment_id = self._experiment(experiment)
        run = self.client.create_run(self.experiment_id, tags=resolve_tags(tags), run_name=run_name)
        self.run_id = run.info.run_id
        self._save_state()

    def _experiment(self, name: str) -> str:
        from mlflow.exceptions import MlflowException  # mlflow takes 2 s to import

        if (found := self.client.get_experiment_by_name(name)) is None:
            location = None if self.address.artifacts is None else str(self.address.artifacts)
            try:
                return str(self.client.create_experiment(name, artifact_location=location))
            except MlflowException:  # another process may have made it meanwhile
                if (found := self.client.get_experiment_by_name(name)) is None:
                    raise
        if found.lifecycle_stage == "deleted":
            raise ConfigError(
                f"experiment_name of the logger MLflow is {name!r}, which was deleted at {self.address.shown}. "
                f"Restore it with: mlflow experiments restore -x {found.experiment_id}; or choose another name."
            )
        return str(found.experiment_id)

    def _save_state(self) -> None:
        if self._state is None:
            return
        self._state.parent.mkdir(parents=True, exist_ok=True)
        kept = {"tracking_uri": self.address.shown, "experiment_id": self.experiment_id, "run_id": self.run_id}
        aside = self._state.with_name(self._state.name + ".part")
        aside.write_text(json.dumps({**kept, "model_id": self.model_id}, indent=2) + "\n")
        aside.replace(self._state)

    def deliver(self, records: list[Record]) -> None:
        """Send records of one kind.

        Raises:
            Unreachable: If the server may take them later.
            Refused: If it never will.
        """
        try:
            getattr(self, f"_send_{records[0]['kind']}")(records)
        except Exception as error:
            raise _as_outcome(error) from error

    def _send_metrics(self, records: list[Record]) -> None:
        from mlflow.entities import Metric  # mlflow takes 2 s to import

        metrics = [
            Metric(key, value, time_ms, step, model_id=self.model_id)
            for record in records
            for key, value, time_ms, step in record["items"]
        ]
        self.client.log_batch(self.run_id, metrics=metrics)

    def _send_params(self, records: list[Record]) -> None:
        from mlflow.entities import Param  # mlflow takes 2 s to import

        for some in _chunks(records[0]["items"]):
            self.client.log_batch(self.run_id, params=[Param(key, value) for key, value in some])

    def _send_tags(self, records: list[Record]) -> None:
        from mlflow.entities import RunTag  # mlflow takes 2 s to import

        for some in _chunks(records[0]["items"]):
            self.client.log_batch(self.run_id, tags=[RunTag(key, value) for key, value in some])

    def _send_artifact(self, records: list[Record]) -> None:
        path, staged = Path(records[0]["path"]), records[0]["staged"]
        if staged and not path.exists():
            return  # sent by a process that was killed before it could note so
        with self._time_for_uploads():
            self.client.log_artifact(self.run_id, str(path), records[0]["to"])
        if staged:
            path.unlink(missing_ok=True)

    def _send_status(self, records: list[Record]) -> None:
        if (status := records[0]["status"]) == "RUNNING":
            self.client.update_run(self.run_id, status=status)
        else:
            self.client.set_terminated(self.run_id, status, end_time=records[0]["time_ms"])

    def _send_model(self, _records: list[Record]) -> None:
        """Announce the model, so that the metrics that follow belong to it; its files come at the end."""
        from mlflow.tracking.context.registry import resolve_tags  # mlflow takes 2 s to import

        if self.model_id is not None and self._model_is_pending(self.model_id):
            return
        tags = resolve_tags({})
        model = self.client.create_logged_model(self.experiment_id, "model", self.run_id, tags=tags)
        self.model_id = model.model_id
        self._save_state()

    def _model_is_pending(self, model_id: str) -> bool:
        from mlflow.exceptions import MlflowException  # mlflow takes 2 s to import

        try:
            return str(self.client.get_logged_model(model_id).status) == "PENDING"
        except MlflowException as error:
            if isinstance(_as_outcome(error), Unreachable):
                raise
            return False  # somebody deleted it

    def _send_model_files(self, records: list[Record]) -> None:
        from mlflow.entities import LoggedModelOutput, LoggedModelStatus  # mlflow takes 2 s to import
        from mlflow.models import Model

        folder = Path(records[0]["path"])
        if not folder.exists():
            return  # as for artifacts
        model = self.client.get_logged_model(self.model_id or "")
        described = Model.load(str(folder))
        described.run_id, described.model_id, described.model_uuid = self.run_id, model.model_id, model.model_id
        described.artifact_path = model.artifact_location
        described.save(str(folder / "MLmodel"))
        with self._time_for_uploads():
            self.client.log_model_artifacts(model.model_id, str(folder))
        self.client.log_outputs(self.run_id, [LoggedModelOutput(model.model_id, step=0)])
        self.client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
        shutil.rmtree(folder)

    @contextmanager
    def _time_for_uploads(self) -> Iterator[None]:
        if not self._patient:  # the user has set a limit, which holds
            yield
            return
        name = "MLFLOW_HTTP_REQUEST_TIMEOUT"
        before = os.environ[name]
        os.environ[name] = str(_UPLOAD_TIMEOUT_S)
        try:
            yield
        finally:
            os.environ[name] = before


def _as_outcome(error: Exception) -> Unreachable | Refused:
    """Whether the server may take later what failed with ``error``."""
    from mlflow.exceptions import MlflowException  # mlflow takes 2 s to import
    from requests import RequestException

    words = without_secret(" ".join(str(error).split()))[:300] or type(error).__name__
    if isinstance(error, MlflowException):
        status = int(error.get_http_status_code())  # type: ignore[no-untyped-call]
    elif isinstance(error, RequestException):
        status = 503 if error.response is None else error.response.status_code
    else:  # files: one that is gone stays gone, a full disk does not
        status = 503 if isinstance(error, OSError) and not isinstance(error, FileNotFoundError) else 400
    return Unreachable(words) if status >= 500 or status in _TRY_AGAIN else Refused(words)


def _chunks(items: dict[str, str]) -> Iterator[list[tuple[str, Any]]]:
    rest = iter(items.items())
    while some := list(islice(rest, _MAX_PARAMS_TAGS)):
        yield some
