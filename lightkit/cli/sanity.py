"""Whether a fit validates two batches before its first step: a search for faults in people's own validation code."""

from __future__ import annotations

from pytorch_lightning import Trainer
from torch import nn

from lightkit.callbacks.onlookers import foreign_callbacks
from lightkit.callbacks.sources import OURS

__all__ = ["needs_no_sanity_check"]

_KNOWN = (*OURS, "timm")


def needs_no_sanity_check(trainer: Trainer, *parts: object) -> bool:
    """Tell whether a fit validates with the code of lightkit, Lightning, torch and its kin, and timm alone.

    A check before the first step costs what two batches of validation do, and looks for faults of somebody's code.

    Args:
        trainer: With all its callbacks and loggers.
        parts: Model and data; the layers of a model count too. None stands for a part that nobody can look at, such as
            the loaders of a script.
    """
    if any(part is None for part in parts):
        return False
    layers = [layer for part in parts if isinstance(part, nn.Module) for layer in part.modules()]
    known = all(type(part).__module__.split(".")[0] in _KNOWN for part in (*parts, *layers, trainer.strategy))
    return known and not foreign_callbacks(trainer)
