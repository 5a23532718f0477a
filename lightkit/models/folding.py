"""A copy of a frozen network that computes the same in less time: its batch norms are part of other layers."""

from __future__ import annotations

import copy
import logging
from collections import Counter
from typing import cast

import torch
from torch import nn
from torch.fx import GraphModule, symbolic_trace
from torch.fx.experimental.optimization import fuse
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["folded", "is_watched"]

log = logging.getLogger("lightkit.models")

_EXACT = (torch.float32, torch.float64)
_TAKE_NORMS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


def folded(network: nn.Module) -> nn.Module | None:
    """Give a copy of a network for evaluation whose batch norms are folded into the layers before them.

    A batch norm of known statistics is one factor and one summand a channel, which convolutions and linear layers have
    as well (Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
    Inference", 2018, section 3.2). The numbers are the same but for their rounding.

    Args:
        network: In eval mode. It is not changed.

    Returns:
        The copy, which has its own weights and the same names of the layers that are left; None where nothing can be
        folded, where the order of the layers depends on the numbers, where a layer is used twice, where weights would
        be rounded to less than float32, and where hooks look at layers.
    """
    if not any(isinstance(layer, _BatchNorm) for layer in network.modules()):
        return None
    if any(map(is_watched, network.modules())) or any(one.dtype not in _EXACT for one in network.parameters()):
        return None
    try:
        traced = symbolic_trace(copy.deepcopy(network))
        before = _num_norms(traced)
        if _has_shared(traced):
            return None
        without = cast(GraphModule, fuse(traced, inplace=True, no_trace=True))
    except Exception as error:  # noqa: BLE001 (a forward in Python may do anything with what stands for a tensor)
        log.debug("%s is computed as it is, since it cannot be traced: %s", type(network).__name__, error)
        return None
    return without.requires_grad_(requires_grad=False) if _num_norms(without) < before else None


def _layers(traced: GraphModule) -> list[nn.Module]:
    """Give the layers in the order of their use."""
    return [traced.get_submodule(str(node.target)) for node in traced.graph.nodes if node.op == "call_module"]


def _num_norms(traced: GraphModule) -> int:
    return sum(isinstance(layer, _BatchNorm) for layer in _layers(traced))


def _has_shared(traced: GraphModule) -> bool:
    """Tell whether a layer that could take a norm is used twice: it would take that of either use."""
    uses = Counter(id(layer) for layer in _layers(traced) if isinstance(layer, _TAKE_NORMS))
    return any(number > 1 for number in uses.values())


def is_watched(layer: nn.Module) -> bool:
    """Tell whether a hook gets what a layer is given or gives."""
    return bool(layer._forward_hooks or layer._forward_pre_hooks)
