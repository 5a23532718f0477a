"""The small regressor that configs name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from pytorch_lightning import LightningModule
from pytorch_lightning.strategies import Strategy
from torch import Tensor, nn

from lightkit.config.bounds import NonNegativeFloat, PositiveInt
from lightkit.errors import ConfigError, DataError
from lightkit.models.module import ScoredModule, Scores, Stage, regression_metrics, split_batch
from lightkit.task import REGRESSION, OutputKind, Task


class Regressor(ScoredModule, LightningModule):
    """A two-layer network from some numbers to others.

    Inputs and targets are scaled by mean and standard deviation of the first training batch of all processes, which
    then stay in the checkpoint; predictions and the logged ``mae`` and ``mse`` are in the units of the target. Logged
    as ``train/loss``, ``val/mae``, ``test/mse`` and so on, where ``loss`` is the mean squared error of scaled targets.
    Batches are ``(inputs, targets)``, or ``(inputs, targets, weights)``: training multiplies the loss of a row by its
    weight over the ``mean_weight`` of the data module (1 if it has none), so that batch size and processes change
    nothing; in validation and test the loss is a weighted mean. Rows of weight 0 are in no metric.

    Args:
        num_inputs: Numbers that each example has.
        num_outputs: Numbers to predict from them.
        hidden: Units between the two layers.
        learning_rate: At the first step, where the config names no optimizer: AdamW along a cosine to zero.
        weight_decay: Of that optimizer, for all but biases.
    """

    task: ClassVar[Task] = REGRESSION
    output_kind: ClassVar[OutputKind] = REGRESSION.output_kind
    """Kind of the output of ``forward``; a subclass whose ``forward`` gives something else sets its own."""
    input_mean: Tensor
    input_std: Tensor
    output_mean: Tensor
    output_std: Tensor
    is_scaled: Tensor
    _in_bar = frozenset({"val/loss", "val/mae"})

    def __init__(
        self,
        num_inputs: PositiveInt = 1,
        num_outputs: PositiveInt = 1,
        hidden: PositiveInt = 32,
        learning_rate: NonNegativeFloat = 0.01,
        weight_decay: NonNegativeFloat = 0.0,
    ) -> None:
        super().__init__()
        for name, value in (("num_inputs", num_inputs), ("num_outputs", num_outputs), ("hidden", hidden)):
            if value < 1:
                raise ConfigError(f"model.init_args.{name}: expected at least 1, got {value}.")
        self.save_hyperparameters()
        self.num_inputs = num_inputs
        self.num_outputs = num_outputs
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.network = nn.Sequential(nn.Linear(num_inputs, hidden), nn.ReLU(), nn.Linear(hidden, num_outputs))
        for name, size in (("input", num_inputs), ("output", num_outputs)):
            self.register_buffer(f"{name}_mean", torch.zeros(size))
            self.register_buffer(f"{name}_std", torch.ones(size))
        self.register_buffer("is_scaled", torch.tensor(False))
        self.scores = Scores(regression_metrics())
        self.example_input_array = torch.zeros(1, num_inputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """Give the outputs ``(batch, num_outputs)`` for inputs ``(batch, num_inputs)``, in the target's units."""
        if inputs.ndim != 2 or inputs.shape[1] != self.num_inputs:
            raise DataError(
                f"A batch has inputs of shape {tuple(inputs.shape)}; expected (batch, {self.num_inputs}), "
                f"as model.init_args.num_inputs says."
            )
        scaled: Tensor = self.network((inputs - self.input_mean) / self.input_std)
        return scaled * self.output_std + self.output_mean

    def on_train_batch_start(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Take the scales from the first batch of a run, of all processes together, and start a new epoch's metrics."""
        super().on_train_batch_start(batch, batch_idx)
        if self.global_step == 0 and not self.is_scaled:
            inputs, targets, weights = split_batch(batch)
            self.input_mean, self.input_std = _scale_of(inputs, weights, self.trainer.strategy)
            self.output_mean, self.output_std = _scale_of(targets, weights, self.trainer.strategy)
            self.is_scaled = torch.ones_like(self.is_scaled)

    def predict_step(self, batch: Tensor | list[Tensor] | tuple[Tensor, ...]) -> Tensor:
        """Give the outputs for a batch of inputs, with or without targets."""
        outputs: Tensor = self(batch if isinstance(batch, Tensor) else batch[0])
        return outputs

    def _step(self, stage: Stage, batch: Sequence[Tensor]) -> dict[str, Tensor]:
        inputs, targets, weights = split_batch(batch)
        outputs = self(inputs)
        if outputs.shape != targets.shape:
            raise DataError(
                f"A batch has targets of shape {tuple(targets.shape)}; expected {tuple(outputs.shape)}, "
                f"as model.init_args.num_outputs says."
            )
        scaled, wanted = outputs / self.output_std, targets / self.output_std
        loss, mean = self._compute_loss(stage, scaled, wanted, weights)
        self.scores.update(stage, preds=outputs, target=targets, loss=mean, weights=weights)
        given = {} if weights is None else {"weights": weights}
        return {"loss": loss, "prediction": outputs.detach(), "target": targets, **given}


def _scale_of(values: Tensor, weights: Tensor | None, strategy: Strategy) -> tuple[Tensor, Tensor]:
    """Give mean and standard deviation of each column over all processes' values; 1 where a column is constant.

    Rows of weight 0 do not count, and the others count alike.
    """
    wide = values.to(torch.promote_types(values.dtype, torch.float32))
    counts = torch.ones(len(wide), device=wide.device) if weights is None else (weights > 0).float()
    rows = counts.to(wide)[:, None]
    start = strategy.broadcast(wide[0]).to(wide)  # sums of differences to it are exact where a column is constant
    num = strategy.reduce(counts.sum(), reduce_op="sum").clamp_min(1)
    mean = start + strategy.reduce(((wide - start) * rows).sum(dim=0), reduce_op="sum") / num
    std = (strategy.reduce(((wide - mean).square() * rows).sum(dim=0), reduce_op="sum") / num).sqrt()
    return mean.to(values), torch.where(std > 1e-6, std, torch.ones_like(std)).to(values)
