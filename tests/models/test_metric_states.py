"""Metrics count in float32 where the weights are in 16 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric

from lightkit.models.metric_states import keep_metric_states
from lightkit.models.module import MeanLoss
from tests.trainers import quiet_trainer


class Counted(LightningModule):
    """A module whose loss of a sample is the sample."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.own = MeanLoss()
        self.mean = MeanMetric()

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        losses = batch[0]
        self.types = (self.layer(losses).dtype, losses.dtype)
        self.own.update(losses.mean(), len(losses))
        self.mean.update(losses)

    def on_validation_epoch_end(self) -> None:
        self.log_dict({"own": self.own.compute(), "mean": self.mean.compute()})


@pytest.mark.parametrize(
    ("precision", "kind"),
    [("bf16-true", torch.bfloat16), ("16-true", torch.float16), ("64-true", torch.float64)],
)
def test_a_mean_loss_of_many_batches_is_exact(
    tmp_path: Path, precision: Any, kind: torch.dtype
) -> None:
    # 4,000 samples, half of them with a loss of 1 and half of 0.5
    losses = torch.tensor([[1.0], [0.5]]).repeat(2000, 1)
    model = Counted()
    trainer = quiet_trainer(tmp_path, precision=precision)
    keep_metric_states(trainer)
    loader = DataLoader(TensorDataset(losses), batch_size=4)
    (found,) = trainer.validate(model, loader, verbose=False)
    assert model.types == (kind, kind)
    assert found == {"own": 0.75, "mean": 0.75}


def test_torchmetrics_still_converts_sums_to_the_type_of_the_weights() -> None:
    """Where this fails, the function can go."""
    metric: Any = nn.Sequential(MeanMetric()).to(torch.bfloat16)[0]
    for _ in range(300):
        metric.update(1.0)
    assert float(metric.weight) == 256
