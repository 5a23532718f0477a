"""Watches one batch of each loop, and ends the loops after it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint

from lightkit import runs
from lightkit.cli.deep import memory
from lightkit.cli.deep.monitors import Monitored, take_monitors
from lightkit.config import KeyPath, Resolved

__all__ = ["Probe"]

_WORDS = {"train": "training", "val": "validation", "test": "test", "predict": "prediction"}


class Probe(Callback):
    """Lets a training end after its first batch, as its last: with the optimizer's step, validation, and the hooks.

    Args:
        resolved: The config.
        paths: What of the config made each callback, by its `id`.
        scratch: Run whose folder is removed at the end.
        checkpoint: Weights that the training is to start from.
    """

    def __init__(
        self, resolved: Resolved, paths: Mapping[int, KeyPath], scratch: runs.Run, checkpoint: str | None = None
    ) -> None:
        self._resolved, self._paths, self._scratch, self._checkpoint = resolved, paths, scratch, checkpoint
        self.folders: dict[int, Path | None] = {}
        self.phase = ""
        self.seconds: dict[str, float] = {}
        self.metrics: set[str] = set()
        self.monitored: list[Monitored] = []
        self.workers_bytes = 0
        self.state_bytes = 0
        self._began_s = 0.0
        self._has_batch = False

    def where(self) -> KeyPath:
        """Say what of the config would most likely be at fault if an error came now."""
        return ("data",) if self.phase and not self._has_batch and "data" in self._resolved.values else ("model",)

    def doing(self) -> str:
        """Say what would not work if an error came now."""
        return f"one batch of {_WORDS[self.phase]} fails" if self.phase else "cannot be set up"

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Note where checkpoint callbacks, the model's too, keep their files, and move them to where they go away."""
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint):
                self.folders[id(callback)] = None if callback.dirpath is None else Path(callback.dirpath)
                callback.dirpath = str(self._scratch.checkpoints)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the checkpoint's weights into the model; its loops would be at their end."""
        if self._checkpoint is not None:
            content = trainer.strategy.load_checkpoint(self._checkpoint, weights_only=True)
            trainer.strategy.load_model_state_dict(content, strict=pl_module.strict_loading)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the monitors, after every other part has been set up."""
        self.monitored = take_monitors(trainer, self._paths, self._resolved)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Before the first batch is loaded."""
        self._start("train")

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Say that this batch is the epoch's last, so that gradients are not accumulated over more."""
        trainer.fit_loop.epoch_loop.batch_progress.is_last_batch = True
        self._has_batch = True

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End the training; Lightning validates first."""
        self._stop("train")
        self.state_bytes = memory.state_bytes(trainer, pl_module)
        trainer.should_stop = True

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Before the first batch is loaded."""
        self._start("val")

    def on_validation_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """The batch of this loop is done."""
        self._stop("val")

    def on_validation_batch_start(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """The batch has been loaded."""
        self._has_batch = True

    def on_test_batch_start(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """The batch has been loaded."""
        self._has_batch = True

    def on_predict_batch_start(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """The batch has been loaded."""
        self._has_batch = True

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Before the first batch is loaded."""
        self._start("test")

    def on_test_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """The batch of this loop is done."""
        self._stop("test")

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Before the first batch is loaded."""
        self._start("predict")

    def on_predict_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """The batch of this loop is done."""
        self._stop("predict")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note what the epoch has logged."""
        self.metrics |= set(trainer.callback_metrics)

    def _start(self, phase: str) -> None:
        self.phase, self._began_s, self._has_batch = phase, time.perf_counter(), False

    def _stop(self, phase: str) -> None:
        self.seconds.setdefault(phase, time.perf_counter() - self._began_s)
        self.workers_bytes = max(self.workers_bytes, memory.workers_bytes())
