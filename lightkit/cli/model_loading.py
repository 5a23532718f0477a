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

__all__ = ["LoadedModel", "load_model"]


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
