"""Which samples of a split are taken: of every class alike where labels are known, else evenly over its order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
)

__all__ = ["chosen_batches", "labels_of", "spread"]

_SEED = 0


def spread(count: int, num: int, labels: Sequence[Any] | None) -> list[int]:
    """Choose samples so that a split that is sorted by class gives some of each.

    Args:
        count: Number of samples that there are.
        num: That are wanted, at most.
        labels: Of all samples. One of each class is taken in turn, by a fixed seed; without labels every so many-th.

    Returns:
        Places of samples; with labels the classes alternate.
    """
    num = min(num, count)
    if labels is None:
        return [(2 * at + 1) * count // (2 * num) for at in range(num)]
    turns: dict[int, int] = {}
    ranked = []
    for index in np.random.default_rng(_SEED).permutation(count).tolist():
        label = int(labels[index])
        turns[label] = turns.get(label, 0) + 1
        ranked.append((turns[label], index))
    return [index for _, index in sorted(ranked, key=lambda pair: pair[0])[:num]]


def labels_of(source: Any) -> Sequence[Any] | None:
    """Give the labels of a split's images, where they are known without decoding one."""
    photos = getattr(source, "photos", None)
    labels: Sequence[Any] | None = getattr(source, "labels", None)
    return labels if photos is None else [photo.label for photo in photos]


def chosen_batches(loader: Any, num: int, labels: Sequence[Any] | None) -> tuple[DataLoader[Any], list[int]] | None:
    """Give a loader of samples that are spread over another's split, in the split's order and in batches as large.

    Args:
        loader: Any loader.
        num: How many samples are wanted, at most.
        labels: Of its dataset's samples; ignored where they are not as many.

    Returns:
        The loader, and the places in the dataset. None where a sample cannot be asked for by its place, or where the
        loader decides itself what belongs together: a stream, a batch sampler or a sampler of the user's own.
    """
    places = _places(loader)
    if not places:
        return None
    known = labels if labels is not None and len(labels) == len(loader.dataset) else None
    of_places = None if known is None else [known[place] for place in places]
    chosen = sorted(places[at] for at in spread(len(places), num, of_places))
    size = loader.batch_size
    batches = [chosen[start : start + size] for start in range(0, len(chosen), size)]
    return DataLoader(loader.dataset, batch_sampler=batches, collate_fn=loader.collate_fn), chosen


def _places(loader: Any) -> Sequence[int] | None:
    """All that a loader goes through, sorted, where it is one of torch's own that goes through a dataset by number."""
    if not isinstance(loader, DataLoader) or type(loader).__iter__ is not DataLoader.__iter__:
        return None
    if isinstance(loader.dataset, IterableDataset) or type(loader.batch_sampler) is not BatchSampler:
        return None
    if type(loader.sampler) in (SequentialSampler, RandomSampler):
        return range(len(loader.dataset))  # type: ignore[arg-type]
    return sorted(loader.sampler.indices) if type(loader.sampler) is SubsetRandomSampler else None
