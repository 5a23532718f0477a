"""The batches of a loader, the same at each pass over them: all samples, in one order, counted and digested."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from lightning_utilities.core.apply_func import apply_to_collection
from numpy import ndarray
from torch import Tensor, uint8
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

__all__ = ["Passes", "class_labels", "is_by_sample"]

_MOST_KEPT_BYTES = 1 << 30
_PAIR = 2


class Passes:
    """A loader to go over several times. Small splits are kept from the first pass; large ones are read again.

    Each pass gives copies: steps and hooks that work in place change neither what is kept nor the data set.

    Args:
        loader: A data loader, or anything that gives batches anew each time. Where it shuffles, or drops the last
            batch, it does so no more.
        most_kept: Bytes of batches that are kept.
    """

    def __init__(self, loader: Any, *, most_kept: int = _MOST_KEPT_BYTES) -> None:
        self._loader = _all_in_order(loader)
        self._most_kept = most_kept
        self._kept: list[Any] | None = None
        self.digest = ""
        self.labels_digest = ""
        self.num_samples = 0

    def __iter__(self) -> Iterator[Any]:
        if self._kept is not None:
            return map(_copied, self._kept)
        return map(_copied, self._loader if self.digest else self._first())

    def _first(self) -> Iterator[Any]:
        samples, labels = hashlib.sha256(), hashlib.sha256()
        kept: list[Any] = []
        num_samples = size = 0
        for batch in self._loader:
            for tensor in _tensors(batch):
                samples.update(_bytes(tensor))
                size += tensor.nbytes
            if (its_labels := _labels(batch)) is not None:
                labels.update(_bytes(its_labels))
            num_samples += _count(batch)
            if size <= self._most_kept:
                kept.append(batch)
            else:
                kept.clear()
            yield batch
        self.digest, self.labels_digest, self.num_samples = samples.hexdigest(), labels.hexdigest(), num_samples
        self._kept = kept if size <= self._most_kept else None


def class_labels(batch: Any) -> Tensor | None:
    """Give the labels ``(batch,)`` of ``(inputs, labels, ...)``, None where it has none that count classes."""
    labels = _labels(batch)
    is_whole = labels is not None and not labels.is_floating_point() and not labels.is_complex() and labels.ndim == 1
    return labels if is_whole else None


def is_by_sample(part: Any, num_samples: int) -> bool:
    """Tell whether a part of a batch has an entry for each of its samples."""
    return isinstance(part, Tensor) and part.ndim > 0 and len(part) == num_samples


def _all_in_order(loader: Any) -> Any:
    """Let torch's own loader leave nothing out and keep its order; others are taken as they are."""
    sampler = getattr(loader, "batch_sampler", None)
    if isinstance(loader, DataLoader) and type(sampler) is BatchSampler:
        sampler.drop_last = False
        if isinstance(sampler.sampler, RandomSampler):
            sampler.sampler = SequentialSampler(loader.dataset)  # type: ignore[arg-type]  # a map, having had a sampler
    return loader


def _labels(batch: Any) -> Tensor | None:
    is_pair = isinstance(batch, (tuple, list)) and len(batch) >= _PAIR
    return batch[1] if is_pair and isinstance(batch[1], Tensor) else None


def _tensors(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for name in sorted(batch, key=str):
            yield from _tensors(batch[name])
    elif isinstance(batch, (tuple, list)):
        for part in batch:
            yield from _tensors(part)


def _copied(batch: Any) -> Any:
    """Give a batch with the same values in memory of its own."""
    return apply_to_collection(
        batch, (Tensor, ndarray), lambda part: part.clone() if isinstance(part, Tensor) else part.copy()
    )


def _count(batch: Any) -> int:
    """Count the samples of a batch, without those of weight 0 that stand in for images that cannot be read."""
    if isinstance(batch, (tuple, list)) and len(batch) > _PAIR:
        weights = batch[_PAIR]
        if is_by_sample(weights, len(weights)) and weights.ndim == 1 and weights.is_floating_point():
            return int((weights > 0).sum())
    first = next(_tensors(batch), None)
    return 0 if first is None else len(first) if first.ndim else 1


def _bytes(tensor: Tensor) -> Any:
    """Give the memory of a tensor, whatever its type is."""
    return tensor.detach().cpu().contiguous().flatten().view(uint8).numpy() if tensor.numel() else b""
