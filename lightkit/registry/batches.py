"""Batches in any form: their tensors, their labels, and some of their samples.

A batch is a tensor, or a tuple, list, mapping, dataclass or plain object of such parts. Labels are
the second element of a tuple or list, or the one entry or attribute with a name that labels
commonly have.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor

LABEL_NAMES = ("label", "labels", "target", "targets", "y")
"""Names of the labels in a mapping or an object, as Hugging Face, MONAI, torchgeo and others write
them."""


def list_tensors(batch: Any) -> Iterator[Tensor]:
    """List the tensors of a batch in a fixed order."""
    if isinstance(batch, Tensor):
        yield batch
        return
    for _, part in _list_parts(batch):
        yield from list_tensors(part)


def count_samples(batch: Any) -> int:
    """Return the number of samples of a batch.

    Of its list of mappings, one a sample, else of its first tensor.

    Detectors have a list of targets, as images have unequal numbers of boxes, and often a list of
    images.
    """
    for part in (batch, *(part for _, part in _list_parts(batch))):
        if (
            isinstance(part, (list, tuple))
            and part
            and all(isinstance(each, Mapping) for each in part)
        ):
            return len(part)
    return next((len(tensor) for tensor in list_tensors(batch) if tensor.ndim), 0)


def find_labels(batch: Any) -> Tensor | None:
    """Return the labels of a batch; None where none can be told from the rest."""
    place = _find_label_place(batch)
    return None if place is None else dict(_list_parts(batch))[place]


def replace_labels(batch: Any, labels: Tensor) -> Any:
    """Return a batch with other labels in the place of those that `find_labels` returns."""
    place = _find_label_place(batch)
    return _rebuild(batch, lambda name, part: labels if name == place else part)


def take_samples(batch: Any, chosen: Tensor) -> Any:
    """Return the chosen samples of a batch.

    Args:
        batch: The batch.
        chosen: Bool ``(batch,)``.

    Returns:
        A batch of the same form. Of each part with as many elements as the batch has samples, the
        chosen ones are left.
    """
    size = len(chosen)
    if isinstance(batch, Tensor):
        is_of_samples = batch.ndim > 0 and len(batch) == size
        return batch[chosen.to(batch.device)] if is_of_samples else batch
    if (
        isinstance(batch, (list, tuple))
        and len(batch) == size
        and all(isinstance(each, (str, int, float)) for each in batch)
    ):
        kept = [each for each, is_chosen in zip(batch, chosen.tolist(), strict=True) if is_chosen]
        return tuple(kept) if isinstance(batch, tuple) else kept
    return _rebuild(batch, lambda _, part: take_samples(part, chosen))


def map_labels(labels: Tensor, numbers: Sequence[int]) -> Tensor | None:
    """Number labels of classes anew.

    Args:
        labels: Whole numbers of any shape, where numbers beyond the classes, such as -100, mean no
            class; or ones and zeros ``(batch, classes)`` in floating point, a column a class.
        numbers: The new number of each class.

    Returns:
        The labels in the new numbers; None where they are none of the two, or it is unclear which.
    """
    num_classes = len(numbers)
    are_columns = labels.ndim == 2 and labels.shape[1] == num_classes
    if labels.is_floating_point() and are_columns:
        width = max(numbers) + 1
        renumbered = labels.new_zeros(len(labels), width)
        renumbered[:, list(numbers)] = labels
        # a column for a class that the data lacks would change the shape that a loss expects
        return renumbered if width == num_classes else None
    if (
        labels.is_floating_point()
        or labels.is_complex()
        or labels.dtype == torch.bool
        or are_columns
        or not labels.ndim
    ):
        return None
    is_class = (labels >= 0) & (labels < num_classes)
    table = torch.tensor(list(numbers), dtype=labels.dtype, device=labels.device)
    return torch.where(is_class, table[labels.clamp(0, num_classes - 1).long()], labels)


def _find_label_place(batch: Any) -> Any:
    """Return the index, key or attribute of the labels.

    None where there is none, or more than one.
    """
    parts = dict(_list_parts(batch))
    is_sequence = isinstance(batch, (tuple, list))
    found = [
        name
        for name, part in parts.items()
        if str(name).lower() in LABEL_NAMES and isinstance(part, Tensor)
    ]
    if is_sequence and not found:
        found = [name for name in list(parts)[1:2] if isinstance(parts[name], Tensor)]
    return found[0] if len(found) == 1 else None


def _list_parts(batch: Any) -> list[tuple[Any, Any]]:
    """List the parts of a batch, each by its key, name or index."""
    if isinstance(batch, Mapping):
        return list(batch.items())
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return list(zip(batch._fields, batch, strict=True))
    if isinstance(batch, (tuple, list)):
        return list(enumerate(batch))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return [(each.name, getattr(batch, each.name)) for each in dataclasses.fields(batch)]
    if hasattr(batch, "__dict__") and not isinstance(batch, (type, torch.nn.Module)):
        return list(vars(batch).items())
    return []


def _rebuild(batch: Any, change: Callable[[Any, Any], Any]) -> Any:
    """Return a batch of the same form with each part changed."""
    parts = {name: change(name, part) for name, part in _list_parts(batch)}
    if not parts:
        return batch
    if isinstance(batch, tuple):
        return type(batch)(*parts.values()) if hasattr(batch, "_fields") else tuple(parts.values())
    if isinstance(batch, list):
        return list(parts.values())
    if isinstance(batch, Mapping) and not isinstance(batch, MutableMapping):
        return parts
    changed = copy.copy(batch)
    for name, part in parts.items():
        if isinstance(changed, MutableMapping):
            changed[name] = part
        else:
            object.__setattr__(changed, name, part)  # also where a dataclass is frozen
    return changed
