"""Samples like those of an example, for a model whose data is not at hand."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["drawn"]


def drawn(example: Tensor, num: int) -> Tensor:
    """Give the samples of an example, and more of the same kind after them, the same ones each time.

    Args:
        example: ``(batch, ...)``; an empty batch tells dtype and shape alone.
        num: Number of samples that are wanted.

    Returns:
        ``(num, ...)`` of the same dtype: floats are normal with the example's mean and deviation, bytes are uniform,
        other whole numbers and booleans are the example's own, mixed anew.
    """
    missing = num - len(example)
    if missing <= 0:
        return example[:num]
    return torch.cat([example, _more(example, missing, torch.Generator().manual_seed(0))])


def _more(example: Tensor, num: int, generator: torch.Generator) -> Tensor:
    shape = (num, *example.shape[1:])
    if example.dtype.is_floating_point:
        mean, deviation = (example.mean(), example.std(correction=0)) if example.numel() else (0.0, 1.0)
        return (torch.randn(shape, generator=generator) * deviation + mean).to(example.dtype)
    if example.dtype == torch.uint8:
        return torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    if not example.numel():
        return torch.zeros(shape, dtype=example.dtype)
    total = int(torch.tensor(shape).prod())
    return example.flatten()[torch.randint(example.numel(), (total,), generator=generator)].view(shape)
