"""One variant in a short fit of the real model: how long its steps take, and their losses."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from pytorch_lightning import Callback, LightningDataModule, LightningModule, Trainer, seed_everything
from torch import Tensor

from lightkit.tuning.computation import Computation, has_convolutions
from lightkit.tuning.short_fits import by_itself, short_trainer, synchronized
from lightkit.tuning.variant import Variant

__all__ = ["LOSS_STEPS", "Patience", "Sitting", "Subject", "free"]

LOSS_STEPS = 4
"""Losses that are compared: each of the first batches once, with the first three updates."""
_MOST_ACCUMULATED = 4
_WARM_UP = {"cpu": 1}
_WARM_UP_ELSEWHERE = 3
_NUM_STEPS = 10_000
_LEAST_NUM_STEPS = 200  # so that no fit comes to its end


@dataclass(frozen=True)
class Patience:
    """When a sitting ends.

    Args:
        until: Reading of `time.perf_counter` after which no step begins.
        best_s: Seconds of the fastest variant so far; one that is clearly slower is not gone on with.
        least_steps: Timed steps that are wanted at least.
        enough_s: Seconds of timed steps that suffice.
        most_steps: Timed steps that suffice however quick they are.
    """

    until: float = float("inf")
    best_s: float = float("inf")
    least_steps: int = 3
    enough_s: float = 1.0
    most_steps: int = 50

    def is_over(self, times: Sequence[float]) -> bool:
        """Tell whether these timed steps are enough."""
        if not times:
            return False
        if time.perf_counter() >= self.until:
            return True
        if min(times) > (2 if len(times) == 1 else 1.3) * self.best_s:
            return True
        return len(times) >= self.least_steps and (sum(times) >= self.enough_s or len(times) >= self.most_steps)


@dataclass
class Sitting:
    """What a short fit has shown.

    Args:
        times: Seconds of a batch, for each timed step.
        losses: Of the first steps.
        warm_s: Seconds until the first timed step.
        device: Type of the device.
        has_convolutions: Whether the model has weights that a memory format is for.
        num_layers: Layers of the model that have parameters.
    """

    times: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    warm_s: float = 0.0
    device: str = "cpu"
    has_convolutions: bool = False
    num_layers: int = 0


@dataclass(frozen=True)
class Subject:
    """What is measured: the model on its data.

    Args:
        build: Gives a fresh module.
        batches: As the data's loader gives them.
        trainer_values: The config's `trainer` section.
        datamodule: That the model asks for what it must know; its own loaders are not used.
        seed: Of the weights, and of all that the model draws.
        num_steps: Batches of the whole training, for the model's schedules.
        folder: For what Lightning writes.
    """

    build: Callable[[], LightningModule]
    batches: Sequence[Any]
    trainer_values: Mapping[str, Any]
    datamodule: LightningDataModule | None
    seed: int
    num_steps: int | None
    folder: Path

    def set_up(self) -> None:
        """Have the data set up as the model's training does, which draws from no variant's random numbers."""
        if self.datamodule is None:
            return
        with _as_before(None):
            seed_everything(self.seed, verbose=False)
            trainer = short_trainer(self.trainer_values, [_OnlySetUp()], folder=self.folder)
            with suppress(_Enough):
                self._fit(trainer, by_itself(self.build()))

    def sit(self, variant: Variant, patience: Patience) -> Sitting:
        """Fit with one variant, from the same weights and batches as with any other."""
        began = time.perf_counter()
        ends = ("limit_", "max_", "overfit_")
        values = {key: value for key, value in self.trainer_values.items() if not key.startswith(ends)}
        accumulated = min(int(values.get("accumulate_grad_batches") or 1), _MOST_ACCUMULATED)
        values |= {"precision": variant.precision, "max_epochs": 1, "accumulate_grad_batches": accumulated}
        clock = _Clock(patience, accumulated, self.seed, num_warm_up=2 if variant.compile else None)
        with _as_before(variant):
            seed_everything(self.seed, verbose=False)
            module = by_itself(self.build())
            computation = Computation(variant.memory_format, variant.compile, variant.tf32, variant.fused)
            trainer = short_trainer(values, [computation, clock], folder=self.folder)
            seed_everything(self.seed, verbose=False)  # building may have drawn less or more
            try:
                self._fit(trainer, module)
            except _Enough:  # so that Lightning has not called it
                module.teardown("fit")
            clock.sitting.warm_s += clock.began - began
            del module, trainer
        return clock.finished()

    def _fit(self, trainer: Trainer, module: LightningModule) -> None:
        loader = _Repeated(self.batches, max(self.num_steps or _NUM_STEPS, _LEAST_NUM_STEPS))
        if self.datamodule is None:
            trainer.fit(module, loader)
            return
        with (
            patch.object(self.datamodule, "train_dataloader", lambda: loader),
            patch.object(self.datamodule, "on_exception", lambda _: None),  # which the end of each fit is for Lightning
        ):
            trainer.fit(module, datamodule=self.datamodule)


class _Enough(Exception):
    """Ends a fit without what Lightning does at the end of an epoch, such as asking for a metric of validation."""


class _OnlySetUp(Callback):
    """Ends a fit once the data module is set up: callbacks are next."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        raise _Enough


