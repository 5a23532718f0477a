"""`lightkit fetch`: download the data that a config names."""

from __future__ import annotations

from lightkit.cli.config_loader import STAGES
from lightkit.cli.console import configure_console, quiet_libraries
from lightkit.cli.parser_errors import explain_lightning_errors
from lightkit.cli.stage_runner import open_context
from lightkit.errors import ConfigError
from lightkit.runs.signals import SignalWatch

HELP = """\
usage: lightkit fetch -c FILE... [--data.KEY=value]...

Download what the data module of a config needs, into the folder that the config names. A broken download goes on where
it stopped; a complete one is not repeated.
"""


def fetch(args: list[str]) -> int:
    """Download what the config's data module needs, and return the exit code.

    Raises:
        ConfigError: If the config names no data module, or one that has nothing to fetch.
    """
    context = open_context("fetch", args, SignalWatch(), subcommands=(*STAGES, "fetch"))
    configure_console(context.mode, context.resolved.masked)
    section = context.resolved.values.get("data")
    if section is None:
        raise ConfigError(
            "fetch: the config names no data; give it a file, as in lightkit fetch -c configs/flowers.yaml"
        )
    from lightkit.cli.model_builder import build_data  # here, because it loads torch

    quiet_libraries()
    with explain_lightning_errors(context.resolved):
        data = build_data(section, context.resolved)
        download = getattr(data, "fetch", None)
        if download is None:
            raise ConfigError(f"fetch: {type(data).__name__} has nothing to download")
        download()
    return 0
