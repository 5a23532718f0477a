"""What jsonargparse makes of a config, its mistakes in the user's words."""

from __future__ import annotations

from argparse import ArgumentError
from collections.abc import Mapping, Sequence
from typing import Any

from jsonargparse import Namespace
from pytorch_lightning import Callback, LightningDataModule, LightningModule
from pytorch_lightning.cli import LightningArgumentParser
from pytorch_lightning.loggers import Logger
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

# The classes of these rooms are known by their short names once they are imported.
from lightkit import data, loggers, models  # noqa: F401
from lightkit.cli.lightning_errors import unwrap_errors
from lightkit.cli.parser_errors import explain_exit_at_import, explain_parser_error, list_subclass_names
from lightkit.config import Resolved, dump_yaml

__all__ = ["build_data", "build_each_logger", "parse_config"]

_BASES: tuple[type, ...] = (LightningModule, LightningDataModule, Callback, Logger, Optimizer, LRScheduler)


def parse_config(
    parser: LightningArgumentParser,
    command: Sequence[str],
    values: Mapping[str, Any],
    resolved: Resolved,
    *,
    known: LightningArgumentParser,
) -> Any:
    """Give the namespace of a config.

    Args:
        parser: The parser.
        command: The command, if there is one.
        values: The config as LightningCLI takes it.
        resolved: The config as the user wrote it.
        known: The parser that knows the keys: that of the command.

    Raises:
        ConfigError: At the first mistake.
    """
    try:
        # As a file's text: given as an object, `key+` in init_args would forget the signature's default.
        return parser.parse_args([*command, "--config", dump_yaml(dict(values))])
    except ArgumentError as error:
        keys = {str(action.dest) for action in known._actions} | {"callbacks", "logger"}
        raise explain_parser_error(error, resolved, keys=keys, classes=_known_classes()) from error
    except SystemExit as end:
        raise explain_exit_at_import(end, resolved) from end


def build_data(section: Any, resolved: Resolved) -> LightningDataModule:
    """Build the data module of a config alone.

    Raises:
        ConfigError: If the section is wrong.
    """
    parser = LightningArgumentParser(exit_on_error=False)
    parser.add_lightning_class_args(LightningDataModule, "data", subclass_mode=True)
    try:
        with unwrap_errors():
            built = parser.instantiate_classes(parser.parse_object({"data": section}))
    except ArgumentError as error:
        raise explain_parser_error(error, resolved, keys=(), classes=_known_classes()) from error
    module: LightningDataModule = built["data"]
    return module


def build_each_logger(parser: LightningArgumentParser, listed: Any, *, command: str | None) -> None:
    """Build one logger after the other: of a list, jsonargparse 4.53 does not keep what their constructors raised.

    Args:
        parser: The parser of all commands.
        listed: The config's `trainer.logger`; nothing is built where it is no list.
        command: The command, if there is one.

    Raises:
        Exception: What a logger's constructor raises.
    """
    prefix = "" if command is None else f"{command}."
    for value in listed if isinstance(listed, list) else ():
        alone = Namespace(subcommand=command)  # type: ignore[no-untyped-call]
        alone[f"{prefix}trainer.logger"] = value
        with unwrap_errors():
            parser.instantiate_classes(alone)


def _known_classes() -> set[str]:
    return {name for base in _BASES for name in list_subclass_names(base)}
