"""The trainer of one batch on one CPU, in place of the config's hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from pytorch_lightning import Callback, Trainer

from lightkit.cli.deep.stand_ins import MeasuredCheckpoints, NoLogger

__all__ = ["trainer_of"]

_ON_ANY_CPU = ("None", "32", "32-true", "64", "64-true", "bf16", "bf16-mixed", "bf16-true")
_HARDWARE = {"accelerator": "cpu", "devices": 1, "num_nodes": 1, "strategy": "auto", "sync_batchnorm": False}
_SHORT = {"fast_dev_run": False, "barebones": False, "min_epochs": None, "min_steps": None, "max_time": None,
          "num_sanity_val_steps": 0, "log_every_n_steps": 1}  # fmt: skip
_UNSEEN = {"enable_progress_bar": False, "enable_model_summary": False, "profiler": None, "model_registry": None}
_LIMITS = ("limit_val_batches", "limit_test_batches", "limit_predict_batches")


def trainer_of(
    values: Mapping[str, Any],
    callbacks: Sequence[Callback],
    *,
    has_logger: bool,
    folder: Path,
    notes: dict[str, str],
) -> Trainer:
    """Build the config's trainer for one batch of each loop on the CPU.

    The numbers of epochs, steps and training batches stay those of the config, because schedules reckon with them.

    Args:
        values: The config's `trainer` section.
        callbacks: In place of the section's own.
        has_logger: Whether the config has one; a stand-in takes its place.
        folder: For what is written; removed at the end.
        notes: Takes what is not tried, by its key.
    """
    given = {**values, **_HARDWARE, **_SHORT, **_UNSEEN}
    given["precision"] = _precision(values.get("precision"), notes)
    given["plugins"] = [LightningEnvironment(), MeasuredCheckpoints(folder)]  # whatever launched this process
    given["logger"] = [NoLogger(str(folder))] if has_logger else False
    given["callbacks"] = list(callbacks)
    given["default_root_dir"] = str(folder)
    if values.get("check_val_every_n_epoch") is not None:
        given["check_val_every_n_epoch"] = 1
    for key in ("plugins", "profiler"):
        if values.get(key):
            notes[f"trainer.{key}"] = "left out"
    trainer = Trainer(**given)
    for limit in _LIMITS:
        if getattr(trainer, limit):  # 0 means no such batch
            setattr(trainer, limit, 1)
    return trainer


def _precision(said: Any, notes: dict[str, str]) -> Any:
    if str(said) in _ON_ANY_CPU:
        return said
    notes["trainer.precision"] = f"{said} is not for a CPU; 32-true in its place"
    return "32-true"
