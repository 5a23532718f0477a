"""`lightkit fetch`: download the data that a config names."""

from __future__ import annotations

from argparse import ArgumentError

from lightkit.cli.command_line import Invocation
from lightkit.cli.console import quiet_libraries
from lightkit.cli.parser_errors import explain_lightning_errors, explain_parser_error, unwrap_errors
from lightkit.cli.stage_runner import open_command_config
from lightkit.errors import ConfigError


def fetch(invocation: Invocation) -> int:
    """Download what the config's data module needs, and return the exit code.

    Raises:
        ConfigError: If the config names no data module, or one that has nothing to fetch.
    """
    stage_config = open_command_config(invocation)
    section = stage_config.resolved.value_of("data")
    if section is None:
        raise ConfigError(
            "fetch: the config names no data; give it a file, as in lightkit fetch -c"
            " lightkit:flowers"
        )
    from pytorch_lightning import LightningDataModule  # here: these load torch
    from pytorch_lightning.cli import LightningArgumentParser

    import lightkit.data  # noqa: F401 (its classes are known by their short names)

    quiet_libraries()
    parser = LightningArgumentParser(exit_on_error=False)
    parser.add_lightning_class_args(LightningDataModule, "data", subclass_mode=True)
    with explain_lightning_errors(stage_config.resolved):
        try:
            with unwrap_errors():
                data = parser.instantiate_classes(parser.parse_object({"data": section}))["data"]
        except ArgumentError as error:
            raise explain_parser_error(error, stage_config.resolved, keys=()) from error
        download = getattr(data, "fetch", None)
        if download is None:
            raise ConfigError(f"fetch: {type(data).__name__} has nothing to download")
        download()
    return 0
