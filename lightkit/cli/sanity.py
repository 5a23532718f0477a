"""Whether a fit validates two batches before its first step: a search for faults in people's own validation code."""

from __future__ import annotations

from pytorch_lightning import Trainer
from torch import nn

from lightkit.callbacks.onlookers import foreign_callbacks

__all__ = ["needs_no_sanity_check"]

_KNOWN = ("lightkit", "pytorch_lightning", "lightning_fabric", "torch", "torchmetrics", "torchvision", "timm")


def needs_no_sanity_check(trainer: Trainer, *parts: object) -> bool:
    """Tell whether a fit validates with lightkit's, Lightning's and torch's code alone.

    A check before the first step costs what two batches of validation do, and looks for faults of somebody's code.

    Args:
        trainer: With all its callbacks and loggers.
        parts: Model and data; the layers of a model count too.
    """
    layers = [layer for part in parts if isinstance(part, nn.Module) for layer in part.modules()]
    known = all(type(part).__module__.split(".")[0] in _KNOWN for part in (*parts, *layers, trainer.strategy))
    return known and not foreign_callbacks(trainer)
