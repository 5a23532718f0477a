"""The trainer that restores and scores a model: one process that writes and shows nothing."""

from __future__ import annotations

from typing import Any

from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from pytorch_lightning import Trainer

__all__ = ["bare_trainer"]


def bare_trainer(*plugins: Any, accelerator: str = "cpu") -> Trainer:
    """Give the trainer, alone whatever has launched this process: Slurm's or torchrun's variables do not reach it.

    Args:
        plugins: Its plugins besides, such as a checkpoint writer.
        accelerator: On one device of which it runs.
    """
    return Trainer(
        accelerator=accelerator,
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        plugins=[LightningEnvironment(), *plugins],
    )
