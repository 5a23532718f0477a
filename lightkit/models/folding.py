"""A copy of a frozen network that computes the same in less time: its batch norms are part of other layers."""

from __future__ import annotations

import logging

from torch import nn
from torch.fx.experimental.optimization import fuse
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["folded", "is_watched"]

log = logging.getLogger("lightkit.models")


def folded(network: nn.Module) -> nn.Module | None:
    """Give a copy of a network for evaluation whose batch norms are folded into the layers before them.

    A batch norm of known statistics is one factor and one summand a channel, which convolutions and linear layers have
    as well (Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
    Inference", 2018, section 3.2). The numbers are the same but for their rounding.

    Args:
        network: In eval mode. It is not changed.

    Returns:
        The copy, which has its own weights and the same names of the layers that are left; None where nothing can be
        folded, where the order of the layers depends on the numbers, and where hooks look at layers.
    """
    if not _num_norms(network) or any(is_watched(layer) for layer in network.modules()):
        return None
    try:
        copy = fuse(network)
    except Exception as error:  # noqa: BLE001 (a forward in Python may do anything with what stands for a tensor)
        log.debug("%s is computed as it is, since it cannot be traced: %s", type(network).__name__, error)
        return None
    return copy.requires_grad_(requires_grad=False) if _num_norms(copy) < _num_norms(network) else None


def _num_norms(network: nn.Module) -> int:
    return sum(isinstance(layer, _BatchNorm) for layer in network.modules())


def is_watched(layer: nn.Module) -> bool:
    """Tell whether a hook gets what a layer is given or gives."""
    return bool(layer._forward_hooks or layer._forward_pre_hooks)
