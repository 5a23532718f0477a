"""How a run ended and what it was made on, read from Lightning's objects for the records of the run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import ModelCheckpoint

from lightkit import runs
from lightkit.errors import PIPE_CLOSED, Interrupted, LightkitError, OutOfTime

__all__ = ["best_checkpoint", "best_row", "described_data", "described_hardware", "end_of", "paths_of"]


def end_of(error: BaseException | None) -> tuple[str, int, str | None]:
    """Status, exit code and one line of words."""
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return "done", 0, None
    words = " ".join(f"{type(error).__name__}: {error}".split())
    if isinstance(error, Interrupted):
        return "interrupted" if error.checkpoint is None else "preempted", error.exit_code, f"signal {error.signum}"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 130, "KeyboardInterrupt"
    if isinstance(error, LightkitError):
        return "preempted" if isinstance(error, OutOfTime) else "failed", error.exit_code, str(error)
    if isinstance(error, BrokenPipeError):  # whoever read the output has left, as `| head` does
        return "failed", PIPE_CLOSED, words
    code = error.code if isinstance(error, SystemExit) else 1
    return "failed", code if isinstance(code, int) else 1, words


def best_row(trainer: Trainer, rows: list[dict[str, float]]) -> dict[str, float] | None:
    """The row of the epoch that the checkpoints call best; the last one where they monitor nothing."""
    keeper = trainer.checkpoint_callback
    monitor = keeper.monitor if isinstance(keeper, ModelCheckpoint) else None
    if monitor is None:
        return rows[-1] if rows else None
    measured = [row for row in rows if math.isfinite(row.get(monitor, math.nan))]
    choose = max if getattr(keeper, "mode", "min") == "max" else min
    return choose(measured, key=lambda row: row[monitor], default=None)  # the first of equals, as ModelCheckpoint


def best_checkpoint(trainer: Trainer, best: dict[str, float] | None) -> dict[str, Any] | None:
    """Monitor, its mode, value and epoch of the best checkpoint; None where nothing is monitored."""
    keeper = trainer.checkpoint_callback
    if not isinstance(keeper, ModelCheckpoint) or keeper.monitor is None or best is None:
        return None
    return {
        "monitor": keeper.monitor,
        "mode": keeper.mode,
        "value": best[keeper.monitor],
        "epoch": int(best["epoch"]),
    }


def paths_of(trainer: Trainer, run: runs.Run) -> dict[str, Path]:
    """The files of a run, whether or not they are there yet."""
    keeper = trainer.checkpoint_callback
    return {
        "best_checkpoint": Path(getattr(keeper, "best_model_path", "") or run.checkpoints / "best.ckpt"),
        "last_checkpoint": Path(getattr(keeper, "last_model_path", "") or run.checkpoints / "last.ckpt"),
        "config": run.config_path,
        "manifest": run.manifest_path,
        "events": run.events_path,
        "metrics": run.metrics_path,
    }


def described_data(trainer: Trainer) -> dict[str, Any] | None:
    """What the data module says of itself, if it has a ``describe``."""
    describe = getattr(getattr(trainer, "datamodule", None), "describe", None)
    return dict(describe()) if callable(describe) else None


def described_hardware(trainer: Trainer) -> dict[str, Any]:
    """The machine, and what of it the trainer uses."""
    gpus = [torch.cuda.get_device_name(index) for index in trainer.device_ids] if _on_cuda(trainer) else []
    accelerator = type(trainer.accelerator).__name__.removesuffix("Accelerator").lower()
    return {
        **runs.describe_hardware(gpus),
        "accelerator": accelerator,
        "devices": trainer.world_size,
        "threads": torch.get_num_threads(),
    }


def _on_cuda(trainer: Trainer) -> bool:
    return trainer.strategy.root_device.type == "cuda"
