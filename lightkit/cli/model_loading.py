"""A model with the weights of a checkpoint, set up as Lightning does before it validates."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from pytorch_lightning import LightningDataModule, LightningModule
from pytorch_lightning.trainer.states import RunningStage, TrainerFn

from lightkit import runs
from lightkit.callbacks import VerifiedCheckpointIO
from lightkit.config import shown_path
from lightkit.export.bare_trainer import build_bare_trainer

if TYPE_CHECKING:
    pass


def load_model(
    module: LightningModule, data: LightningDataModule | None, checkpoint: Path | None
) -> dict[str, str]:
    """Set a model and its data up as Lightning does before it validates, and load the weights.

    Afterwards the module is in eval mode and in float32 (or float64, where its class chose that).
    The data is set up as for `fit`, which by Lightning's contract is the training and the
    validation split.

    Args:
        module: The model, as its class makes it.
        data: The data, as its class makes it.
        checkpoint: File of the weights; None leaves the model untrained.

    Returns:
        Origin of the weights: ``checkpoint``, its ``epoch`` and ``sha256``; empty without one.

    Raises:
        LightkitError: If the checkpoint cannot be read or does not fit, or the data is missing.
    """
    trainer = build_bare_trainer(VerifiedCheckpointIO())
    trainer.strategy.connect(module)
    module.trainer = trainer
    trainer.state.fn = TrainerFn.VALIDATING
    trainer.state.stage = RunningStage.VALIDATING
    if data is not None:
        trainer._data_connector.attach_datamodule(module, data)
        data.prepare_data()
        data.setup("fit")
    module.prepare_data()
    module.setup("validate")
    module.configure_model()
    source: dict[str, str] = {}
    if checkpoint is None:
        logging.getLogger("lightkit").warning(
            "the model is untrained: neither --run nor --ckpt_path names a checkpoint"
        )
        # of our models: what training would start from
        load_weights = getattr(module, "load_weights", None)
        if callable(load_weights):
            load_weights()
    else:
        source = {
            "checkpoint": shown_path(checkpoint),
            "sha256": runs.digest_checkpoint(checkpoint),
        }
        connector = trainer._checkpoint_connector
        connector.resume_start(checkpoint, weights_only=not runs.is_trusting())
        if (epoch := connector._loaded_checkpoint.get("epoch")) is not None:
            source["epoch"] = str(epoch)
        connector.restore_model()
        connector.restore_datamodule()
    module.eval()
    if any(parameter.dtype in (torch.float16, torch.bfloat16) for parameter in module.parameters()):
        module.float()
    return source
