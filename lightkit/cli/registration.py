"""Register a run's model in MLflow.

Its files, the MLflow run of its training, and tags that lead back to both.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from lightkit.callbacks.checkpoint_io import digest_weights
from lightkit.callbacks.class_names import read_trained_classes
from lightkit.cli.console import configure_console, print_line, print_step, quiet_libraries
from lightkit.cli.model_builder import build_model, translate_model_errors
from lightkit.cli.model_loading import load_model
from lightkit.cli.stage_config import StageConfig
from lightkit.config import shown_path
from lightkit.export.metadata import Metadata
from lightkit.export.options import ExportOptions
from lightkit.export.target import ExportTarget, make_target
from lightkit.loggers.mlflow_address import Address
from lightkit.registry.model_version import collect_exports, origin_tags, write_version
from lightkit.registry.package import PackageFormat, add_preprocessing, is_servable, write_package
from lightkit.registry.row_model import describe_interface
from lightkit.registry.store import (
    CHECKPOINT,
    WEIGHTS,
    address_of_run,
    check_name,
    open_registry,
)
from lightkit.reports.facts import read_facts, select_checkpoint
from lightkit.reports.pages import describe_model, render_card

_NUM_SAMPLES = 2  # for an example; an export proves itself on many


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
    run, checkpoint = stage_config.finished_run
    mode = stage_config.mode
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
        tags = origin_tags(run, checkpoint, subject.metadata) | {
            WEIGHTS: digest_weights(checkpoint)
        }
        folder = Path(temporary) / "model"
        exports = Path(temporary) / "exports"
        for left_out in collect_exports(run, tags[CHECKPOINT], exports):
            on_step(left_out)
        on_step(f"writing the model for MLflow ({form})")
        write_package(subject, folder, form=form)
        facts = read_facts(run)
        if facts.sha256 != tags[CHECKPOINT]:
            facts = select_checkpoint(facts, tags[CHECKPOINT])
        (folder / "README.md").write_text(render_card(facts), encoding="utf-8")
        version, has_exports = write_version(
            registry,
            run,
            name,
            aliases,
            files=folder,
            exports=exports,
            tags=tags,
            description=f"Run {tags['run']}\n\n{describe_model(facts)}",
            on_step=on_step,
        )
    pointing = f" ({', '.join(aliases)})" if aliases else ""
    with_exports = ", with its exports" if has_exports else ""
    print_line(
        f"made  version {version} of {name}{pointing} in MLflow at {address.shown}{with_exports}",
        mode,
    )
    for line in _describe_interface(subject.metadata):
        print_line(line, mode)
    uri = f"models:/{name}@{aliases[0]}" if aliases else f"models:/{name}/{version}"
    print_line(_describe_serving(subject, uri, address), mode)


def _describe_serving(subject: ExportTarget, uri: str, address: Address) -> str:
    """Write the command that serves a model, or why MLflow's server does not."""
    if not is_servable(subject):
        text = "MLflow's server takes models of one tensor in and one out; load_model takes this"
        return f"note  {text}"
    at = "" if "***@" in address.shown else f"MLFLOW_TRACKING_URI={shlex.quote(address.uri)} "
    serve = shlex.join(["mlflow", "models", "serve", "-m", uri, "--env-manager", "local"])
    return f"next  {at}{serve}"


def _describe_interface(metadata: Metadata) -> list[str]:
    """Describe what a model takes and gives, a line each."""
    if metadata.rows is not None:
        taken, answered = describe_interface(metadata)
        return [
            f"takes rows with the columns {taken}; lightkit prepares them, where the model is"
            " loaded",
            f"gives {answered}",
        ]
    lines = []
    for word, specs in (("takes", metadata.inputs), ("gives", metadata.outputs)):
        for spec in specs:
            sizes = ", ".join("any" if size is None else str(size) for size in spec.shape)
            lines.append(f"{word} {spec.name}: {spec.dtype} ({sizes})")
    return lines
