"""The model: replace `Net` with your own LightningModule."""

import pytorch_lightning as pl
import torch
from torch import Tensor, nn


class Net(pl.LightningModule):
    """Two layers that learn a function of two numbers.

    Args:
        num_hidden: Units of the hidden layer.
        learning_rate: Step of AdamW.
    """

    def __init__(self, num_hidden: int = 32, learning_rate: float = 0.01) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.layers = nn.Sequential(nn.Linear(2, num_hidden), nn.Tanh(), nn.Linear(num_hidden, 1))

    def forward(self, points: Tensor) -> Tensor:
        """Map points ``(batch, 2)`` to values ``(batch, 1)``."""
        return self.layers(points)

    def _step(self, batch: tuple[Tensor, Tensor], split: str) -> dict[str, Tensor]:
        points, values = batch
        prediction = self(points)
        loss = nn.functional.mse_loss(prediction, values)
        self.log(f"{split}/loss", loss, on_epoch=True, on_step=False)
        # reports, comparisons and gates are made of the prediction for each sample
        return {"loss": loss, "prediction": prediction, "target": values}

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        return self._step(batch, "train")["loss"]

    def validation_step(self, batch: tuple[Tensor, Tensor], _: int) -> dict[str, Tensor]:
        return self._step(batch, "val")

    def test_step(self, batch: tuple[Tensor, Tensor], _: int) -> dict[str, Tensor]:
        return self._step(batch, "test")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.learning_rate)
