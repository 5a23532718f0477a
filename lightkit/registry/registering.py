"""Putting a model into MLflow's registry: its files, a version, the tags that lead back, and last the alias."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit import runs
from lightkit.errors import ConfigError
from lightkit.export.subject import Subject
from lightkit.registry.lineage import RECORD, best_metrics, gather_exports, origin_tags, training_of
from lightkit.registry.packaging import Way, package
from lightkit.registry.store import Store

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

__all__ = ["Registered", "register"]

_FINISHED = "FINISHED"


@dataclass(frozen=True)
class Registered:
    """A new version of a registered model.

    Args:
        name: The model's name.
        version: Its number.
        aliases: Those that point to it now.
        run_id: MLflow run that it belongs to.
        model_id: Logged model that it is made of.
        exports: Where in that run the exports are; None without any.
    """

    name: str
    version: str
    aliases: Sequence[str]
    run_id: str
    model_id: str
    exports: str | None


def register(
    subject: Subject,
    store: Store,
    *,
    name: str,
    aliases: Sequence[str],
    way: Way,
    run: runs.Run,
    checkpoint: Path,
    on_step: Callable[[str], None],
) -> Registered:
    """Log a model with its exports under the MLflow run of its training, and register it as a new version.

    The aliases move last: until everything is there they point to where they did.

    Args:
        subject: The model.
        store: Where to.
        name: Name of the registered model; made where it is new.
        aliases: Aliases for the new version.
        way: How the model is written; see `package`.
        run: The run that trained it.
        checkpoint: The weights' file.
        on_step: Gets a few words as each part begins.

    Raises:
        ExportError: If the model cannot be written so that it gives the same answers.
        ConfigError: If MLflow refuses it.
        RunLocked: If an export of the run is being written.
        ServerAway: If MLflow does not answer.
    """
    tags = origin_tags(run, checkpoint, subject.metadata)
    with tempfile.TemporaryDirectory(prefix="lightkit-register-") as place:
        folder, exports = Path(place) / "model", Path(place) / "exports"
        for left_out in gather_exports(run, tags["checkpoint_sha256"], exports):
            on_step(left_out)
        on_step(f"writing the model for MLflow ({way})")
        package(subject, folder, way=way)
        with store.busy("take the model"):
            run_id, experiment_id = _run_in_mlflow(store.client, run, tags)
            on_step(f"sending it to MLflow at {store.address.shown}")
            model_id = _log_model(store.client, folder, name=_plain(name), run_id=run_id, experiment_id=experiment_id)
        with store.busy(f"register a version of {name!r}"):
            version = _version(store.client, name, model_id=model_id, run_id=run_id, tags=tags)
            has_exports = (exports / RECORD).is_file()
            where = _log_exports(store.client, exports, run_id, name=name, version=version) if has_exports else None
            for alias in aliases:
                store.client.set_registered_model_alias(name, alias, version)
    return Registered(name, version, tuple(aliases), run_id, model_id, where)


def _run_in_mlflow(client: MlflowClient, run: runs.Run, tags: Mapping[str, str]) -> tuple[str, str]:
    """Find the MLflow run of the training, else the one that an earlier registration made, else make one.

    Returns:
        Its id, and that of its experiment.
    """
    from mlflow.exceptions import MlflowException  # mlflow takes 2 s to import

    if noted := training_of(run).get("run_id"):
        try:
            found = client.get_run(noted)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":  # of another store
                raise
        else:
            if found.info.lifecycle_stage == "active":
                return found.info.run_id, found.info.experiment_id
    experiment_id = _experiment(client, run)
    made = client.search_runs([experiment_id], f"tags.`lightkit.run` = '{run.id}'", max_results=1)
    if made:
        return made[0].info.run_id, experiment_id
    return _new_run(client, experiment_id, run, tags), experiment_id


def _experiment(client: MlflowClient, run: runs.Run) -> str:
    """Give the experiment that ``MLFLOW_EXPERIMENT_NAME`` names, else that of the run's name.

    Raises:
        ConfigError: If it was deleted.
    """
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or run.name
    found = client.get_experiment_by_name(name)
    if found is None:
        artifacts = _artifacts_of(client)
        return str(client.create_experiment(name, artifact_location=None if artifacts is None else str(artifacts)))
    if found.lifecycle_stage == "deleted":
        raise ConfigError(
            f"register: the experiment {name!r} was deleted in MLflow. Restore it with: mlflow experiments restore "
            f"-x {found.experiment_id}; or name another with MLFLOW_EXPERIMENT_NAME."
        )
    return str(found.experiment_id)


def _artifacts_of(client: MlflowClient) -> Path | None:
    from lightkit.loggers.mlflow_address import find_address  # beside the client, which knows only its URI

    return find_address(client.tracking_uri).artifacts


def _new_run(client: MlflowClient, experiment_id: str, run: runs.Run, tags: Mapping[str, str]) -> str:
    """Make an MLflow run for a training that MLflow did not record: its config, best metrics and origin."""
    from mlflow.entities import Metric, RunTag  # mlflow takes 2 s to import
    from mlflow.tracking.context.registry import resolve_tags

    own = {name: value for name, value in tags.items() if name != "class_names"}
    made = client.create_run(
        experiment_id, run_name=run.id, tags={**resolve_tags({}), **own, "lightkit.run": run.id}
    ).info.run_id
    now = int(time.time() * 1000)
    metrics = [Metric(key, value, now, 0) for key, value in best_metrics(run).items()]
    client.log_batch(made, metrics=metrics, tags=[RunTag("Mode", "registered after training")])
    if run.config_path.is_file():
        client.log_artifact(made, str(run.config_path))
    client.set_terminated(made, _FINISHED)
    return str(made)


def _log_model(client: MlflowClient, folder: Path, *, name: str, run_id: str, experiment_id: str) -> str:
    """Send a model's folder, as ``mlflow.pytorch.log_model`` does, without opening its run again.

    `log_model` in MLflow 3.17 needs an active run, which it sets to running and then to finished, with a new end.
    """
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus  # mlflow takes 2 s to import
    from mlflow.models import Model

    params = client.get_run(run_id).data.params
    model = client.create_logged_model(experiment_id, name, run_id, params=params)
    described = Model.load(str(folder))
    described.run_id, described.model_id, described.model_uuid = run_id, model.model_id, model.model_id
    described.artifact_path = model.artifact_location
    described.save(str(folder / "MLmodel"))
    client.log_model_artifacts(model.model_id, str(folder))
    client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=0)])
    client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    return str(model.model_id)


def _version(client: MlflowClient, name: str, *, model_id: str, run_id: str, tags: Mapping[str, str]) -> str:
    from mlflow.exceptions import MlflowException  # mlflow takes 2 s to import

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_ALREADY_EXISTS", "ALREADY_EXISTS"):
            raise
    made: Any = client.create_model_version(
        name, f"models:/{model_id}", run_id, tags=dict(tags), description=f"Run {tags['run']}", model_id=model_id
    )
    # As mlflow.register_model notes it, for the model's page.
    client.set_logged_model_tags(
        model_id, {"mlflow.modelVersions": json.dumps([{"name": made.name, "version": made.version}])}
    )
    return str(made.version)


def _log_exports(client: MlflowClient, exports: Path, run_id: str, *, name: str, version: str) -> str:
    """Send the exports to a folder of this version in the run, so that a later one does not replace them."""
    place = f"export/{name}-{version}"
    for file in sorted(exports.iterdir()):
        client.log_artifact(run_id, str(file), place)
    client.set_model_version_tag(name, version, "exports", f"runs:/{run_id}/{place}")
    return place


def _plain(name: str) -> str:
    """Give a name that a logged model can have: MLflow takes no ``/ : . % " '`` there."""
    return "".join("-" if character in "/:.%\"'" else character for character in name)