class _Repeated:
    """Batches, over and over."""

    def __init__(self, batches: Sequence[Any], length: int) -> None:
        self._batches, self._length = batches, length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        chosen = (self._batches[index % len(self._batches)] for index in range(self._length))
        return (apply_to_collection(batch, Tensor, Tensor.clone) for batch in chosen)  # a step may change its batch


class _Clock(Callback):
    """Reads the time at the end of each step, and ends the fit."""

    def __init__(self, patience: Patience, accumulated: int, seed: int, *, num_warm_up: int | None) -> None:
        self.sitting = Sitting()
        self.began = self._last = time.perf_counter()
        self._patience, self._accumulated, self._num_warm_up = patience, accumulated, num_warm_up
        self._seed = seed
        self._losses: list[Tensor] = []
        self._num_batches = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.sitting.device = trainer.strategy.root_device.type
        self.sitting.has_convolutions = has_convolutions(pl_module)
        self.sitting.num_layers = sum(1 for layer in pl_module.modules() if layer._parameters)
        seed_everything(self._seed, verbose=False)  # whatever setup has drawn
        self.began = self._last = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if len(self._losses) < LOSS_STEPS and (loss := _loss_of(outputs, trainer)) is not None:
            self._losses.append(loss)
        self._num_batches += 1
        if self._num_batches % self._accumulated:
            return
        device = trainer.strategy.root_device
        synchronized(device)
        now = time.perf_counter()
        seconds, self._last = (now - self._last) / self._accumulated, now
        num_steps = self._num_batches // self._accumulated
        if num_steps <= (self._num_warm_up or _WARM_UP.get(device.type, _WARM_UP_ELSEWHERE)):
            self.sitting.warm_s += seconds * self._accumulated
            return
        self.sitting.times.append(seconds)
        if self._patience.is_over(self.sitting.times):
            raise _Enough

    def finished(self) -> Sitting:
        """Give what was seen, losses as numbers."""
        self.sitting.losses = [float(loss) for loss in self._losses]
        return self.sitting


def _loss_of(outputs: Any, trainer: Trainer) -> Tensor | None:
    """Give the loss of a step: what the step returns, else the first that it logs."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    if not isinstance(loss, Tensor):
        logged = trainer.callback_metrics
        loss = next((logged[name] for name in sorted(logged) if "loss" in name), None)
    return loss.detach().clone() if isinstance(loss, Tensor) and loss.numel() == 1 else None


@contextmanager
def _as_before(variant: Variant | None) -> Iterator[None]:
    """Compute with the variant's threads, and leave no memory, thread number or default type behind."""
    num_threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    with ExitStack() as stack:
        stack.callback(free)
        stack.callback(torch.set_default_dtype, dtype)
        stack.callback(torch.set_num_threads, num_threads)
        if variant is not None and variant.compile:
            stack.callback(torch.compiler.reset)
            stack.enter_context(_hushed_compiler())
        if variant is not None and variant.threads is not None:
            torch.set_num_threads(variant.threads)
        yield


@contextmanager
def _hushed_compiler() -> Iterator[None]:
    log = logging.getLogger("torch")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def free() -> None:
    """Give back the memory of what nobody refers to any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # does nothing before CUDA's first use
