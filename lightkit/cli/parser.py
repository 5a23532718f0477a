"""The data module of a config, built alone."""

from __future__ import annotations

from argparse import ArgumentError
from typing import Any

from pytorch_lightning import LightningDataModule
from pytorch_lightning.cli import LightningArgumentParser

from lightkit import data  # noqa: F401 (its classes are known by their short names)
from lightkit.cli.lightning_errors import unwrap_errors
from lightkit.cli.parser_errors import explain_parser_error, list_known_classes
from lightkit.config import Resolved

__all__ = ["build_data"]


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
        raise explain_parser_error(error, resolved, keys=(), classes=list_known_classes()) from error
    module: LightningDataModule = built["data"]
    return module
