"""Counts the samples that an evaluation has scored.

Whatever limits, samplers and loaders leave of a split.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Sized
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from pytorch_lightning import Trainer
from torch import Tensor
from torch.utils.data import DataLoader

from lightkit.callbacks.resume import gather


class SampleCounter:
    """The number of samples of one evaluation, on this rank and then on all."""

    def __init__(self) -> None:
        self._counts: dict[int, int | None] = defaultdict(int)
        self._weightless: dict[int, list[Tensor]] = defaultdict(list)

    def add(self, batch: Any, outputs: Any, *, loader: int) -> None:
        """Count a batch, without waiting for the device.

        Args:
            batch: The batch.
            outputs: What the step returned; its ``target`` is one a sample, and samples whose
                ``weights`` are 0 or less do not count, see
                `lightkit.callbacks.prediction_recorder.reduce_outputs`.
            loader: Number of its loader.
        """
        before = self._counts[loader]
        size = count_samples(batch, outputs)
        self._counts[loader] = None if before is None or size is None else before + size
        weights = outputs.get("weights") if isinstance(outputs, Mapping) else None
        if isinstance(weights, Tensor):
            self._weightless[loader].append((weights.detach() <= 0).sum())

    def total(self, trainer: Trainer, loaders: Any) -> int | None:
        """Return the number of samples over all ranks and loaders.

        None where it is unknown. For all ranks.

        Args:
            trainer: The trainer.
            loaders: The loader of the split, or the loaders. A sample that is given to two ranks,
                as a share is filled up, or twice by its sampler, counts once.
        """
        own = dict(self._counts)
        for loader, counts in self._weightless.items():
            if (number := own[loader]) is not None:
                own[loader] = number - int(torch.stack(counts).sum())
        shares = gather(trainer, own)
        if len(shares) != trainer.world_size:
            return None

        total = 0
        listed = list(loaders) if isinstance(loaders, Sequence) else [loaders]
        for loader in {number for share in shares for number in share}:
            counts_of_ranks = [share.get(loader, 0) for share in shares]
            if None in counts_of_ranks:
                return None
            number = sum(filter(None, counts_of_ranks))
            size = _count_stored(listed[loader]) if loader < len(listed) else None
            total += number if size is None else min(number, size)
        return total


def count_samples(batch: Any, outputs: Any = None) -> int | None:
    """Return the number of samples in a batch.

    None where its tensors do not agree on it, or it has none.

    Args:
        batch: The batch, however it is nested.
        outputs: What the step returned for it: a ``target`` in it has one element or row a sample.
    """
    target = outputs.get("target") if isinstance(outputs, Mapping) else None
    if isinstance(target, Tensor) and target.ndim:
        return len(target)
    tensors: list[Tensor] = []
    apply_to_collection(batch, Tensor, tensors.append)
    sizes = {len(tensor) for tensor in tensors if tensor.ndim}
    return sizes.pop() if len(sizes) == 1 else None


def _count_stored(loader: Any) -> int | None:
    """Return the number of samples of a loader's data set.

    None where it has no length, or that of its batches.

    A loader without a batch size hands the elements of its data set on as they are, which may be
    whole batches. Then only a ``num_samples`` of the data set is a number of samples, as lightkit's
    tables have it.
    """
    dataset = getattr(loader, "dataset", None)
    if isinstance(loader, DataLoader) and loader.batch_sampler is None:
        num_samples = getattr(dataset, "num_samples", None)
        return num_samples if isinstance(num_samples, int) else None
    try:
        return len(dataset) if isinstance(dataset, Sized) else None
    except (TypeError, NotImplementedError):
        return None
