"""The export of a model that is logged in MLflow."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lightkit.cli.command_line import Invocation, refuse_without_effect
from lightkit.cli.console import choose_output_mode, configure_console, print_step, quiet_libraries
from lightkit.cli.export_display import print_result, print_target
from lightkit.cli.validation import check_writable
from lightkit.config.run_root import find_run_root
from lightkit.errors import ConfigError
from lightkit.export.exporter import export
from lightkit.export.formats import FORMATS
from lightkit.export.options import MODULE_FORMAT, ExportOptions
from lightkit.export.target import check_self_consistency

if TYPE_CHECKING:
    pass


def export_logged_model(invocation: Invocation) -> int:
    """Export a model that is logged in MLflow, and return the exit code.

    Args:
        invocation: The command line. Of keys, ``run.root`` alone has an effect: MLflow's default
            database is there.

    Raises:
        ConfigError: If an option is wrong or has no effect on such a model, or there is no such
            model.
        ServerAway: If MLflow does not answer.
        ExportError: If a file cannot be made, or differs from its model.
    """
    given = invocation.options
    options = ExportOptions.parse(given)
    uri = str(given["run"])
    refuse_without_effect(
        invocation,
        f"{uri}, a model that is exported as it was logged; the variable MLFLOW_TRACKING_URI says"
        " where MLflow is",
        options=("ckpt_path", "print_config", "with-preprocessing", "input-shape", "int8"),
        keys=("run.root",),
    )
    from lightkit.registry.logged_model import load_logged_model  # here: it loads MLflow

    if options.module_formats:
        raise ConfigError(
            f"--format {MODULE_FORMAT}{options.module_formats[0]}: {uri} is a model as it was"
            " logged, which does not export itself; expected one of "
            + ", ".join(FORMATS)
            + ". Export the run that it is of."
        )
    mode = choose_output_mode(given)
    configure_console(mode)
    quiet_libraries()
    folder = options.output or Path("export")
    check_writable(folder, setting="--output")
    root = find_run_root(invocation.overrides)
    target = load_logged_model(
        uri, trust=bool(given.get("trust")), root=root, num_samples=options.num_samples
    )
    check_self_consistency(target)
    print_target(target, folder, mode)
    print_result(*export(target, folder, options, on_step=partial(print_step, mode)), folder, mode)
    return 0
