"""What processes that train together ask each other between two batches, without a message after each of them."""

from __future__ import annotations

import time

import torch
from pytorch_lightning import Trainer

__all__ = ["DistributedFlag"]

EVERY_S = 0.2
MOST_BATCHES = 8


class DistributedFlag:
    """Tells all processes after the same batch that one of them wants something.

    A message for which all of them wait takes a millisecond, or several where Horovod looks for work less often. Of
    short batches some pass without one: as many as take `EVERY_S` in the slowest process, `MOST_BATCHES` at most. What
    a process wants it must therefore want until all know.
    """

    def __init__(self) -> None:
        self._num_batches = self._num_left = 1
        self._asked_at_s = time.monotonic()

    def after_batch(self, trainer: Trainer, wanted: bool, *, soon: bool = False, at_once: bool = False) -> bool:
        """Say whether any process wants it; False where it is too early to ask.

        Args:
            trainer: Of this process. All must call it after the same batches.
            wanted: What this process wants.
            soon: This process may want it so soon that all are to ask after each batch from the next question on.
            at_once: Ask now, since something long comes next; the same in all processes.
        """
        if trainer.world_size == 1:
            return wanted
        self._num_left -= 1
        if self._num_left and not at_once:
            return False
        num_passed = self._num_batches - self._num_left
        own = [float(wanted), float(soon), time.monotonic() - self._asked_at_s]
        every = trainer.strategy.all_gather(torch.tensor(own, device=trainer.strategy.root_device))
        is_wanted, is_soon, seconds = every.reshape(-1, len(own)).amax(0).tolist()
        self._asked_at_s = time.monotonic()
        in_time = int(num_passed * EVERY_S / max(seconds, 1e-6))
        most = 1 if is_wanted or is_soon else min(in_time, 2 * self._num_batches, MOST_BATCHES)
        self._num_batches = max(1, most)
        self._num_left = self._num_batches
        return bool(is_wanted)
