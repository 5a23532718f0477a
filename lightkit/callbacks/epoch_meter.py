"""What one training epoch measured: its metrics, its learning rate, how long it took and how fast it was."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from pytorch_lightning import Trainer

__all__ = ["Epoch", "EpochMeter", "batch_size_of", "learning_rates"]


@dataclass
class Epoch:
    """One complete epoch.

    Args:
        epoch: Its number, from 0.
        step: Number of optimizer steps at its end.
        metrics: What the model logged in it; the values of its validation too, if it had one.
        seconds: How long it took, validation included.
        speed: Learning rates at its start, ``epoch_seconds``, and ``samples_per_s`` without validation.
    """

    epoch: int
    step: int
    metrics: dict[str, float]
    seconds: float
    speed: dict[str, float]

    @property
    def row(self) -> dict[str, float]:
        """Everything that was measured, as metrics.csv and the event stream have it."""
        return {**self.metrics, **self.speed}


class EpochMeter:
    """Measures the epochs of a fit, one after the other."""

    def __init__(self) -> None:
        self.batches = 0
        self._samples = self._all_samples = 0
        self._began_s = time.monotonic()
        self._paused_s = self._all_training_s = 0.0
        self._pause_began_s: float | None = None
        self._seen: dict[str, torch.Tensor] = {}
        self._rates: dict[str, float] = {}
        self._waiting: Epoch | None = None

    @property
    def samples_per_s(self) -> float | None:
        """Samples a second in training, over all complete epochs; None before the first."""
        return round(self._all_samples / self._all_training_s, 2) if self._all_training_s > 0 else None

    def start_epoch(self, trainer: Trainer) -> None:
        """Start the clock of an epoch, or of the rest of one."""
        self._rates = learning_rates(trainer)
        self.batches = self._samples = 0
        self._began_s, self._paused_s, self._pause_began_s = time.monotonic(), 0.0, None

    def count(self, batch: Any) -> None:
        """Count the samples of a batch."""
        self.batches += 1
        self._samples += batch_size_of(batch) or 0

    def pause(self) -> None:
        """Stop the clock of training."""
        self._pause_began_s = time.monotonic()

    def go_on(self) -> None:
        """Let the clock of training run on."""
        if self._pause_began_s is not None:
            self._paused_s += time.monotonic() - self._pause_began_s
            self._pause_began_s = None

    def end_epoch(self, trainer: Trainer) -> None:
        """Take what the epoch measured; for all ranks, because reading metrics may synchronise them."""
        seconds = time.monotonic() - self._began_s
        training_s = max(seconds - self._paused_s, 1e-9)
        samples = self._samples * trainer.world_size
        self._all_samples += samples
        self._all_training_s += training_s
        speed = {**self._rates, "epoch_seconds": round(seconds, 3)}
        if samples:
            speed["samples_per_s"] = round(samples / training_s, 2)
        self._waiting = Epoch(trainer.current_epoch, trainer.global_step, {}, round(seconds, 3), speed)
        self.batches = 0
        self.add_late_metrics(trainer)

    def add_late_metrics(self, trainer: Trainer) -> None:
        """Add what was logged since, as by the model's own ``on_train_epoch_end``; for all ranks."""
        if self._waiting is None:
            return
        logged = dict(trainer.callback_metrics)
        # Lightning keeps the values of an earlier validation in there; those are the very same tensors.
        fresh = {name: value for name, value in logged.items() if self._seen.get(name) is not value}
        # LearningRateMonitor's names for what `learning_rates` gives
        fresh = {name: value for name, value in fresh.items() if not name.startswith("lr-")}
        self._waiting.metrics.update({name: float(value) for name, value in fresh.items()})
        self._seen = logged

    def take(self) -> Epoch | None:
        """Give the epoch that is complete and not taken yet, if there is one."""
        epoch, self._waiting = self._waiting, None
        return epoch


def learning_rates(trainer: Trainer) -> dict[str, float]:
    """Give ``lr``, or ``lr/0``, ``lr/1``, ... where parameter groups differ, as the next step is taken with them.

    A callback that changes them for the time of a step only says so: its ``rate_factors(index of the optimizer)`` gives
    what the rate of each of the first groups is multiplied by.
    """
    rates = []
    for index, optimizer in enumerate(trainer.optimizers):
        own = [float(group["lr"]) for group in optimizer.param_groups]
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            factors = callback.rate_factors(index) if hasattr(callback, "rate_factors") else []
            own = [rate * factor for rate, factor in zip_longest(own, factors[: len(own)], fillvalue=1.0)]
        rates += own
    if len(set(rates)) == 1:
        return {"lr": rates[0]}
    return {f"lr/{index}": rate for index, rate in enumerate(rates)}


def batch_size_of(batch: Any) -> int | None:
    """Give the first dimension of the first tensor in a batch, however it is nested; None if there is no tensor."""
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.ndim else 1
    parts: Iterable[Any] = batch.values() if isinstance(batch, Mapping) else batch
    if isinstance(batch, Mapping | list | tuple):
        return next((size for part in parts if (size := batch_size_of(part)) is not None), None)
    return None
