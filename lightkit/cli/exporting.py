"""`lightkit export`: a run's model, or one that is logged in MLflow, to files that are proved equal to it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytorch_lightning import LightningDataModule, LightningModule

from lightkit.cli.console import OutputMode, choose_output_mode, configure_console, quiet_libraries
from lightkit.cli.export_options import ExportOptions
from lightkit.cli.export_screen import begun, steps, told
from lightkit.cli.export_subject import Exportable, subject_of, write_options
from lightkit.cli.path_checks import explain_unwritable
from lightkit.config import Arguments, shown_path
from lightkit.errors import ConfigError, ExportError
from lightkit.export.exporting import ExportsFailed, export
from lightkit.export.parity import Tolerance
from lightkit.export.publishing import check_free
from lightkit.export.sampling import Drawn
from lightkit.export.subject import Subject
from lightkit.export.writing import check_options

if TYPE_CHECKING:
    from lightkit.cli.context import RunContext

__all__ = ["export_built", "export_logged"]

_LEAST_SPACE_BYTES = 20_000_000
"""Besides the weights: the graph, the samples that are proved on, and export.json."""


def export_built(session: RunContext, module: LightningModule, data: LightningDataModule | None) -> None:
    """Export what a config, a run or a script has built.

    Args:
        session: The invocation.
        module: The model, without its weights.
        data: The data, if there is any.

    Raises:
        ConfigError: If the options do not fit the model, or its inputs cannot be found.
        DataError: If data is missing.
        ExportError: If a file cannot be made, or is no match.
    """
    options = ExportOptions.of(session.options)
    folder = _folder_of(session, options)
    _check_early(options, folder)
    ready = subject_of(session, module, data, options)
    _export_ready(ready, folder, options, session.mode)


def export_logged(options: ExportOptions, arguments: Arguments) -> int:
    """Export a model that is logged in MLflow, and return the exit code.

    Args:
        options: With the model's address.
        arguments: All that was said. Of keys, ``run.root`` alone has an effect: by default MLflow's database is there.

    Raises:
        ConfigError: If something has no effect on such a model, or there is no such model.
        ServerAway: If MLflow does not answer.
        ExportError: If a file cannot be made, or is no match.
    """
    _refuse_what_has_no_effect(arguments)
    from lightkit.registry.logged_model import load_logged_model  # here: it loads MLflow

    said = arguments.options
    mode = choose_output_mode(
        {key: value for key, value in said.items() if key != "output" or value == "json"}, sys.stdout
    )
    configure_console(mode)
    quiet_libraries()
    folder = options.output or Path("export")
    _check_early(options, folder)
    uri = str(options.logged)
    root = next((flag.value for flag in reversed(arguments.flags) if flag.key == "run.root"), "runs")
    logged = load_logged_model(uri, trust=bool(said.get("trust")), root=root, num_samples=options.num_samples)
    subject = Subject(logged.model, logged.example, logged.metadata, plain=logged.model)
    drawn = Drawn(logged.samples, "input example that is logged with it, and inputs like it")
    _export_ready(Exportable(subject, drawn, write_options(options), uri), folder, options, mode)
    return 0


def _refuse_what_has_no_effect(arguments: Arguments) -> None:
    """Refuse what is for a run.

    Raises:
        ConfigError: If there is any of it.
    """
    options = arguments.options
    said = [f"-c {file}" for file in arguments.files]
    said += [flag.text for flag in arguments.flags if flag.key != "run.root" or flag.append]
    said += [f"--{name}" for name in ("ckpt_path", "print_config", *_OF_RUNS) if options.get(name) not in (None, False)]
    if said:
        raise ConfigError(
            f"{said[0]}: this has no effect on {options['run']}, {_OF_RUNS.get(said[0][2:], _AS_LOGGED)}. Leave it out."
            + (f" {_ELSEWHERE}" if "tracking" in said[0] else "")
        )


_AS_LOGGED = "a model that is exported as it was logged"
_OF_RUNS = {
    "with-preprocessing": _AS_LOGGED,
    "input-shape": "whose inputs are those of its signature",
    "int8": "which has no training samples to calibrate on",
}
_ELSEWHERE = "The environment variable MLFLOW_TRACKING_URI says where MLflow is."


def _folder_of(session: RunContext, options: ExportOptions) -> Path:
    if options.output is not None:
        return options.output
    return Path("export") if session.base is None else session.base.folder / "export"


def _check_early(options: ExportOptions, folder: Path) -> None:
    """Find what makes an export impossible before a model is built."""
    check_options(options.formats, write_options(options))
    if (error := explain_unwritable(folder, setting="--output")) is not None:
        raise error
    check_free(folder)


def _check_space(subject: Subject, folder: Path, options: ExportOptions) -> None:
    """Refuse a disk that cannot take the files.

    Raises:
        ConfigError: Then.
    """
    weights = [*subject.plain.parameters(), *subject.plain.buffers()]
    size = sum(tensor.numel() * tensor.element_size() for tensor in weights)
    needed = size * (len(options.formats) + options.half + options.int8) + _LEAST_SPACE_BYTES
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed:
        raise ConfigError(
            f"--output: {shown_path(folder)} has {free / 1e6:.0f} MB left, and the files take about "
            f"{needed / 1e6:.0f} MB. Make room, or name another folder."
        )


def _export_ready(ready: Exportable, folder: Path, options: ExportOptions, mode: OutputMode) -> None:
    """Write and prove the files, and tell what came of them."""
    _check_space(ready.subject, folder, options)
    begun(ready, folder, mode)
    tolerance = None if options.rtol is None and options.atol is None else Tolerance(options.rtol, options.atol)
    try:
        with steps(mode) as on_step:
            report = export(
                ready.subject,
                options.formats,
                folder,
                ready.drawn.samples,
                options=ready.options,
                tolerance=tolerance,
                on_step=on_step,
            )
    except ExportsFailed as error:
        if error.report is not None and error.report.artefacts:
            told(error.report, mode)
        raise ExportError(str(error)) from error
    told(report, mode)
