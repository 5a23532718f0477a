"""A config's model with its weights, on one CPU process, wherever it was trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import LightningDataModule, LightningModule, Trainer
from pytorch_lightning.trainer.states import RunningStage, TrainerFn

from lightkit import runs
from lightkit.callbacks import VerifiedCheckpointIO
from lightkit.errors import RunLocked
from lightkit.export.bare_trainer import build_bare_trainer

__all__ = ["LoadedModel", "add_export_method", "drop_training_hardware", "load_model"]

_ELSEWHERE = (
    *("accelerator", "devices", "num_nodes", "strategy", "precision", "plugins", "sync_batchnorm"),
    *("callbacks", "logger", "profiler", "model_registry"),
)
"""Keys of the trainer that say how and where a model was trained, none of which counts for what it has become."""


@dataclass(frozen=True)
class LoadedModel:
    """A model as it was trained, and its data.

    Args:
        module: In eval mode, with no trainer, in float32 (or float64, where its class chose that).
        data: Set up; None where there is none.
        epoch: Of the checkpoint, where it says.
        sha256: Of the checkpoint that was loaded; None where there is none.
    """

    module: LightningModule
    data: LightningDataModule | None
    epoch: int | None
    sha256: str | None


def add_export_method(trainer_class: Any) -> Any:
    """Give a trainer class a method `export`, from whose arguments LightningCLI makes the command's parser.

    Args:
        trainer_class: A class, or a function that builds a trainer.
    """
    from jsonargparse import class_from_function  # type: ignore[attr-defined]  # here, because only a function needs it

    base = trainer_class if isinstance(trainer_class, type) else class_from_function(trainer_class)
    return type(
        base.__name__, (base,), {"export": _Exports.export, "__module__": base.__module__, "__doc__": base.__doc__}
    )


class _Exports:
    """Has the method that trainers lack."""

    def export(
        self,
        model: LightningModule | None = None,
        datamodule: LightningDataModule | None = None,
        ckpt_path: str | None = None,
    ) -> None:
        """Write a model as a file that is proved equal to it.

        Args:
            model: The model.
            datamodule: Gives the samples of the proof.
            ckpt_path: Checkpoint with the weights: a path, `last` or `best`.
        """


def drop_training_hardware(values: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out of LightningCLI's config how and where a model was trained."""
    trainer = values.get("trainer")
    if not isinstance(trainer, Mapping):
        return dict(values)
    return {**values, "trainer": {key: value for key, value in trainer.items() if key not in _ELSEWHERE}}


def load_model(module: LightningModule, data: LightningDataModule | None, checkpoint: Path | None) -> LoadedModel:
    """Build and load a model as Lightning does before it validates, and set its data up.

    The data is set up as for `fit`, which by Lightning's contract is the training and the validation split.

    Args:
        module: As its class makes it.
        data: As its class makes it.
        checkpoint: With the weights; None leaves the model untrained.

    Raises:
        LightkitError: If the checkpoint cannot be read or does not fit, or the data is missing.
        RunLocked: If a training that goes on puts another checkpoint in its place meanwhile.
    """
    trainer = build_bare_trainer(VerifiedCheckpointIO())
    trainer.strategy.connect(module)
    module.trainer = trainer
    trainer.state.fn, trainer.state.stage = TrainerFn.VALIDATING, RunningStage.VALIDATING
    if data is not None:
        trainer._data_connector.attach_datamodule(module, data)
        data.prepare_data()
        data.setup("fit")
    module.prepare_data()
    module.setup("validate")
    module.configure_model()
    before = None if checkpoint is None else _identity(checkpoint)
    epoch = _load(trainer, checkpoint)
    sha256 = None if checkpoint is None else runs.digest(checkpoint)
    if checkpoint is not None and _identity(checkpoint) != before:
        raise RunLocked(f"{checkpoint} was replaced while it was read, as by a training that goes on. Try again.")
    module.eval()
    if any(parameter.dtype in (torch.float16, torch.bfloat16) for parameter in module.parameters()):
        module.float()
    return LoadedModel(module, data, epoch, sha256)


def _identity(file: Path) -> tuple[int, ...]:
    """What another file of the same name has not: checkpoints are renamed to their place."""
    found = file.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _load(trainer: Trainer, checkpoint: Path | None) -> int | None:
    module = trainer.lightning_module
    if checkpoint is None:
        load_weights = getattr(module, "load_weights", None)  # of our models: what training would start from
        if callable(load_weights):
            load_weights()
        return None
    connector = trainer._checkpoint_connector
    connector.resume_start(checkpoint, weights_only=not runs.is_trusting())
    content: Mapping[str, Any] = connector._loaded_checkpoint
    connector.restore_model()
    connector.restore_datamodule()
    connector._loaded_checkpoint = {}
    epoch = content.get("epoch")
    return epoch if isinstance(epoch, int) else None
