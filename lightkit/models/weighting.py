"""Batches whose samples weigh differently, and batches that stand for none: a blank sample of weight 0."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["Parts", "keeping_statistics", "normalising", "parts_of", "weighted_mean"]

_NUM_WITHOUT = 2


class Parts(NamedTuple):
    """What a batch of samples is made of.

    Args:
        inputs: ``(batch, ...)``.
        targets: ``(batch, ...)``.
        weights: ``(batch,)``, at least 0; None where all weigh the same. What weighs nothing is left out of the loss
            and of all metrics.
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor | None

    @property
    def counted(self) -> Tensor | slice:
        """Chooses the rows that count."""
        return slice(None) if self.weights is None else self.weights > 0

    @property
    def is_blank(self) -> bool:
        """Whether it is the one blank sample that stands for a batch of which nothing could be read."""
        return self.weights is not None and len(self.weights) == 1 and not bool(self.weights.any())


def parts_of(batch: Sequence[Tensor]) -> Parts:
    """Give the parts of ``(inputs, targets)`` or ``(inputs, targets, weights)``."""
    if len(batch) == _NUM_WITHOUT:
        return Parts(batch[0], batch[1], None)
    inputs, targets, weights = batch
    return Parts(inputs, targets, weights)


def weighted_mean(losses: Tensor, weights: Tensor) -> Tensor:
    """Give ``sum(weights * losses) / sum(weights)``; 0, with gradients of 0, where nothing weighs anything.

    Args:
        losses: ``(batch,)``.
        weights: ``(batch,)``, at least 0.
    """
    weights = weights.to(losses.dtype)
    total = weights.sum()
    # where, for 0 times an infinite loss is not 0
    weighted = torch.where(weights > 0, losses * weights, torch.zeros_like(losses)).sum()
    return weighted / torch.where(total > 0, total, torch.ones_like(total))


def normalising(network: nn.Module, parts: Parts) -> AbstractContextManager[None]:
    """Within it a network's BatchNorm can take a batch, also of one sample or of none.

    A SyncBatchNorm is left alone: the other processes wait for it.
    """
    if parts.is_blank:
        return keeping_statistics(network)
    return _sparing_single_pixels(network) if len(parts.inputs) == 1 else nullcontext()


@contextmanager
def keeping_statistics(network: nn.Module) -> Iterator[None]:
    """Within it a network's BatchNorm takes the statistics that it has, and learns none from a blank sample."""
    norms = _learning(network)
    for norm in norms:
        norm.eval()
    try:
        yield
    finally:
        for norm in norms:
            norm.train()


@contextmanager
def _sparing_single_pixels(network: nn.Module) -> Iterator[None]:
    """Within it a BatchNorm takes the statistics that it has for features of a single pixel of a single sample.

    They have no spread of their own, which is an error in torch; the last batch of an epoch may be of one sample, and
    any batch whose other images could not be read.
    """
    norms = _learning(network)
    hooks = [norm.register_forward_pre_hook(_spare_single_pixel) for norm in norms]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for norm in norms:
            norm.train()


def _spare_single_pixel(norm: nn.Module, inputs: tuple[Any, ...]) -> None:
    if inputs[0].numel() == inputs[0].shape[1]:
        norm.eval()


def _learning(network: nn.Module) -> list[nn.Module]:
    return [
        module
        for module in network.modules()
        if isinstance(module, _BatchNorm) and not isinstance(module, nn.SyncBatchNorm) and module.training
    ]
