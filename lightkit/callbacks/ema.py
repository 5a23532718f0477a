"""Exponential moving average of the weights, from the first step on close to them."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import ModelPruning, WeightAveraging
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor

from lightkit.config.bounds import NonNegativeInt, Part, PositiveInt
from lightkit.errors import ConfigError
from lightkit.optimizer_steps import count_optimizer_steps


class EMA(WeightAveraging):
    """Average the weights over steps; validation, checkpoints, tests and exports have the average.

    After an update the average is ``d * average + (1 - d) * weights`` with
    ``d = min(decay, (1 + n) / (10 + n))`` for the n updates before it (as the moving averages of
    TensorFlow), so that a short training is not dominated by the weights that it began with. The
    first update copies the weights, and until then the average follows them. Buffers, such as the
    statistics of a BatchNorm, are averaged too, and whole numbers are copied. A resumed training
    goes on with the same average, to the bit.

    Args:
        decay: Share of the average that a step keeps in the end, from 0 to below 1: about
            ``1 / (1 - decay)`` steps count.
        update_every_n_steps: Optimizer steps from one update to the next.
        update_starting_at_step: Optimizer steps before the first update.
        update_starting_at_epoch: Epochs before the first update; with a step too, both must be
            over.
    """

    def __init__(
        self,
        decay: Part = 0.999,
        update_every_n_steps: PositiveInt = 1,
        update_starting_at_step: NonNegativeInt | None = None,
        update_starting_at_epoch: NonNegativeInt | None = None,
    ) -> None:
        super().__init__()
        if not 0 <= decay < 1:
            raise ConfigError(
                f"callbacks.ema.init_args.decay: expected at least 0 and below 1, got {decay}."
            )
        if update_every_n_steps < 1:
            raise ConfigError(
                "callbacks.ema.init_args.update_every_n_steps: expected at least 1, got"
                f" {update_every_n_steps}."
            )
        self.decay = decay
        self.update_every_n_steps = update_every_n_steps
        self.update_starting_at_step = update_starting_at_step
        self.update_starting_at_epoch = update_starting_at_epoch
        self.num_updates = 0
        self._num_seen = 0  # optimizer steps up to the batch before

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Copy the model for the average.

        Raises:
            ConfigError: If the training ends before the epoch of the first update, or a callback
                replaces parameters.
        """
        if stage == "fit" and any(isinstance(each, ModelPruning) for each in trainer.callbacks):  # type: ignore[attr-defined]
            raise ConfigError(
                "callbacks.ema: it cannot be together with callbacks.pruning, which replaces the"
                " parameters that are averaged by others. Leave one of them out."
            )
        epoch = self.update_starting_at_epoch
        has_end = trainer.max_epochs is not None and trainer.max_epochs >= 0
        if stage == "fit" and epoch is not None and has_end and epoch >= (trainer.max_epochs or 0):
            raise ConfigError(
                f"callbacks.ema.init_args.update_starting_at_epoch: {epoch} epochs are never over,"
                f" as trainer.max_epochs is {trainer.max_epochs}, so that nothing would be"
                " averaged. Set it lower."
            )
        self.num_updates = 0
        # of models that are built late: their layers are all on each process here
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message="You're using the WeightAveraging callback with a model that"
            )
            super().setup(trainer, pl_module, stage)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check whether the first update is ever due, and count from the steps that are done.

        Raises:
            ConfigError: If the training has fewer steps.
        """
        self._num_seen = trainer.global_step
        step = self.update_starting_at_step
        # only the module knows how many steps a manual optimization makes
        num_steps = math.inf
        if step is not None and pl_module.automatic_optimization:
            num_steps = count_optimizer_steps(trainer)
        if step is not None and step >= num_steps:
            raise ConfigError(
                f"callbacks.ema.init_args.update_starting_at_step: {step} steps are never over, as"
                f" the training has {num_steps:g}, so that nothing would be averaged. Set it lower."
            )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Update the average after the optimizer steps of a batch, where one is due."""
        step = trainer.global_step - 1
        # several optimizers make several steps in one batch, of which any may be the one
        every = self.update_every_n_steps
        is_due = step // every > (self._num_seen - 1) // every
        self._num_seen = trainer.global_step
        has_begun = step >= (self.update_starting_at_step or 0)
        has_begun = has_begun and trainer.current_epoch >= (self.update_starting_at_epoch or 0)
        if is_due and has_begun:
            self._update(pl_module)
            self._latest_update_step = trainer.global_step

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Do nothing: updates are due after steps."""

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the average in place of the weights."""
        self._follow(pl_module)
        super().on_train_end(trainer, pl_module)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the average in place of the weights, for a validation of the training."""
        if trainer.state.fn == TrainerFn.FITTING:
            self._follow(pl_module)
            super().on_validation_epoch_start(trainer, pl_module)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the weights back."""
        if trainer.state.fn == TrainerFn.FITTING:
            super().on_validation_epoch_end(trainer, pl_module)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Save the average as the weights, and the weights for a resume."""
        self._follow(pl_module)
        super().on_save_checkpoint(trainer, pl_module, checkpoint)

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Restore the average and the weights of a training."""
        if self._average_model is None:  # of a test or a prediction, whose weights are the average
            return
        super().on_load_checkpoint(trainer, pl_module, checkpoint)
        self.num_updates = int(self._average_model.n_averaged)

    @torch.no_grad()
    def _update(self, module: LightningModule) -> None:
        """Add the weights to the average."""
        assert self._average_model is not None
        num = self.num_updates
        decay = min(self.decay, (1 + num) / (10 + num))
        for average, current in self._list_pairs(module):
            if num == 0 or not average.is_floating_point():
                average.copy_(current)
            else:
                average.lerp_(current.to(average), 1 - decay)
        self.num_updates += 1
        self._average_model.n_averaged.fill_(self.num_updates)

    @torch.no_grad()
    def _follow(self, module: LightningModule) -> None:
        """Copy the weights to the average, as long as it has not begun."""
        if self._average_model is None or self.num_updates:
            return
        for average, current in self._list_pairs(module):
            average.copy_(current)

    def _list_pairs(self, module: LightningModule) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over the parameters and buffers of the average, each with that of the model."""
        assert self._average_model is not None
        own = self._average_model.module
        averages = itertools.chain(own.parameters(), own.buffers())
        yield from zip(
            averages, itertools.chain(module.parameters(), module.buffers()), strict=True
        )
