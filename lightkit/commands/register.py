"""`lightkit register`: a run's model into MLflow's registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from lightkit.cli.command_line import Invocation
from lightkit.cli.heap import freezing_imports
from lightkit.cli.stage_runner import open_run_config
from lightkit.errors import ConfigError
from lightkit.registry.store import check_alias, check_name

if TYPE_CHECKING:
    from lightkit.registry.package import PackageFormat


def register(invocation: Invocation) -> int:
    """Register the model of a run, and return the exit code.

    Raises:
        ConfigError: If the arguments are wrong, there is no such run or checkpoint, or MLflow
            refuses.
        ExportError: If the model cannot be written so that it gives the same answers.
        ServerAway: If MLflow does not answer.
    """
    invocation.raise_errors()
    options = invocation.options
    run = invocation.get_run()
    if "name" not in options:
        raise invocation.error("under which name? Give --name, such as --name flowers.")
    name = check_name(options["name"])
    aliases = list(dict.fromkeys(invocation.get("alias")))
    if "none" in aliases and len(aliases) > 1:
        raise ConfigError(f"--alias: none stands alone, got {', '.join(aliases)}")
    aliases = [check_alias(alias) for alias in aliases if alias != "none"]
    stage_config = open_run_config(invocation.with_options(run=run))
    with freezing_imports():
        from lightkit.cli.registration import register_run  # here: it loads torch

    form = cast("PackageFormat", invocation.get("format"))
    register_run(stage_config, name, aliases, form=form, tracking_uri=options.get("tracking-uri"))
    return 0
