"""How often a training reads its photos, which decides whether `auto` keeps them decoded."""

from __future__ import annotations

import math

from pytorch_lightning import Trainer

__all__ = ["why_not"]


def why_not(trainer: Trainer | None, *, num_photos: int, batch_size: int) -> str:
    """Say why decoding all photos first would not pay; nothing where it does.

    Args:
        trainer: Knows the epochs, and what limits them; without one nothing is known.
        num_photos: Of the training split.
        batch_size: Of one process.
    """
    if trainer is None:
        return "nothing is known of a training"
    # Lightning (2.6.6) sets these from another module, where types are not seen
    if getattr(trainer, "fast_dev_run", False):
        return "fast_dev_run tries a few"
    if getattr(trainer, "overfit_batches", 0) > 0:
        return "overfit_batches reads a few"
    num_readings = _num_readings(trainer, num_photos, batch_size)
    if num_readings > num_photos:
        return ""
    return f"this training reads {num_readings:,.0f} of {num_photos:,}"


def _num_readings(trainer: Trainer, num_photos: int, batch_size: int) -> float:
    """Count the photos that all processes together train on; infinite where neither epochs nor steps are limited."""
    limit, of_all = trainer.limit_train_batches, batch_size * trainer.world_size
    an_epoch = min(num_photos, limit * of_all) if isinstance(limit, int) else num_photos * limit
    num_epochs, num_steps = trainer.max_epochs, trainer.max_steps
    in_epochs = math.inf if num_epochs in (None, -1) else num_epochs * an_epoch
    in_steps = math.inf if num_steps == -1 else num_steps * trainer.accumulate_grad_batches * of_all
    return min(in_epochs, in_steps)
