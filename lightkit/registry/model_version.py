"""A version of a registered model: its files, the MLflow run of its training, and its tags."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightkit import runs
from lightkit.errors import DataError
from lightkit.export.exporter import lock_folder
from lightkit.export.metadata import RECORD, Metadata, check_digest, read_record
from lightkit.loggers.mlflow_address import (
    UniqueKeys,
    find_or_create_experiment,
    manifest_tags,
    send_model_files,
)
from lightkit.registry.store import CHECKPOINT, Registry, read_aliases, tracked_run
from lightkit.runs.files import write_json
from lightkit.runs.scores import find_best_checkpoint
from lightkit.version import __version__

_MAX_TAG_CHARS = 5000  # the smallest limit of a tag among MLflow's stores
_MAX_DESCRIPTION_CHARS = 5000  # of a version in MLflow's tables


def write_version(
    registry: Registry,
    run: runs.Run,
    name: str,
    aliases: Sequence[str],
    *,
    files: Path,
    exports: Path,
    tags: Mapping[str, str],
    description: str,
    on_step: Callable[[str], object],
) -> tuple[str, bool]:
    """Write a new version of a registered model.

    The aliases move last: until everything is there they point to where they did. A process that is
    killed before leaves a version without the digest of its checkpoint, which no promotion takes.

    Args:
        registry: MLflow.
        run: The run whose model it is.
        name: Name of the registered model; created if new.
        aliases: Aliases for the new version.
        files: Folder of the model's files.
        exports: Folder of the exports of the checkpoint, as `collect_exports` leaves it.
        tags: Tags of the version.
        description: Its description, which is cut to what MLflow takes.
        on_step: Called with the step that begins.

    Returns:
        The number of the version, and whether it has exports.

    Raises:
        ConfigError: If MLflow refuses.
        ServerAway: If MLflow does not answer.
    """
    client = registry.client
    with registry.attempt("take the model"):
        run_id, experiment_id = _find_or_create_run(registry, run, tags)
    # outside: a closed pipe is no error of MLflow
    on_step(f"sending it to MLflow at {registry.address.shown}")
    with registry.attempt("take the model"):
        plain_name = re.sub("[/:.%\"']", "-", name)
        params = client.get_run(run_id).data.params
        model = client.create_logged_model(experiment_id, plain_name, run_id, params=params)
        send_model_files(client, run_id, model, files)
    with registry.attempt(f"register a version of {name!r}"):
        version = _create_version(
            registry,
            name,
            model_id=model.model_id,
            run_id=run_id,
            tags={key: value for key, value in tags.items() if key != CHECKPOINT},
            description=description[:_MAX_DESCRIPTION_CHARS],
        )
        where = f"export/{name}-{version}"  # so that a later version's exports do not replace them
        has_exports = _send_exports(client, run_id, exports, where)
        if has_exports:
            client.set_model_version_tag(name, version, "exports", f"runs:/{run_id}/{where}")
        client.set_model_version_tag(name, version, CHECKPOINT, tags[CHECKPOINT])
        for alias in aliases:
            client.set_registered_model_alias(name, alias, version)
    return version, has_exports


def origin_tags(run: runs.Run, checkpoint: Path, metadata: Metadata) -> dict[str, str]:
    """Make the tags of a version: its run, code, data, checkpoint and best score.

    As far as they are known.

    Args:
        run: The run.
        checkpoint: File of the weights.
        metadata: Metadata of the model; class names that are too long for a tag stand in it alone.
    """
    manifest = runs.read_json(run.manifest_path) or {}
    path = checkpoint.resolve()
    tags = {
        name: value
        for name, value in manifest_tags(manifest).items()
        if not name.startswith("mlflow.")
    }
    tags |= {
        "run": f"{run.name}/{run.id}",
        "run_folder": str(run.folder),
        "checkpoint": str(
            path.relative_to(run.folder) if path.is_relative_to(run.folder) else path
        ),
        CHECKPOINT: metadata.source.get("sha256") or runs.digest_checkpoint(checkpoint),
        "lightkit": __version__,
        "output_kind": metadata.output_kind,
    }
    tags |= _tag_best_score(run, path)
    if metadata.class_names is not None:
        names = json.dumps(metadata.class_names)
        if len(names) <= _MAX_TAG_CHARS:
            tags["class_names"] = names
    return tags


def _tag_best_score(run: runs.Run, path: Path) -> dict[str, str]:
    """Return the tag of the best score, where the checkpoint is the one that has it."""
    summary = runs.read_json(run.summary_path) or {}
    best = summary.get("best") or {}
    is_known = best.get("monitor") and best.get("value") is not None
    if is_known and find_best_checkpoint(run, summary).resolve() == path:
        return {f"best.{best['monitor']}": f"{best['value']:.6g}"}
    return {}


def collect_exports(run: runs.Run, checkpoint_digest: str, target: Path) -> list[str]:
    """Copy the exports of a checkpoint, with an ``export.json`` of these alone.

    Args:
        run: The run.
        checkpoint_digest: Digest of the checkpoint.
        target: Folder for the copies; created if there are any.

    Returns:
        Entries of the run's ``export.json`` that were left out, in words.

    Raises:
        RunLocked: If an export is writing there.
    """
    folder = run.folder / "export"
    if not (folder / RECORD).is_file():
        return []
    taken = {}
    left_out = []
    with lock_folder(folder):
        for name, entry in read_record(folder).items():
            if not _is_of_checkpoint(
                folder / name, entry, checkpoint_digest, has_record="/" not in name
            ):
                left_out.append(
                    f"{folder / name} is not this checkpoint's, and is left"
                    " out; `lightkit export` renews it"
                )
                continue
            target.mkdir(exist_ok=True)
            for part in (name, runs.find_value(entry, "data", "file")):
                if part is not None:
                    (target / part).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(folder / part, target / part)
            taken[name] = entry
    if taken:
        write_json(target / RECORD, {"schema": 1, "artefacts": taken})
    return left_out


def _is_of_checkpoint(
    file: Path, entry: Mapping[str, Any], checkpoint_digest: str, *, has_record: bool
) -> bool:
    """Return whether an export is of a checkpoint, and as it was written.

    Args:
        file: The file.
        entry: Its entry in ``export.json``.
        checkpoint_digest: Digest of the checkpoint.
        has_record: Whether there is a record in its folder; there is none in that of a format of
            the module's own.
    """
    if runs.find_value(entry, "source", "sha256") != checkpoint_digest:
        return False
    if not has_record and not (file.is_file() and runs.digest(file) == entry.get("sha256")):
        return False
    try:
        check_digest(file)
    except DataError:
        return False
    return True


def _find_or_create_run(
    registry: Registry, run: runs.Run, tags: Mapping[str, str]
) -> tuple[str, str]:
    """Find the MLflow run of the training, or of an earlier registration, or create one.

    Returns:
        Its id, and that of its experiment.

    Raises:
        ConfigError: If its experiment was deleted.
    """
    from mlflow.entities import Metric, RunTag  # 2 s
    from mlflow.tracking.context.registry import resolve_tags

    client = registry.client
    tracked = _find_tracked_run(registry, run)
    if tracked is not None:
        return tracked.info.run_id, tracked.info.experiment_id
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or run.name
    experiment_id = find_or_create_experiment(
        client, name, address=registry.address, setting="register, MLFLOW_EXPERIMENT_NAME"
    )
    earlier = client.search_runs(
        [experiment_id], f"tags.`lightkit.run` = '{run.id}'", max_results=1
    )
    if earlier:
        return earlier[0].info.run_id, experiment_id
    own = {name: value for name, value in tags.items() if name != "class_names"} | {
        "lightkit.run": run.id
    }
    run_id = client.create_run(
        experiment_id, run_name=run.id, tags={**resolve_tags({}), **own}
    ).info.run_id
    now = int(time.time() * 1000)
    best = runs.find_value(runs.read_json(run.summary_path), "metrics", "best") or {}
    keys = UniqueKeys()
    metrics = [
        Metric(keys.key_of(key), float(value), now, 0)
        for key, value in best.items()
        if isinstance(value, (int, float))
    ]
    client.log_batch(run_id, metrics=metrics, tags=[RunTag("Mode", "registered after training")])
    if run.config_path.is_file():
        client.log_artifact(run_id, str(run.config_path))
    client.set_terminated(run_id, "FINISHED")
    return str(run_id), experiment_id


def _find_tracked_run(registry: Registry, run: runs.Run) -> Any:
    """Find the MLflow run that the training has recorded in.

    None where it is deleted, or of another store.
    """
    from mlflow.exceptions import MlflowException  # 2 s

    noted = tracked_run(run).get("run_id")
    if not noted:
        return None
    try:
        tracked = registry.client.get_run(noted)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":  # of another store
            raise
        return None
    return tracked if tracked.info.lifecycle_stage == "active" else None


def _create_version(
    registry: Registry,
    name: str,
    *,
    model_id: str,
    run_id: str,
    tags: Mapping[str, str],
    description: str,
) -> str:
    from mlflow.exceptions import MlflowException  # 2 s

    client = registry.client
    if read_aliases(registry, name) is None:
        try:
            client.create_registered_model(name)
        except MlflowException as error:
            # of another process just now
            if error.error_code not in ("RESOURCE_ALREADY_EXISTS", "ALREADY_EXISTS"):
                raise
    created: Any = client.create_model_version(
        name,
        f"models:/{model_id}",
        run_id,
        tags=dict(tags),
        description=description,
        model_id=model_id,
    )
    # As mlflow.register_model notes it, for the model's page.
    versions = json.dumps([{"name": created.name, "version": created.version}])
    client.set_logged_model_tags(model_id, {"mlflow.modelVersions": versions})
    return str(created.version)


def _send_exports(client: Any, run_id: str, exports: Path, where: str) -> bool:
    """Send the exports of the checkpoint as artefacts of a run; return whether there are any."""
    if not (exports / RECORD).is_file():
        return False
    for file in sorted(exports.iterdir()):
        client.log_artifact(run_id, str(file), where)
    return True
