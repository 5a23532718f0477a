"""The model and the data of a run's config, built without running anything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lightkit.cli.lightning_cli import LightkitCLI
from lightkit.cli.lightning_errors import explain_lightning_errors
from lightkit.cli.parser_errors import add_place
from lightkit.distributed.process_group import process_group_left
from lightkit.errors import LightkitError

if TYPE_CHECKING:
    from pytorch_lightning import LightningDataModule, LightningModule

    from lightkit.cli.context import RunContext

__all__ = ["build_model", "translate_model_errors"]


def build_model(context: RunContext) -> tuple[LightningModule, LightningDataModule | None]:
    """Build the model, without its weights, and the data, as `lightkit export` does."""
    built = LightkitCLI(context=context)
    return built.model, built.datamodule


@contextmanager
def translate_model_errors(context: RunContext) -> Iterator[None]:
    """Turn errors of Lightning and of the config into one with the place of the key; close the context at the end.

    Raises:
        LightkitError: In their place.
    """
    with context.stack, process_group_left():
        try:
            with explain_lightning_errors(context.resolved):
                yield
        except LightkitError as error:
            raise add_place(error, context.resolved) from error
