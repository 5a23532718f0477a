"""A trainer that only restores and scores a model."""

from __future__ import annotations

from typing import Any

from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from pytorch_lightning import Trainer


def build_bare_trainer(*plugins: Any, accelerator: str = "cpu", precision: Any = None) -> Trainer:
    """Build a trainer that restores and scores a model in one process, without files or output.

    Launchers' variables, such as Slurm's or torchrun's, have no effect on it.

    Args:
        plugins: Further plugins, such as a checkpoint writer.
        accelerator: It uses one device of it.
        precision: As Lightning names it; None: float32.
    """
    return Trainer(
        accelerator=accelerator,
        devices=1,
        precision=precision,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        plugins=[LightningEnvironment(), *plugins],
    )
