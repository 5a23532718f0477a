"""The optimizer and schedule that lightkit's models take where the config names none."""

from __future__ import annotations

import math
from typing import Any

from pytorch_lightning import LightningModule
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR


def adamw_with_cosine(
    module: LightningModule, *, learning_rate: float, weight_decay: float
) -> OptimizerLRSchedulerConfig:
    """Give AdamW whose learning rate falls along half a cosine to zero at the run's last step.

    The number of steps is asked for when the first one is done. Asking while the optimizer is made would start the
    training loader before a resumed run knows where in the epoch it stands.

    Args:
        module: Module whose trainable parameters are optimized. A run without an end keeps its learning rate.
        learning_rate: At the first step.
        weight_decay: For all but biases and the scales of normalisations.
    """

    def scale(step: int) -> float:
        if step == 0:
            return 1.0
        num_steps = module.trainer.estimated_stepping_batches
        return 1.0 if math.isinf(num_steps) else (1 + math.cos(math.pi * min(1.0, step / max(1, num_steps)))) / 2

    optimizer = AdamW(parameter_groups(module, weight_decay=weight_decay), lr=learning_rate)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": LambdaLR(optimizer, scale), "interval": "step"}}


def parameter_groups(module: nn.Module, *, weight_decay: float) -> list[dict[str, Any]]:
    """Part the trainable parameters into those that decay and the vectors (biases, norms), which do not."""
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
