"""What ``mlflow.pytorch.autolog()`` records of a fit, under the same names.

Follows mlflow/pytorch/_lightning_autolog.py of MLflow 3.17.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import EarlyStopping
from pytorch_lightning.core.optimizer import LightningOptimizer
from pytorch_lightning.utilities.model_summary.model_summary import ModelSummary

__all__ = ["numbers", "params_at_start", "stopping_at_end", "summary_of"]


def params_at_start(trainer: Trainer) -> dict[str, Any]:
    """Epochs, the first optimizer's name and settings, and early stopping's settings."""
    params: dict[str, Any] = {"epochs": trainer.max_epochs}
    if trainer.optimizers:
        optimizer = trainer.optimizers[0]
        inner = optimizer._optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
        params["optimizer_name"] = type(inner).__name__
        params.update(getattr(inner, "defaults", {}))
    if (stopping := _early_stopping(trainer)) is not None:
        names = ("monitor", "mode", "patience", "min_delta", "stopped_epoch")
        params.update({name: getattr(stopping, name) for name in names})
    return params


def stopping_at_end(trainer: Trainer) -> dict[str, float]:
    """When and where early stopping ended the fit; nothing where it did not."""
    stopping = _early_stopping(trainer)
    if stopping is None or stopping.stopped_epoch == 0:
        return {}
    return {
        "stopped_epoch": float(stopping.stopped_epoch),
        "restored_epoch": float(stopping.stopped_epoch - max(1, stopping.patience)),
        "best_score": float(stopping.best_score),
        "wait_count": float(stopping.wait_count),
    }


def summary_of(trainer: Trainer, module: LightningModule) -> str:
    """The table of all layers.

    Sizes of inputs and outputs need a forward pass, which on several devices all of them would have to join.
    """
    if trainer.world_size == 1:
        with torch.random.fork_rng(devices=[]):
            return str(ModelSummary(module, max_depth=-1))
    example, module.example_input_array = module.example_input_array, None
    try:
        return str(ModelSummary(module, max_depth=-1))
    finally:
        module.example_input_array = example


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that are single numbers, as floats."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, (int, float)) or (isinstance(value, torch.Tensor) and value.numel() == 1)
    }


def _early_stopping(trainer: Trainer) -> EarlyStopping | None:
    """The last one, as autolog has it."""
    found = [callback for callback in trainer.callbacks if isinstance(callback, EarlyStopping)]  # type: ignore[attr-defined]
    return found[-1] if found else None
