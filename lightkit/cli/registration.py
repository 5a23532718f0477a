"""Register a run's model in MLflow.

Its files, the MLflow run of its training, and tags that lead back to both.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lightkit import runs
from lightkit.callbacks.checkpoint_io import digest_weights
from lightkit.callbacks.class_names import read_trained_classes
from lightkit.cli.console import OutputMode, configure_console, print_line, quiet_libraries
from lightkit.cli.model_builder import build_model, translate_model_errors
from lightkit.cli.model_export import load_model, print_step
from lightkit.cli.stage_config import StageConfig
from lightkit.config import shown_path
from lightkit.errors import DataError
from lightkit.export.exporter import lock_folder
from lightkit.export.metadata import RECORD, Metadata, TensorSpec, check_digest, read_record
from lightkit.export.options import ExportOptions
from lightkit.export.target import make_target
from lightkit.loggers.mlflow_address import (
    UniqueKeys,
    find_or_create_experiment,
    manifest_tags,
    send_model_files,
)
from lightkit.registry.package import PackageFormat, add_preprocessing, is_servable, write_package
from lightkit.registry.row_model import describe_interface
from lightkit.registry.store import (
    WEIGHTS,
    Registry,
    address_of_run,
    check_name,
    open_registry,
    read_aliases,
    tracked_run,
)
from lightkit.reports.facts import read_facts, select_checkpoint
from lightkit.reports.pages import describe_model, render_card
from lightkit.runs.files import write_json
from lightkit.runs.scores import find_best_checkpoint
from lightkit.version import __version__

_NUM_SAMPLES = 2  # for an example; an export proves itself on many
_MAX_TAG_CHARS = 5000  # the smallest limit of a tag among MLflow's stores
_MAX_DESCRIPTION_CHARS = 5000  # of a version in MLflow's tables


def register_run(
    stage_config: StageConfig,
    name: str,
    aliases: Sequence[str],
    *,
    form: PackageFormat,
    tracking_uri: str | None,
) -> None:
    """Register a run's model with its exports as a new version, and print the version.

    The aliases move last: until everything is there they point to where they did.

    Args:
        stage_config: Config of the run, as of `open_run_config`.
        name: Name of the registered model; created if new.
        aliases: Aliases for the new version.
        form: File format of the model; see `write_package`.
        tracking_uri: Value of ``--tracking-uri``.

    Raises:
        ConfigError: If the config is wrong, the run has no checkpoint, or MLflow refuses.
        ExportError: If the model cannot be written so that it gives the same answers.
        RunLocked: If an export of the run is being written.
        ServerAway: If MLflow does not answer.
    """
    run = stage_config.base
    mode = stage_config.mode
    assert run is not None  # the command asks for a run, which names both
    assert stage_config.ckpt_path is not None
    checkpoint = Path(stage_config.ckpt_path)
    on_step = partial(print_step, mode)
    configure_console(mode, stage_config.resolved.masked)
    quiet_libraries()
    with (
        open_registry(address_of_run(tracking_uri, run, stage_config.resolved)) as registry,
        tempfile.TemporaryDirectory(prefix="lightkit-register-") as temporary,
    ):
        check_name(name, in_catalog=registry.in_catalog)
        with translate_model_errors(stage_config.resolved) as stack:
            module, data = build_model(stage_config, stack)
            source = {**load_model(module, data, checkpoint), "run": f"{run.name}/{run.id}"}
            options = ExportOptions.parse(
                {**stage_config.options, "num-samples": str(_NUM_SAMPLES)}
            )
            names = read_trained_classes(checkpoint).outputs
            subject = add_preprocessing(
                make_target(module, data, options, source=source, class_names=names)
            )
        print_line(f"model {subject.metadata.model}", mode)
        print_line(f"from  {shown_path(checkpoint)}", mode)
        address = registry.address
        client = registry.client
        tags = origin_tags(run, checkpoint, subject.metadata) | {
            WEIGHTS: digest_weights(checkpoint)
        }
        folder = Path(temporary) / "model"
        exports = Path(temporary) / "exports"
        for left_out in collect_exports(run, tags["checkpoint_sha256"], exports):
            on_step(left_out)
        on_step(f"writing the model for MLflow ({form})")
        write_package(subject, folder, form=form)
        facts = read_facts(run)
        if facts.sha256 != tags["checkpoint_sha256"]:
            facts = select_checkpoint(facts, tags["checkpoint_sha256"])
        (folder / "README.md").write_text(render_card(facts), encoding="utf-8")
        with registry.attempt("take the model"):
            run_id, experiment_id = _find_or_create_run(registry, run, tags)
        # outside: a closed pipe is no error of MLflow
        on_step(f"sending it to MLflow at {address.shown}")
        with registry.attempt("take the model"):
            plain_name = "".join("-" if character in "/:.%\"'" else character for character in name)
            params = client.get_run(run_id).data.params
            model = client.create_logged_model(experiment_id, plain_name, run_id, params=params)
            send_model_files(client, run_id, model, folder)
        with registry.attempt(f"register a version of {name!r}"):
            description = f"Run {tags['run']}\n\n{describe_model(facts)}"[:_MAX_DESCRIPTION_CHARS]
            version = _create_version(
                registry,
                name,
                model_id=model.model_id,
                run_id=run_id,
                tags=tags,
                description=description,
            )
            where = (  # so that a later version's exports do not replace them
                f"export/{name}-{version}"
            )
            has_exports = _send_exports(client, run_id, exports, where)
            if has_exports:
                client.set_model_version_tag(name, version, "exports", f"runs:/{run_id}/{where}")
            for alias in aliases:
                client.set_registered_model_alias(name, alias, version)
    pointing = f" ({', '.join(aliases)})" if aliases else ""
    with_exports = ", with its exports" if has_exports else ""
    print_line(
        f"made  version {version} of {name}{pointing} in MLflow at {address.shown}{with_exports}",
        mode,
    )
    if subject.metadata.rows is None:
        _print_specs("takes", subject.metadata.inputs, mode)
        _print_specs("gives", subject.metadata.outputs, mode)
    else:
        taken, answered = describe_interface(subject.metadata)
        print_line(
            f"takes rows with the columns {taken}; lightkit prepares"
            " them, where the model is loaded",
            mode,
        )
        print_line(f"gives {answered}", mode)
    if not is_servable(subject):
        print_line(
            "note  MLflow's server takes models of one tensor in and"
            " one out; load_model takes this",
            mode,
        )
        return
    uri = f"models:/{name}{f'@{aliases[0]}' if aliases else f'/{version}'}"
    at = "" if "***@" in address.shown else f"MLFLOW_TRACKING_URI={shlex.quote(address.uri)} "
    print_line(
        "next "
        f" {at}{shlex.join(['mlflow', 'models', 'serve', '-m', uri, '--env-manager', 'local'])}",
        mode,
    )


def _print_specs(word: str, specs: Iterable[TensorSpec], mode: OutputMode) -> None:
    """Print name, type and sizes of a model's inputs or outputs, a line each."""
    for spec in specs:
        sizes = ", ".join("any" if size is None else str(size) for size in spec.shape)
        print_line(f"{word} {spec.name}: {spec.dtype} ({sizes})", mode)


def _send_exports(client: Any, run_id: str, exports: Path, where: str) -> bool:
    """Send the exports of the checkpoint as artefacts of a run; return whether there are any."""
    if not (exports / RECORD).is_file():
        return False
    for file in sorted(exports.iterdir()):
        client.log_artifact(run_id, str(file), where)
    return True


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
        "checkpoint_sha256": metadata.source.get("sha256") or runs.digest_checkpoint(checkpoint),
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
