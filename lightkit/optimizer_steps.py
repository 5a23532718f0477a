"""Number of the optimizer steps of a training.

Lightning's own number (`Trainer.estimated_stepping_batches`, 2.6.6) takes the accumulation of the
present epoch for that of all. Where `GradientAccumulationScheduler` changes it, that number jumps
at each change, and a schedule that ends by it ends early or never.
"""

from __future__ import annotations

import math
from itertools import pairwise

from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import GradientAccumulationScheduler


def count_optimizer_steps(trainer: Trainer) -> float:
    """Count the optimizer steps of the whole training, with its limits.

    Args:
        trainer: About to train, or training.

    Returns:
        Infinite where the training has no known end.
    """
    estimated = float(trainer.estimated_stepping_batches)  # -1 of a stream without a limit
    scheduler = _find_scheduler(trainer)
    epochs = trainer.max_epochs
    is_endless = epochs is None or epochs < 0 or math.isinf(trainer.num_training_batches)
    if scheduler is None or is_endless:
        return math.inf if estimated < 0 else estimated

    # of each stretch of epochs with one accumulation
    end = max(epochs or 0, 1)
    bounds = [*(min(epoch, end) for epoch in sorted({0, *scheduler.scheduling})), end]
    num_steps = sum(
        (until - start) * count_epoch_steps(trainer, start) for start, until in pairwise(bounds)
    )
    return float(num_steps if trainer.max_steps < 0 else min(num_steps, trainer.max_steps))


def count_epoch_steps(trainer: Trainer, epoch: int) -> int:
    """Count the optimizer steps of one epoch.

    Args:
        trainer: With a training loader of known length.
        epoch: Number of the epoch.
    """
    return math.ceil(trainer.num_training_batches / _find_accumulation(trainer, epoch))


def count_schedule_steps(trainer: Trainer, frequency: int) -> int:
    """Count the steps that a schedule with ``interval: step`` makes in the whole training.

    Lightning (2.6.6) makes one after each optimizer step whose batch, counted from the beginning of
    its epoch, the frequency divides.

    Args:
        trainer: Of a training that has an end.
        frequency: Of the schedule.
    """
    left = int(count_optimizer_steps(trainer))
    if frequency == 1:
        return left
    batches = trainer.num_training_batches
    num_steps = 0
    epoch = 0
    while left > 0:
        accumulated = _find_accumulation(trainer, epoch)
        in_epoch = whole = left  # of a stream of unknown length
        if not math.isinf(batches):
            in_epoch = min(left, count_epoch_steps(trainer, epoch))
            # the last step of an epoch may have fewer batches than the others
            whole = min(in_epoch, int(batches // accumulated))
        num_steps += whole * accumulated // math.lcm(accumulated, frequency)
        num_steps += int(whole < in_epoch and batches % frequency == 0)
        left -= in_epoch
        epoch += 1
    return num_steps


def _find_accumulation(trainer: Trainer, epoch: int) -> int:
    """Find the number of batches to an optimizer step in an epoch."""
    scheduler = _find_scheduler(trainer)
    if scheduler is None:
        return trainer.accumulate_grad_batches
    return scheduler.get_accumulate_grad_batches(epoch)


def _find_scheduler(trainer: Trainer) -> GradientAccumulationScheduler | None:
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    found = (each for each in callbacks if isinstance(each, GradientAccumulationScheduler))
    return next(found, None)
