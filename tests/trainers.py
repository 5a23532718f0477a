"""Trainers that say nothing and leave nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytorch_lightning import Trainer

__all__ = ["quiet_trainer"]


def quiet_trainer(folder: Path, **settings: Any) -> Trainer:
    """Build a trainer of one epoch on the CPU.

    Without logger, checkpoints and bars unless they are asked for.
    """
    quiet = {
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": folder,
    }
    return Trainer(**{**quiet, **settings})
