"""How large a checkpoint will be, before it is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

__all__ = ["first_size_of", "size_of"]

_PER_TENSOR_BYTES = 384  # its name and its place in the pickle, and twice in the archive's lists, aligned to 64
_AT_LEAST_BYTES = 64 << 10  # all that is no tensor: counters, hyper-parameters, what callbacks keep
_MARGIN = 1.01


def size_of(checkpoint: Mapping[str, Any]) -> int:
    """Estimate the file of a checkpoint, a little too large rather than too small.

    torch writes each storage once, and the whole of it where a tensor is a view of a part.
    """
    storages: dict[Any, int] = {}
    num_tensors = 0
    for tensor in _tensors(checkpoint):
        num_tensors += 1
        key, size = _storage(tensor)
        storages[key] = size
    return int(sum(storages.values()) * _MARGIN) + num_tensors * _PER_TENSOR_BYTES + _AT_LEAST_BYTES


def first_size_of(state_dict: Mapping[str, Any], optimizers: list[Optimizer]) -> int:
    """Estimate the first checkpoint of a training whose optimizers have not stepped yet.

    Those that have betas keep two values for each weight, those with a momentum one; for others none are counted.
    """
    kept = 0
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            values = 2 if "betas" in group else int(bool(group.get("momentum")))
            kept += values * sum(weight.numel() * weight.element_size() for weight in group["params"])
    return size_of(state_dict) + kept


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _storage(tensor: Tensor) -> tuple[Any, int]:
    try:
        storage = tensor.untyped_storage()
        return (tensor.device, storage.data_ptr()), storage.nbytes()
    except (NotImplementedError, RuntimeError):  # a kind of tensor without a storage of its own
        return id(tensor), tensor.numel() * tensor.element_size()
