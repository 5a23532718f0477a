"""Register a run's model in MLflow: for `lightkit register`, and for `lightkit promote` where it is not registered."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from lightkit.cli.console import configure_console, print_line, quiet_libraries
from lightkit.cli.context import RunContext
from lightkit.cli.model_builder import build_model, translate_model_errors
from lightkit.cli.model_export import load_model, print_step
from lightkit.config import shown_path
from lightkit.export.options import ExportOptions
from lightkit.export.target import make_target
from lightkit.registry.lineage import register
from lightkit.registry.package import PackageFormat, add_preprocessing, is_servable
from lightkit.registry.store import address_of_run, check_name, open_registry

_NUM_SAMPLES = 2  # for an example; an export proves itself on many


def register_run(
    context: RunContext, name: str, aliases: Sequence[str], *, form: PackageFormat, tracking_uri: str | None
) -> None:
    """Build a run's model, register it as a new version, and print the version.

    Args:
        context: Context of the run, as of `open_run_context`.
        name: Name of the registered model.
        aliases: Aliases for the new version.
        form: File format of the model.
        tracking_uri: Value of ``--tracking-uri``.

    Raises:
        ConfigError: If the config is wrong, the run has no checkpoint, or MLflow refuses.
        ExportError: If the model cannot be written so that it gives the same answers.
        ServerAway: If MLflow does not answer.
    """
    run, mode = context.base, context.mode
    assert run is not None  # the command asks for a run, which names both
    assert context.ckpt_path is not None
    checkpoint = Path(context.ckpt_path)
    configure_console(mode, context.resolved.masked)
    quiet_libraries()
    with open_registry(address_of_run(tracking_uri, run, context.resolved)) as registry:
        check_name(name, in_catalog=registry.in_catalog)
        with translate_model_errors(context):
            module, data = build_model(context)
            source = {**load_model(module, data, checkpoint), "run": f"{run.name}/{run.id}"}
            options = ExportOptions.parse({**context.options, "num-samples": str(_NUM_SAMPLES)})
            subject = add_preprocessing(make_target(module, data, options, source=source))
        print_line(f"model {subject.metadata.model}", mode)
        print_line(f"from  {shown_path(checkpoint)}", mode)
        version, _, exports = register(
            subject,
            registry,
            name=name,
            aliases=aliases,
            form=form,
            run=run,
            checkpoint=checkpoint,
            on_step=partial(print_step, mode),
        )
        address = registry.address
        pointing = f" ({', '.join(aliases)})" if aliases else ""
        with_exports = ", with its exports" if exports is not None else ""
        print_line(f"made  version {version} of {name}{pointing} in MLflow at {address.shown}{with_exports}", mode)
        for word, specs in (("takes", subject.metadata.inputs), ("gives", subject.metadata.outputs)):
            for spec in specs:
                sizes = ", ".join("any" if size is None else str(size) for size in spec.shape)
                print_line(f"{word} {spec.name}: {spec.dtype} ({sizes})", mode)
        if not is_servable(subject):
            print_line("note  MLflow's server takes models of one tensor in and one out; load_model takes this", mode)
            return
        uri = f"models:/{name}{f'@{aliases[0]}' if aliases else f'/{version}'}"
        where = "" if "***@" in address.shown else f"MLFLOW_TRACKING_URI={shlex.quote(address.uri)} "
        serve = ["mlflow", "models", "serve", "-m", uri, "--env-manager", "local"]
        print_line(f"next  {where}{shlex.join(serve)}", mode)
