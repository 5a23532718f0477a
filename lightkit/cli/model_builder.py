"""The model and the data of a run's config, built without running anything."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryDirectory
from typing import Any

from pytorch_lightning import Callback, LightningDataModule, LightningModule, Trainer
from pytorch_lightning.callbacks import BasePredictionWriter, Checkpoint, EarlyStopping, ProgressBar
from pytorch_lightning.plugins.precision import Precision

from lightkit.callbacks.computation import build_computation
from lightkit.cli.lightning_cli import LightkitCLI
from lightkit.cli.parser_errors import explain_lightning_errors
from lightkit.cli.session import StageProcess
from lightkit.cli.stage_config import StageConfig
from lightkit.cli.trainer_components import as_list
from lightkit.config import Resolved
from lightkit.distributed.process_group import process_group_left
from lightkit.tuning.benchmark import Parts, Variant, make_trainer


@contextmanager
def translate_model_errors(resolved: Resolved) -> Iterator[ExitStack]:
    """Turn errors of Lightning and of the config into one with the place of the key.

    Yields:
        A stack for what is undone at the end.

    Raises:
        LightkitError: In their place.
    """
    with ExitStack() as stack, process_group_left(), explain_lightning_errors(resolved):
        yield stack


class ModelBuilder(LightkitCLI):
    """Build the parts of a config as its command does, and run nothing."""

    def _run_subcommand(self, subcommand: str) -> None:
        """Run nothing."""


def build_model(
    stage_config: StageConfig, stack: ExitStack
) -> tuple[LightningModule, LightningDataModule | None]:
    """Build the model, without its weights, and the data, as `lightkit export` does.

    The stack is closed after use.
    """
    built = ModelBuilder(stage_config=stage_config, process=StageProcess(stack=stack))
    return built.model, built.datamodule


class CallbackBuilder(ModelBuilder):
    """Build the callbacks of a config alone, from a context as of `lightkit export`."""

    left_out_of_export = tuple(key for key in LightkitCLI.left_out_of_export if key != "callbacks")

    def instantiate_classes(self) -> None:
        """Build the callbacks, each by itself, so that an error of a constructor is its own."""
        listed = as_list(self._get(self.config, "trainer.callbacks"))
        self.callbacks: list[Callback] = [
            callback
            for each in listed
            for callback in as_list(self.build_part("trainer.callbacks", [each]))
        ]


def build_metric_callbacks(stage_config: StageConfig, stack: ExitStack) -> list[Callback]:
    """Build the callbacks of a config that may log metrics.

    The user's own, without those that only keep or show.

    Those of Lightning and lightkit log no metric of a model; what writes checkpoints, stops or
    draws is of a training.
    """
    built = CallbackBuilder(stage_config=stage_config, process=StageProcess(stack=stack))
    return [callback for callback in built.callbacks if _may_log(callback)]


def _may_log(callback: Callback) -> bool:
    package = type(callback).__module__.partition(".")[0]
    is_of_training = isinstance(
        callback, (Checkpoint, EarlyStopping, ProgressBar, BasePredictionWriter)
    )
    return package not in ("lightkit", "lightning", "pytorch_lightning") and not is_of_training


_OF_A_STEP = (
    "accelerator",
    "accumulate_grad_batches",
    "benchmark",
    "default_root_dir",
    "detect_anomaly",
    "deterministic",
    "gradient_clip_algorithm",
    "gradient_clip_val",
    "inference_mode",
    "precision",
)
"""Arguments of the trainer that `lightkit tune` takes from the config."""


class TrialBuilder(ModelBuilder):
    """Parse a config as `fit` does.

    Build its parts anew for each variant of `lightkit tune`, in a temporary folder.
    """

    def instantiate_classes(self) -> None:
        """Keep the config, from which `build` makes its parts."""
        assert self.process is not None
        folder = self.process.stack.enter_context(TemporaryDirectory(prefix="lightkit-tune-"))
        vars(self.config["fit"]["trainer"]).update(
            default_root_dir=folder, callbacks=None, logger=False
        )
        self._parsed = self.config

    def start_run(self) -> None:
        """Start no run."""

    def build(self, variant: Variant) -> Parts:
        """Build a trainer that computes with a variant, a fresh model and data.

        The model has the optimizers of the config.
        """
        self.config = copy.deepcopy(self._parsed)
        section = self.config["fit"]
        section["trainer"]["precision"] = variant.precision
        for key in ("memory_format", "compile", "tf32", "fused"):
            section["accelerator"][key] = getattr(variant, key)
        for key in ("num_workers", "batch_size"):
            if (value := getattr(variant, key)) is not None:
                self.data_arguments[key] = value
        super().instantiate_classes()
        return self.trainer, self.model, self.datamodule

    @property
    def data_arguments(self) -> Any:
        """Arguments of the data; empty where the config has none."""
        section = self.config["fit"].get("data")
        return {} if section is None else section.get("init_args") or {}

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Build a trainer for a short fit; a plugin of the config may decide the precision."""
        given = self._get(self.config_init, "trainer")
        own = [each for each in as_list(given.get("plugins")) if isinstance(each, Precision)]
        kept = {key: given[key] for key in _OF_A_STEP if given.get(key) is not None}
        if own:
            del kept["precision"]
        computation = build_computation(vars(self.config["fit"]["accelerator"]))
        return make_trainer({**kept, "plugins": own}, computation)
