"""What lightkit's models share: metrics of each epoch, and the optimizer where the config names none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pytorch_lightning import LightningModule
from pytorch_lightning.utilities.types import STEP_OUTPUT, OptimizerLRScheduler, OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from lightkit.models.metrics import Scores, Stage

if TYPE_CHECKING:
    _Module = LightningModule
else:
    _Module = object  # it is no LightningModule by itself, so that no config can name it


class ScoredModule(_Module):
    """Steps that count each batch, and log the metrics of an epoch at its end.

    A subclass has `scores`, `learning_rate`, `weight_decay`, and ``_step``, which counts a batch and returns its loss
    and predictions.
    """

    scores: Scores
    learning_rate: float
    weight_decay: float
    _in_bar: ClassVar[frozenset[str]]

    def _step(self, stage: Stage, batch: Sequence[Tensor]) -> dict[str, Tensor]:
        raise NotImplementedError

    def training_step(self, batch: Sequence[Tensor]) -> Tensor:
        """Give the loss of a batch."""
        return self._step("train", batch)["loss"]

    def validation_step(self, batch: Sequence[Tensor]) -> STEP_OUTPUT:
        """Count a batch, and give its predictions, targets and weights, for reports."""
        return self._step("val", batch)

    def test_step(self, batch: Sequence[Tensor]) -> STEP_OUTPUT:
        """Count a batch, and give its predictions, targets and weights, for reports."""
        return self._step("test", batch)

    def on_train_epoch_end(self) -> None:
        """Log the training metrics."""
        self._log_scores("train")

    def on_validation_epoch_end(self) -> None:
        """Log the validation metrics."""
        self._log_scores("val")

    def on_test_epoch_end(self) -> None:
        """Log the test metrics."""
        self._log_scores("test")

    def _log_scores(self, stage: Stage) -> None:
        for name, value in self.scores.finish(stage).items():
            # the value is that of all processes already; sync_dist only keeps Lightning from warning
            self.log(name, value, prog_bar=name in self._in_bar, sync_dist=True)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Give the default optimizer and schedule."""
        return adamw_with_cosine(self, learning_rate=self.learning_rate, weight_decay=self.weight_decay)


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
