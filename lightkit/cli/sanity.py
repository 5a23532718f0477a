"""Whether a fit validates two batches before its first step: a search for faults in people's own validation code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

__all__ = ["needs_no_sanity_check"]

_KNOWN = ("lightkit", "pytorch_lightning", "lightning_fabric", "torch", "torchmetrics", "torchvision", "timm")


def needs_no_sanity_check(given: Mapping[str, Any], *parts: object) -> bool:
    """Tell whether a fit validates with lightkit's, Lightning's and torch's code alone, and nobody asks for a check.

    It then costs what two batches of validation do, and finds nothing.

    Args:
        given: The trainer's arguments; a number in `num_sanity_val_steps` is an answer.
        parts: Model and data; the layers of a model count too.
    """
    if given.get("num_sanity_val_steps") is not None:
        return False
    layers = [layer for part in parts if isinstance(part, nn.Module) for layer in part.modules()]
    others = [each for key in ("callbacks", "logger", "plugins", "strategy") for each in _objects(given.get(key))]
    return all(type(part).__module__.split(".")[0] in _KNOWN for part in (*parts, *layers, *others))


def _objects(said: Any) -> Iterable[object]:
    """Give the objects in an argument that may be one, several, a name or a switch."""
    each = said if isinstance(said, (list, tuple)) else [said]
    return (one for one in each if one is not None and not isinstance(one, (bool, str)))
