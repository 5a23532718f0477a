"""Losses that are looked at some batches late, so that nobody waits for the device."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["LateLosses", "Place"]

_NUM_BATCHES = 16


class Place(NamedTuple):
    """Where a batch is.

    Args:
        epoch: From 0.
        step: Optimizer steps before it.
        batch: Its number in the epoch, from 0.
    """

    epoch: int
    step: int
    batch: int


class LateLosses:
    """Keep the losses of batches on their device; after some batches they are sent, and read after as many more.

    So a bad loss is seen late, by up to twice as many batches; on a GPU no step waits for it in return.
    """

    def __init__(self) -> None:
        self._losses: list[tuple[Place, Tensor]] = []
        self._sent: list[_Block] = []
        self._num_batches = 0

    @property
    def is_due(self) -> bool:
        """Whether it is time to look; after the same batch on every process."""
        return self._num_batches >= _NUM_BATCHES

    def add(self, place: Place, loss: Tensor | None) -> None:
        """Keep the loss of a batch, if it has one."""
        self._num_batches += 1
        if loss is not None:
            self._losses.append((place, loss.detach().sum().clone()))

    def older(self) -> list[tuple[Place, float]]:
        """Give what was sent the time before, and send the rest."""
        before, self._sent = self._sent, []
        self._send()
        return [each for block in before for each in block.read()]

    def all(self) -> list[tuple[Place, float]]:
        """Give all, which waits for the device."""
        self._send()
        blocks, self._sent = self._sent, []
        return [each for block in blocks for each in block.read()]

    def _send(self) -> None:
        self._num_batches = 0
        if self._losses:
            self._sent.append(_Block(self._losses))
            self._losses = []


class _Block:
    """The losses of some batches on their way to the CPU."""

    def __init__(self, losses: list[tuple[Place, Tensor]]) -> None:
        self._places = [place for place, _ in losses]
        values = torch.stack([loss.float() for _, loss in losses])
        self._copied = torch.cuda.Event() if values.is_cuda else None  # type: ignore[no-untyped-call]
        self._values = values.to("cpu", non_blocking=values.is_cuda)
        if self._copied is not None:
            self._copied.record()

    def read(self) -> list[tuple[Place, float]]:
        """Give the losses; the copy is done long ago where others were computed since."""
        if self._copied is not None:
            self._copied.synchronize()
        return list(zip(self._places, self._values.tolist(), strict=True))
