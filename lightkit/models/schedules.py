"""A schedule of the learning rate with a warm-up, for `lr_scheduler` in a config."""

from __future__ import annotations

import math

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightkit.config.bounds import Fraction, NonNegativeInt, PositiveInt


class WarmupCosineLR(LRScheduler):
    """Raise the learning rate evenly to the optimizer's own, then lower it along half a cosine.

    With ``interval: step`` next to ``class_path`` it counts steps of the optimizer, else epochs.
    Unlike OneCycleLR it leaves the rate at the top to the optimizer, and its momentum alone. The
    warm-up is that of Goyal et al. 2017, arXiv:1706.02677, section 2.2; the cosine that of
    Loshchilov and Hutter 2017, arXiv:1608.03983, without restarts.

    Args:
        optimizer: Its optimizer.
        total_steps: Number of steps of the whole schedule, its warm-up included; ``auto`` counts
            those of the training.
        warmup_steps: Steps until the full rate is reached: step k of them, from 0, has (k + 1) /
            (warmup_steps + 1) of it.
        end_factor: Part of the full rate that is left at the end.
        last_epoch: As for every schedule of torch.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        total_steps: PositiveInt,
        warmup_steps: NonNegativeInt = 0,
        end_factor: Fraction = 0.0,
        last_epoch: int = -1,
    ) -> None:
        self.total_steps = total_steps
        self.warmup_steps = warmup_steps
        self.end_factor = end_factor
        super().__init__(optimizer, last_epoch)

    def factor(self, step: int) -> float:
        """Return the part of the full rate that a step has, from 0 on."""
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        length = max(1, self.total_steps - self.warmup_steps)
        part = min(1.0, (step - self.warmup_steps) / length)
        return self.end_factor + (1 - self.end_factor) * (1 + math.cos(math.pi * part)) / 2

    def get_lr(self) -> list[float | Tensor]:
        """Return the rate of each group of parameters at the present step."""
        return [rate * self.factor(self.last_epoch) for rate in self.base_lrs]
