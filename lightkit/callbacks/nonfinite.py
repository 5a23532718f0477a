"""A loss, or a weight, that is NaN or infinite is told with its samples, and kept out of checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.loops.optimization.automatic import Closure
from torch import Tensor
from torch.optim import Optimizer

from lightkit import runs
from lightkit.callbacks.bad_batches import BadBatch, BadBatches, fault_of_loss, loss_of
from lightkit.callbacks.finite_weights import not_finite_at_first, spoilt_weights
from lightkit.callbacks.late_losses import LateLosses, Place
from lightkit.callbacks.resume import gather
from lightkit.callbacks.sample_indices import BatchIndices
from lightkit.callbacks.undoing import Snapshot
from lightkit.errors import ConfigError, NonfiniteLoss

__all__ = ["FiniteLoss"]

_MOST_IN_A_ROW = 10
_NUM_NAMED = 3
_OF_NONE = "`training_step` returned `None`. If this was on purpose, ignore this warning..."  # Lightning 2.6.6


class FiniteLoss(Callback):
    """Watch the loss of each training batch, and the weights before each checkpoint.

    On the CPU, in one process, it is looked at before the backward pass. On a GPU, and where several processes train
    together, `stop` looks at the losses of 16 batches at once, and always before a validation and before a checkpoint
    is written, so that no step waits for the device; `skip` must know before the optimizer steps, and waits for each
    loss. A model that steps its optimizers itself is watched by what it returns, or where it returns
    nothing by what it gives `manual_backward`.

    A finite loss can have gradients that are not: no checkpoint is written of weights that are NaN or infinite, nor of
    running statistics, unless they were so from the beginning as masks are.

    Args:
        action: `stop` ends the run. `skip` leaves the batch out: no optimizer step, and nothing of it in metrics and
            running statistics; several processes leave out all their batches of that step, and the accumulation that
            it is part of. Ten such batches in a row, or an epoch that has no other, end the run.
        events: Gets an event for each such batch.
        last_good: Finds the newest checkpoint that can be trusted.
    """

    def __init__(
        self,
        action: Literal["stop", "skip"],
        *,
        events: runs.EventStream,
        last_good: Callable[[], Path | None],
    ) -> None:
        self._action, self._last_good = action, last_good
        self._bad = BadBatches(events)
        self._indices = BatchIndices()
        self._late: LateLosses | None = None
        self._trainer: Trainer | None = None
        self._snapshot: Snapshot | None = None
        self._batch = 0
        self._drops_gradients = False
        self._spoilt: NonfiniteLoss | None = None
        self._backward: list[Tensor] = []
        self._left_out: list[BadBatch] = []
        self._num_left_out = 0
        self._on_purpose: set[str] = set()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """See the training batches, and what their steps give.

        Raises:
            ConfigError: If the model steps its optimizers itself, so that nothing can be left out.
        """
        if self._action != "stop" and not pl_module.automatic_optimization:
            raise ConfigError(
                f"watchdog.on_nonfinite: {self._action} needs automatic optimization, but {type(pl_module).__name__} "
                "steps its optimizers itself, before anybody else sees the loss. Expected stop."
            )
        self._trainer = trainer
        self._on_purpose = not_finite_at_first(pl_module)
        strategy: Any = trainer.strategy
        step, process = strategy.training_step, strategy.process_dataloader
        # Lightning has no hook between a step and its backward pass that could leave the batch out.
        strategy.training_step = lambda *args, **kwargs: self._checked(trainer, lambda: step(*args, **kwargs))
        strategy.process_dataloader = lambda loader: process(
            self._indices.watch(loader) if trainer.training else loader
        )
        # Here, not in a hook: there is none for checkpoints of weights alone.
        strategy.save_checkpoint = partial(self._save, trainer, strategy.save_checkpoint)
        if not pl_module.automatic_optimization:
            strategy.backward = partial(self._go_back, strategy.backward)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep what can be needed to undo a batch."""
        if self._action == "stop":
            on_cpu = trainer.strategy.root_device.type == "cpu"
            self._late = None if on_cpu and trainer.world_size == 1 else LateLosses()
            return
        self._snapshot = Snapshot(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count the batches that are skipped from 0 again."""
        self._num_left_out = 0

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Know which batch it is."""
        self._batch = batch_idx

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Let the optimizer find no gradients where the batch of one process has spoilt those of all."""
        if self._drops_gradients:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None
            self._drops_gradients = False

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Look at the losses of some batches where that is due."""
        if self._late is not None and self._late.is_due:
            self._judge(trainer, self._late.older())

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Do not measure weights that are spoilt."""
        if self._late is not None and not trainer.sanity_checking:
            self._judge(trainer, self._late.all())

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Nothing is left to look at when the epoch is over.

        Raises:
            NonfiniteLoss: If a loss was not finite, or all batches of the epoch were left out.
        """
        if self._num_left_out > self._batch:
            raise self._stopped(trainer, self._left_out, "So were those of all batches of this epoch. ")
        if self._late is not None:
            self._judge(trainer, self._late.all())

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Let no spoilt weights into a checkpoint.

        Raises:
            NonfiniteLoss: If they are.
        """
        if self._spoilt is not None:
            raise self._spoilt
        if self._late is not None:
            self._judge(trainer, self._late.all())

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Let the strategy be as it was."""
        for name in ("training_step", "process_dataloader", "save_checkpoint", "backward"):
            vars(trainer.strategy).pop(name, None)

    def _checked(self, trainer: Trainer, step: Callable[[], Any]) -> Any:
        """Run a training step; give None in place of its output where its batch is to be left out."""
        place = Place(trainer.current_epoch, trainer.global_step, self._batch)
        if self._snapshot is not None:
            self._snapshot.take()
        output = step()
        loss = loss_of(output)
        if self._backward:
            loss = torch.stack(self._backward).sum() if loss is None else loss
            self._backward.clear()
        if self._late is not None:
            self._late.add(place, loss)
            return output
        found = self._found(trainer, place, None if loss is None else fault_of_loss(loss))
        if not found:
            self._bad.num_in_a_row = 0
            return output
        if self._action == "stop":
            raise self._stopped(trainer, found, spoilt=not trainer.lightning_module.automatic_optimization)
        self._leave_out(trainer, found)
        if trainer.world_size == 1:
            Closure.warning_cache.add(_OF_NONE)  # which Lightning would say of what comes now
            return None
        # Every process must go through the backward pass, in which they wait for each other.
        self._drops_gradients = True
        return output

    def _leave_out(self, trainer: Trainer, found: Sequence[BadBatch]) -> None:
        assert self._snapshot is not None
        self._snapshot.restore()
        self._bad.num_in_a_row += 1
        self._num_left_out, self._left_out = self._num_left_out + 1, list(found)
        if self._bad.num_in_a_row >= _MOST_IN_A_ROW:
            raise self._stopped(trainer, found, f"So were those of the {_MOST_IN_A_ROW - 1} batches before it. ")
        if trainer.is_global_zero:
            self._bad.left_out(found)

    def _judge(self, trainer: Trainer, losses: Sequence[tuple[Place, float]]) -> None:
        """End the run on all processes where a loss on one of them was not finite."""
        place, value = next(((at, value) for at, value in losses if not math.isfinite(value)), (Place(0, 0, 0), 0.0))
        found = self._found(trainer, place, None if math.isfinite(value) else str(value))
        if found:
            raise self._stopped(trainer, found, spoilt=True)

    def _go_back(self, backward: Callable[..., Tensor], loss: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        self._backward.append(loss.detach().sum())
        return backward(loss, *args, **kwargs)

    def _save(self, trainer: Trainer, save: Callable[..., None], checkpoint: Any, *args: Any, **kwargs: Any) -> None:
        self._judge_weights(trainer, checkpoint.get("state_dict") or {})
        save(checkpoint, *args, **kwargs)

    def _judge_weights(self, trainer: Trainer, state: Mapping[str, Any]) -> None:
        """End the run on all processes where weights that are about to be saved are not finite."""
        if self._spoilt is not None:
            raise self._spoilt
        names = spoilt_weights(state, apart_from=self._on_purpose)
        if trainer.world_size > 1 and trainer.strategy.reduce_boolean_decision(bool(names), all=False):
            names = sorted({name for others in gather(trainer, names) for name in others})
        if names:
            raise self._spoilt_weights(trainer, names)

    def _spoilt_weights(self, trainer: Trainer, names: Sequence[str]) -> NonfiniteLoss:
        """Tell of weights that became bad between two checkpoints; the samples of the newest batch are a hint only."""
        place = Place(trainer.current_epoch, trainer.global_step, self._batch)
        if trainer.is_global_zero:
            indices = self._indices.of(epoch=place.epoch, batch=place.batch)
            self._bad.note(BadBatch(*place, "finite", indices, self._indices.names(indices)), "stop", weights=names)
        more = ", ..." * (len(names) > _NUM_NAMED)
        self._spoilt = NonfiniteLoss(
            f"After epoch {place.epoch}, step {place.step} weights are NaN or infinite ({', '.join(names[:_NUM_NAMED])}"
            f"{more}), though the losses were finite. No checkpoint has them: {self._whence()}. "
            "Look at the loss for the gradient of a root or a quotient at 0 (trainer.detect_anomaly finds it), and at "
            "the learning rate."
        )
        return self._spoilt

    def _whence(self) -> str:
        good = self._last_good()
        return "there is no checkpoint yet" if good is None else f"the last good checkpoint is {good}"

    def _found(self, trainer: Trainer, place: Place, fault: str | None) -> list[BadBatch]:
        """Give the earliest bad batches, one of each process that has one then."""
        own = None
        if fault is not None:
            indices = self._indices.of(epoch=place.epoch, batch=place.batch)
            own = BadBatch(*place, fault, indices, self._indices.names(indices), trainer.global_rank)
        if trainer.world_size == 1:
            return [] if own is None else [own]
        if not trainer.strategy.reduce_boolean_decision(own is not None, all=False):
            return []
        found = [bad for bad in gather(trainer, own) if bad is not None]
        first = min((bad.epoch, bad.batch) for bad in found)
        return [bad for bad in found if (bad.epoch, bad.batch) == first]

    def _stopped(
        self, trainer: Trainer, found: Sequence[BadBatch], why: str = "", *, spoilt: bool = False
    ) -> NonfiniteLoss:
        if trainer.is_global_zero:
            for bad in found:
                self._bad.note(bad, "stop")
        advice = "Look at these samples and the learning rate"
        more = f"{advice}; watchdog.on_nonfinite=skip leaves such batches out." * (self._action == "stop")
        error = NonfiniteLoss(
            f"{found[0]}. {why}Nothing of it is in a checkpoint: {self._whence()}. {more or advice + '.'}"
        )
        self._spoilt = error if spoilt else None
        return error
