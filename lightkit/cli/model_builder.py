"""The model and the data of a run's config, built without running anything."""

from __future__ import annotations

import copy
from argparse import ArgumentError
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jsonargparse import Namespace
from pytorch_lightning import LightningDataModule, LightningModule, Trainer
from pytorch_lightning.cli import LightningArgumentParser
from pytorch_lightning.plugins.precision import Precision

from lightkit import data  # noqa: F401 (its classes are known by their short names)
from lightkit.cli.context import RunContext
from lightkit.cli.lightning_cli import LightkitCLI
from lightkit.cli.parser_errors import explain_lightning_errors, explain_parser_error, unwrap_errors
from lightkit.config import Resolved
from lightkit.distributed.process_group import process_group_left
from lightkit.tuning.benchmark import make_trainer


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
    with context.stack, process_group_left(), explain_lightning_errors(context.resolved):
        yield


_OF_A_STEP = (
    "accelerator",
    "accumulate_grad_batches",
    "benchmark",
    "detect_anomaly",
    "deterministic",
    "gradient_clip_algorithm",
    "gradient_clip_val",
    "inference_mode",
    "precision",
)


class ModelFactory(LightkitCLI):
    """Parses a config as `fit` does; builds its parts when `build` is called, and runs nothing."""

    def instantiate_classes(self) -> None:
        """Keep the config, from which `build` makes its parts."""
        self._config_to_build = self.config

    def build(self, **data_arguments: Any) -> tuple[LightningModule, LightningDataModule | None]:
        """Build a fresh model, with the optimizers of the config, and its data.

        Args:
            data_arguments: In place of the config's arguments of the data.
        """
        self.config = copy.deepcopy(self._config_to_build)
        self.config[self.subcommand]["trainer"]["callbacks"] = None
        self.config[self.subcommand]["trainer"]["logger"] = False
        for key, value in data_arguments.items():
            self.data_arguments[key] = value
        super().instantiate_classes()
        return self.model, self.datamodule

    @property
    def data_arguments(self) -> Any:
        """Arguments of the data; empty where the config has none."""
        section = self.config[self.subcommand].get("data")
        if section is None:
            return {}
        return section if "class_path" not in section else section.get("init_args") or {}

    @property
    def trainer_arguments(self) -> dict[str, Any]:
        """Arguments of the config's trainer that change a step, and the plugin that decides the precision, if any."""
        given = self._get(self.config_init, "trainer")
        kept = {key: given[key] for key in _OF_A_STEP if given.get(key) is not None}
        plugins = given.get("plugins")
        own = [one for one in (plugins if isinstance(plugins, list) else [plugins]) if isinstance(one, Precision)]
        if own:
            kept.pop("precision", None)
            kept["plugins"] = own
        return kept

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Build a trainer that nothing is trained with."""
        return make_trainer(self.trainer_arguments, [])

    def start_run(self, context: RunContext, section: Namespace) -> None:
        """Start no run."""

    def _run_subcommand(self, subcommand: str) -> None:
        """Run nothing."""


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
        raise explain_parser_error(error, resolved, keys=()) from error
    module: LightningDataModule = built["data"]
    return module
