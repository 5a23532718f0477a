"""Metrics whose sums stay in float32 where the weights of a model are in 16 bits."""

from __future__ import annotations

from typing import Any

from pytorch_lightning import Trainer
from pytorch_lightning.plugins.precision import (
    DeepSpeedPrecision,
    FSDPPrecision,
    HalfPrecision,
)
from torch import nn

_PLUGINS = (HalfPrecision, FSDPPrecision, DeepSpeedPrecision)


def keep_metric_states(trainer: Trainer) -> None:
    """Have a precision of 16 bits convert the weights and buffers of a model, not its metrics.

    Lightning (2.6) converts a model by ``to(dtype=…)``. A metric of torchmetrics (1.9) refuses
    ``bfloat16()`` and ``half()``, and is converted by that: in bf16 a sum of ones ends at 256, so
    that the mean loss of 16,000 samples was 2.0 where it is 0.7.

    Args:
        trainer: Before it has a model.
    """
    plugin: Any = trainer.precision_plugin
    if not isinstance(trainer.precision_plugin, _PLUGINS):
        return
    conversions = {"bf16-true": nn.Module.bfloat16, "16-true": nn.Module.half}
    convert = conversions.get(str(trainer.precision))
    if convert is not None:
        plugin.convert_module = convert
