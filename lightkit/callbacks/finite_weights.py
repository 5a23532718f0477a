"""Tensors of a model that hold NaN or infinite values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter

__all__ = ["nan_weights", "not_finite_at_first", "spoilt_weights"]

_MIN_BYTES = 2  # torch computes no norms of 8-bit floating-point numbers


@torch.no_grad()
def spoilt_weights(state: Mapping[str, Any], *, apart_from: Collection[str] = ()) -> list[str]:
    """Name the tensors that are not finite, which waits once for each device.

    Whole numbers, and tensors that are not kept as plain numbers (sparse or quantised ones), are not looked at.

    Args:
        state: Tensors by name, as a state dict has them; of those that are spread over processes, the part here counts.
        apart_from: Names that may hold anything, such as the mask of an attention.
    """
    groups: dict[tuple[Any, Any], dict[str, Tensor]] = defaultdict(dict)
    for name, value in state.items():
        tensor = None if name in apart_from else _plain(value)
        if tensor is not None:
            groups[tensor.device, tensor.dtype][name] = tensor
    return [name for group in groups.values() for name in _not_finite(group)]


def nan_weights(state: Mapping[str, Any]) -> list[str]:
    """Name the tensors that hold NaN: masks and extremes are infinite on purpose, and nothing is NaN so."""
    return [name for name in spoilt_weights(state) if (own := _plain(state[name])) is not None and own.isnan().any()]


def not_finite_at_first(module: Module) -> set[str]:
    """Name what a model holds on purpose that is not finite, such as masks, or the least value seen so far."""
    return set(spoilt_weights({**dict(module.named_parameters()), **dict(module.named_buffers())}))


def _plain(value: Any) -> Tensor | None:
    """Give the numbers of a tensor; None where they cannot be looked at."""
    if hasattr(value, "to_local"):  # a DTensor
        value = value.to_local()
    if type(value) not in (Tensor, Parameter) or value.layout != torch.strided or value.is_meta or not value.numel():
        return None
    if value.is_complex():
        return torch.view_as_real(value.resolve_conj())
    return value if value.is_floating_point() and value.element_size() >= _MIN_BYTES else None


def _not_finite(group: Mapping[str, Tensor]) -> list[str]:
    """All sums of squares, ten times as fast as to look at each value; one can be infinite where no value is."""
    norms = torch.stack(torch._foreach_norm(list(group.values())))
    suspects = [name for name, is_finite in zip(group, norms.isfinite().tolist(), strict=True) if not is_finite]
    return [name for name in suspects if not group[name].isfinite().all()]
