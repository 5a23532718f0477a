"""Base of lightkit's models: metrics of each epoch, and an optimizer for configs without."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast, get_args

import torch
from pytorch_lightning import LightningModule
from pytorch_lightning.utilities.types import STEP_OUTPUT, OptimizerLRScheduler
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torchmetrics import Metric, MetricCollection

from lightkit.errors import ConfigError, DataError
from lightkit.models.label_scores import LabelScores
from lightkit.optimizer_steps import count_optimizer_steps
from lightkit.task import CLASSIFICATION, REGRESSION, Task

if TYPE_CHECKING:
    _Module = LightningModule
else:
    _Module = object  # it is no LightningModule by itself, so that no config can name it

Stage = Literal["train", "val", "test"]


def split_batch(batch: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor | None]:
    """Split ``(inputs, targets)`` or ``(inputs, targets, weights)``.

    Without weights all samples weigh the same.
    """
    inputs, targets, *weights = batch
    return inputs, targets, weights[0] if weights else None


def weighted_mean(losses: Tensor, weights: Tensor) -> Tensor:
    """Compute ``sum(weights * losses) / sum(weights)``.

    0, with gradients of 0, where all weights are 0.

    Args:
        losses: ``(batch,)``.
        weights: ``(batch,)``, at least 0.
    """
    weights = weights.to(losses.dtype)
    total = weights.sum()
    # where, for 0 times an infinite loss is not 0
    weighted = torch.where(weights > 0, losses * weights, torch.zeros_like(losses)).sum()
    return weighted / torch.where(total > 0, total, torch.ones_like(total))


def weighted_loss(losses: Tensor, weights: Tensor, *, mean_weight: float) -> Tensor:
    """Compute ``sum(weights * losses) / (batch * mean_weight)``.

    A training step minimises it.

    Unlike a mean over the weights of the batch, its mean over the batches of an epoch is that over
    all samples, however they are cut into batches and shared out to processes: a rare sample of
    weight 20 counts 20 times in a batch of its own too.

    Args:
        losses: ``(batch,)``.
        weights: ``(batch,)``, at least 0.
        mean_weight: Of all training samples, above 0, so that the learning rate means what it means
            without weights.
    """
    weights = weights.to(losses.dtype)
    # where, for 0 times an infinite loss is not 0
    return torch.where(weights > 0, losses * weights, torch.zeros_like(losses)).mean() / mean_weight


def widen(outputs: Tensor) -> Tensor:
    """Return the outputs of a model in float32 where they are in 16 bits.

    A probability in bf16 has three digits, in which two classes may be equal that differ.
    """
    return outputs.to(torch.promote_types(outputs.dtype, torch.float32))


_BLOCK = 1024
"""Batches whose sum is added to the sum of the epoch at once."""


class MeanLoss(Metric):
    """The mean over examples of a loss that is given as means over batches.

    torchmetrics' MeanMetric either looks for NaN at each step, which waits for the device, or
    (1.9.0, with ``nan_strategy="disable"``) forgets the weights. Here a NaN stays a NaN, so that
    early stopping sees it.

    Attributes:
        has_counted: Whether the examples of the last value, on all processes, had a weight.
    """

    full_state_update = False
    has_counted = False
    total: Tensor
    num_examples: Tensor
    block_total: Tensor
    block_examples: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("total", "num_examples", "block_total", "block_examples"):
            self.add_state(name, default=torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, loss: Tensor, size: int | Tensor) -> None:
        """Add the mean loss of a batch of ``size`` examples, or of that weight together."""
        self.block_total += loss.detach().to(self.block_total.dtype) * size
        self.block_examples += size

        # float32 (not every device has float64) rounds each sum: one after another, a million equal
        # losses are wrong by 1 %, and examples above 16.8 million are lost; sums of blocks are not
        if self.update_count % _BLOCK == 0:
            self.total += self.block_total
            self.num_examples += self.block_examples
            self.block_total = torch.zeros_like(self.block_total)
            self.block_examples = torch.zeros_like(self.block_examples)

    def compute(self) -> Tensor:
        """Return the mean over all examples so far."""
        num_examples = self.num_examples + self.block_examples
        self.has_counted = bool(num_examples > 0)
        return (self.total + self.block_total) / num_examples


def build_metrics(task: Task, num_outputs: int) -> MetricCollection:
    """Build the metrics of a task for one stage, with the loss.

    Args:
        task: Names their classes.
        num_outputs: Number of classes, labels or values.
    """
    groups: Any = [list(group) for group in task.metric_groups] or False
    return MetricCollection(
        {"loss": MeanLoss(), **task.build_metrics(num_outputs)}, compute_groups=groups
    )


def classification_metrics(num_classes: int) -> MetricCollection:
    """Accuracy over examples; F1, precision and recall as means over the classes that occur.

    The loss.
    """
    return build_metrics(CLASSIFICATION, num_classes)


def regression_metrics() -> MetricCollection:
    """Mean absolute and mean squared error in the units of the target, over all outputs.

    The loss.
    """
    return build_metrics(REGRESSION, 1)


class Scores(nn.Module):
    """The metrics of the three stages, apart from each other.

    Args:
        metrics: The collection that each stage gets a copy of.
        train: Another collection for training, for metrics that are too large there.
    """

    def __init__(self, metrics: MetricCollection, train: MetricCollection | None = None) -> None:
        super().__init__()
        of_stages = dict.fromkeys(get_args(Stage), metrics)
        if train is not None:
            of_stages["train"] = train
        self.stages = nn.ModuleDict(
            {f"of_{stage}": each.clone(prefix=f"{stage}/") for stage, each in of_stages.items()}
        )

    def of(self, stage: Stage) -> MetricCollection:
        """Return the metrics of a stage."""
        return cast(MetricCollection, self.stages[f"of_{stage}"])

    def update(
        self,
        stage: Stage,
        *,
        preds: Tensor,
        target: Tensor,
        loss: Tensor,
        weights: Tensor | None = None,
    ) -> None:
        """Count one batch; nothing is computed, and without weights no value leaves the device.

        Args:
            stage: Of the batch.
            preds: ``(batch, ...)``.
            target: ``(batch, ...)``.
            loss: Mean over the batch, by the weights if there are any.
            weights: ``(batch,)``. What weighs nothing is not counted; in all but the loss the
                others count alike. A batch of none still counts as one, so that all processes have
                metrics to compute together.
        """
        if weights is None:
            self.of(stage).update(preds=preds.detach(), target=target, loss=loss, size=len(target))
            return
        is_counted = weights > 0
        preds = preds.detach()[is_counted]
        target = target[is_counted]
        if len(target):
            self.of(stage).update(preds=preds, target=target, loss=loss, size=weights.float().sum())
            return
        # torchmetrics (1.9) fails on an empty batch
        for metric in self.of(stage).values(copy_state=False):
            if isinstance(metric, LabelScores):
                metric.skip()
                continue
            metric._update_count += 1
            metric._computed = None

    def finish(self, stage: Stage) -> dict[str, Tensor]:
        """Compute the values of the epoch over all processes, and start the next.

        Returns:
            Values by logged name, such as ``val/f1``. Empty where there was no batch: a run that is
            resumed at the very end of an epoch reaches that end again.
        """
        metrics = self.of(stage)
        has_counted = all(metric.update_called for metric in metrics.values(copy_state=False))
        values = metrics.compute() if has_counted else {}
        metrics.reset()
        return values


class ScoredModule(_Module):
    """Steps that count each batch, and log the metrics of an epoch at its end.

    A subclass has `task`, `scores`, `learning_rate`, `weight_decay`, and ``_step``, which counts a
    batch and returns its loss and predictions.
    """

    task: Task
    scores: Scores
    learning_rate: float
    weight_decay: float
    _in_bar: ClassVar[frozenset[str]] = frozenset({"val/loss"})

    def _step(self, stage: Stage, batch: Sequence[Tensor]) -> dict[str, Tensor]:
        raise NotImplementedError

    def _compute_loss(
        self, stage: Stage, outputs: Tensor, targets: Tensor, weights: Tensor | None, **options: Any
    ) -> tuple[Tensor, Tensor]:
        """Compute the loss of the task.

        Args:
            stage: Of the batch.
            outputs: ``(batch, ...)``.
            targets: As the loss of the task takes them.
            weights: ``(batch,)``, or None.
            options: Of the loss.

        Returns:
            The loss to minimise, and the mean over the batch, by the weights if there are any,
            which metrics count. They differ in training, see `weighted_loss`.
        """
        if weights is None:
            loss: Tensor = self.task.compute_losses(outputs, targets, **options)
            return loss, loss
        losses: Tensor = self.task.compute_losses(outputs, targets, reduction="none", **options)
        losses = losses.flatten(1).mean(dim=1) if losses.ndim > 1 else losses
        return self._weigh_losses(stage, losses, weights)

    def _weigh_losses(
        self, stage: Stage, losses: Tensor, weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Compute the loss to minimise and the mean that metrics count.

        From the loss of each sample ``(batch,)``.
        """
        if weights is None:
            mean = losses.mean()
            return mean, mean
        mean = weighted_mean(losses, weights)
        if stage != "train":
            return mean, mean
        data = getattr(self._trainer, "datamodule", None)
        mean_weight = getattr(data, "mean_weight", None)
        return weighted_loss(losses, weights, mean_weight=float(mean_weight or 1.0)), mean

    def _check_targets(self, outputs: Tensor, targets: Tensor) -> None:
        """Refuse targets that the task cannot be trained or scored on.

        Raises:
            DataError: If they do not fit the outputs.
        """
        expected = self.task.check_targets(outputs, targets)
        if expected is not None:
            kind = str(targets.dtype).removeprefix("torch.")
            raise DataError(
                f"A batch has {kind} targets of shape {tuple(targets.shape)}; expected {expected}."
            )

    def _refuse_rounded(self, values: Tensor) -> None:
        """Refuse values that the precision has rounded: an error would be that of the rounding.

        Lightning converts the targets of a batch with its inputs where a precision is true.

        Args:
            values: Targets, or predictions of them.

        Raises:
            ConfigError: If they are of 16 bits.
        """
        if not self.task.has_probabilities and values.dtype in (torch.float16, torch.bfloat16):
            name = "bf16" if values.dtype == torch.bfloat16 else "16"
            raise ConfigError(
                f"trainer.precision: {name}-true rounds the values that the model is to predict,"
                " too (bf16 makes 1004 of 1003), so that no error of it can be measured."
                f" Set {name}-mixed, or 32-true."
            )

    def _count_outputs(
        self,
        stage: Stage,
        name: str,
        outputs: Tensor,
        targets: Tensor,
        weights: Tensor | None,
        losses: tuple[Tensor, Tensor],
    ) -> dict[str, Tensor]:
        """Count a batch in the metrics, and return the outputs of its step.

        Args:
            stage: Of the batch.
            name: Of the outputs.
            outputs: ``(batch, ...)``.
            targets: ``(batch, ...)``.
            weights: ``(batch,)``, or None.
            losses: The loss to minimise, and the mean that metrics count.

        Raises:
            ConfigError: If the precision has rounded the targets.
        """
        self._refuse_rounded(targets)
        loss, mean = losses
        self.scores.update(stage, preds=outputs, target=targets, loss=mean, weights=weights)
        given = {} if weights is None else {"weights": weights}
        return {"loss": loss, name: outputs.detach(), "target": targets, **given}

    def on_train_batch_start(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Start a new epoch's metrics."""
        # also after a resume that Lightning starts without the end of the epoch before
        if batch_idx == 0:
            self.scores.of("train").reset()

    def training_step(self, batch: Sequence[Tensor]) -> Tensor:
        """Return the loss of a batch."""
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
        values = self.scores.finish(stage)
        is_due = bool(values) and stage != "train" and not self.trainer.sanity_checking
        # torchmetrics computes 0 of none
        if is_due and not cast(MeanLoss, self.scores.of(stage)["loss"]).has_counted:
            raise DataError(
                f"each sample of the {stage} split has the weight 0, so that nothing is scored. Set"
                " data.init_args.weight to another column, or leave it out."
            )
        for name, value in values.items():
            # the value is that of all processes already; sync_dist only keeps Lightning from
            # warning
            self.log(name, value, prog_bar=name in self._in_bar, sync_dist=True)

    def create_optimizer(self) -> Optimizer:
        """Build the AdamW that trains the model where the config names no optimizer.

        Whatever its schedule.
        """
        return AdamW(parameter_groups(self, weight_decay=self.weight_decay), lr=self.learning_rate)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return AdamW; its learning rate falls along half a cosine to zero at the run's last step.

        The number of steps is asked for when the first one is done. Asking while the optimizer is
        made would start the training loader before a resumed run knows where in the epoch it
        stands. A run without an end keeps its rate.
        """

        def scale(step: int) -> float:
            num_steps = count_optimizer_steps(self.trainer) if step else math.inf
            return (
                1.0
                if math.isinf(num_steps)
                else (1 + math.cos(math.pi * min(1.0, step / max(1, num_steps)))) / 2
            )

        optimizer = self.create_optimizer()
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": LambdaLR(optimizer, scale), "interval": "step"},
        }


def parameter_groups(module: nn.Module, *, weight_decay: float) -> list[dict[str, Any]]:
    """Part the trainable parameters into those that decay and the vectors (biases, norms).

    The vectors do not decay.
    """
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
