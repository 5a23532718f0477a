"""The small regressor that configs name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn

from lightkit.config.bounds import NonNegativeFloat, PositiveInt
from lightkit.errors import ConfigError, DataError
from lightkit.models.module import ScoredModule, Scores, Stage, regression_metrics, split_batch
from lightkit.models.scales import Tables, measure_scales
from lightkit.task import REGRESSION, OutputKind, Task


class Regressor(ScoredModule, LightningModule):
    """A two-layer network from some numbers to others.

    Inputs and targets are scaled by mean and standard deviation of the training split, which is
    read once before the first step, on one process for all; they then stay in the checkpoint.
    Predictions and the logged ``mae`` and ``mse`` are in the units of the target. Logged as
    ``train/loss``, ``val/mae``, ``test/mse`` and so on, where ``loss`` is the mean squared error of
    scaled targets: that of models with the same training split compares, any other does not.
    Batches are ``(inputs, targets)``, or ``(inputs, targets, weights)``: training multiplies the
    loss of a row by its weight over the ``mean_weight`` of the data module (1 if it has none), so
    that batch size and processes change nothing; in validation and test the loss is a weighted
    mean. Rows of weight 0 are in no metric.

    Args:
        num_inputs: Numbers that each example has.
        num_outputs: Numbers to predict from them.
        hidden: Units between the two layers.
        learning_rate: At the first step, where the config names no optimizer: AdamW along a cosine
            to zero.
        weight_decay: Of that optimizer, for all but biases.
    """

    task: Task = REGRESSION
    output_kind: ClassVar[OutputKind] = REGRESSION.output_kind
    """Kind of the output of ``forward``; a subclass whose ``forward`` gives something else sets its
    own."""
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
        for name, value in (
            ("num_inputs", num_inputs),
            ("num_outputs", num_outputs),
            ("hidden", hidden),
        ):
            if value < 1:
                raise ConfigError(f"model.init_args.{name}: expected at least 1, got {value}.")
        self.save_hyperparameters()
        self.num_inputs = num_inputs
        self.num_outputs = num_outputs
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.network = nn.Sequential(
            nn.Linear(num_inputs, hidden), nn.ReLU(), nn.Linear(hidden, num_outputs)
        )
        for name, size in (("input", num_inputs), ("output", num_outputs)):
            self.register_buffer(f"{name}_mean", torch.zeros(size))
            self.register_buffer(f"{name}_std", torch.ones(size))
        self.register_buffer("is_scaled", torch.tensor(False))
        self.scores = Scores(regression_metrics())
        self.example_input_array = torch.zeros(1, num_inputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs ``(batch, num_outputs)`` for inputs ``(batch, num_inputs)``.

        In the target's units.
        """
        self._check_inputs(inputs)
        scaled: Tensor = self.network((inputs - self.input_mean) / self.input_std)
        return scaled * self.output_std + self.output_mean

    @property
    def metric_units(self) -> dict[str, list[float]]:
        """Numbers of this model's own by which a metric is divided: variances of the targets.

        By the metric.
        """
        return {"loss": self.output_std.detach().double().square().tolist()}

    def on_train_start(self) -> None:
        """Take the scales of a new run from its training split.

        Raises:
            DataError: If its batches have other shapes than the model, or no row counts.
        """
        if self.global_step != 0 or bool(self.is_scaled):
            return
        scales = measure_scales(
            self.trainer, self._list_tables, (self.num_inputs, self.num_outputs)
        )
        (input_mean, input_std), (output_mean, output_std) = scales
        self.input_mean = input_mean.to(self.input_mean)
        self.input_std = input_std.to(self.input_std)
        self.output_mean = output_mean.to(self.output_mean)
        self.output_std = output_std.to(self.output_std)
        self.is_scaled = torch.ones_like(self.is_scaled)

    def _list_tables(self, batch: Sequence[Tensor]) -> Tables:
        """List inputs and targets of a batch with the weights of its rows."""
        inputs, targets, weights = split_batch(batch)
        self._check_inputs(inputs)
        if targets.shape != (len(inputs), self.num_outputs):
            raise self._explain_targets(targets, (len(inputs), self.num_outputs))
        return [(inputs, weights), (targets, weights)]

    def _check_inputs(self, inputs: Tensor) -> None:
        if inputs.ndim != 2 or inputs.shape[1] != self.num_inputs:
            raise DataError(
                f"A batch has inputs of shape {tuple(inputs.shape)}; expected (batch,"
                f" {self.num_inputs}), as model.init_args.num_inputs says."
            )

    @staticmethod
    def _explain_targets(targets: Tensor, expected: Sequence[int]) -> DataError:
        return DataError(
            f"A batch has targets of shape {tuple(targets.shape)}; expected {tuple(expected)}, "
            "as model.init_args.num_outputs says."
        )

    def predict_step(self, batch: Tensor | list[Tensor] | tuple[Tensor, ...]) -> Tensor:
        """Return the outputs for a batch of inputs, with or without targets."""
        outputs: Tensor = self(batch if isinstance(batch, Tensor) else batch[0])
        self._refuse_rounded(outputs)
        return outputs

    def _step(self, stage: Stage, batch: Sequence[Tensor]) -> dict[str, Tensor]:
        inputs, targets, weights = split_batch(batch)
        outputs = self(inputs)
        if outputs.shape != targets.shape:
            raise self._explain_targets(targets, outputs.shape)
        scaled = outputs / self.output_std
        wanted = targets / self.output_std
        losses = self._compute_loss(stage, scaled, wanted, weights)
        return self._count_outputs(stage, "prediction", outputs, targets, weights, losses)
