"""From a run to a version in MLflow's registry: the model is built and loaded as for an export."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, cast

from lightkit import runs
from lightkit.cli.console import OutputMode, configure_console, print_line, quiet_libraries
from lightkit.cli.explaining import located
from lightkit.cli.export_options import ExportOptions
from lightkit.cli.export_screen import steps
from lightkit.cli.export_subject import subject_of
from lightkit.cli.lightning_cli import LightkitCLI
from lightkit.cli.refusals import refusals_told
from lightkit.cli.registry_address import address_of_run
from lightkit.commands.register import RegisterOptions
from lightkit.config import shown_path
from lightkit.distributed.process_group import process_group_left
from lightkit.errors import ConfigError, LightkitError
from lightkit.export.subject import Subject
from lightkit.registry.names import check_name
from lightkit.registry.packaging import Way, servable
from lightkit.registry.registering import Registered, register
from lightkit.registry.served import as_served
from lightkit.registry.store import Store, is_catalog, open_store

if TYPE_CHECKING:
    from lightkit.cli.context import RunContext

__all__ = ["register_run"]

_FEW_SAMPLES = 2  # for an example; the proof on many is that of an export


class _Built(LightkitCLI):
    """Builds the model and the data as `lightkit export` does, and leaves it at that."""

    def _run_subcommand(self, subcommand: str) -> None:
        """Do nothing."""


def register_run(session: RunContext, options: RegisterOptions) -> int:
    """Register the model of the session's run, and return the exit code.

    Args:
        session: As `lightkit export` has it.
        options: Name, aliases and format.

    Raises:
        ConfigError: If the config is wrong, the run has no checkpoint, or MLflow refuses.
        ExportError: If the model cannot be written so that it gives the same answers.
        ServerAway: If MLflow does not answer.
    """
    run, checkpoint = session.base, session.ckpt_path
    if run is None or checkpoint is None:  # the command asks for --run, which names both
        raise ConfigError("register: expected a run with a checkpoint. Say --run latest.")
    configure_console(session.mode, session.resolved.masked)
    quiet_libraries()
    address = address_of_run(options.tracking_uri, run, session.resolved)
    with open_store(address) as store:
        check_name(options.name, in_catalog=is_catalog(store.registry_uri))
        subject = as_served(_subject(session))
        print_line(f"model {subject.metadata.model}", session.mode)
        print_line(f"from  {shown_path(Path(checkpoint))}", session.mode)
        with steps(session.mode) as on_step:
            done = register(
                subject,
                store,
                name=options.name,
                aliases=options.aliases,
                way=cast("Way", options.format),
                run=run,
                checkpoint=Path(checkpoint),
                on_step=on_step,
            )
        _tell(done, store, subject, run, session.mode)
    return 0


def _subject(session: RunContext) -> Subject:
    """Build the model, load its weights, and find what it takes."""
    with session.stack, process_group_left():
        try:
            with refusals_told(session.resolved):
                built = _Built(session=session)
                read = ExportOptions.of({**session.options, "num-samples": str(_FEW_SAMPLES)})
                return subject_of(session, built.model, built.datamodule, read).subject
        except LightkitError as error:
            raise located(error, session.resolved) from error


def _tell(done: Registered, store: Store, subject: Subject, run: runs.Run, mode: OutputMode) -> None:
    """Say what is there now, and what to type next."""
    pointing = f" ({', '.join(done.aliases)})" if done.aliases else ""
    print_line(f"made  version {done.version} of {done.name}{pointing} in MLflow at {store.address.shown}", mode)
    for spec in subject.metadata.inputs:
        print_line(f"takes {spec.name}: {spec.dtype} {_sizes(spec.shape)}", mode)
    for spec in subject.metadata.outputs:
        print_line(f"gives {spec.name}: {spec.dtype} {_sizes(spec.shape)}", mode)
    if done.exports is not None:
        print_line(f"files {done.exports} in the artifacts of MLflow's run {done.run_id}", mode)
    else:
        print_line(
            f"      without exports; lightkit export --run {shlex.quote(shown_path(run.folder))} makes them", mode
        )
    if not servable(subject):
        print_line("      MLflow's server takes models of one tensor in and one out; this one is for load_model", mode)
        return
    reference = f"models:/{done.name}@{done.aliases[0]}" if done.aliases else f"models:/{done.name}/{done.version}"
    serve = shlex.join(["mlflow", "models", "serve", "-m", reference, "--env-manager", "local"])
    where = "" if "***@" in store.address.shown else f"MLFLOW_TRACKING_URI={shlex.quote(store.address.uri)} "
    print_line(f"next  {where}{serve}", mode)


def _sizes(shape: tuple[int | None, ...]) -> str:
    return f"({', '.join('any' if size is None else str(size) for size in shape)})"
