"""The model of rows of a table that configs name."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import torch
from pytorch_lightning import LightningModule
from pytorch_lightning.strategies import DDPStrategy
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor, nn

from lightkit import runs
from lightkit.config.bounds import NonNegativeFloat, NonNegativeInt, Part, PositiveInt
from lightkit.errors import ConfigError, DataError
from lightkit.export.samples import space_evenly
from lightkit.models.classes import check_class_names, check_same_classes, find_factors
from lightkit.models.classifier import spare_single_pixels
from lightkit.models.importance import MOST_ROWS, measure_importance
from lightkit.models.module import ScoredModule, Scores, Stage, build_metrics, split_batch, widen
from lightkit.models.tabular_layers import NetworkName, RowEncoder, build_network
from lightkit.rows.preprocessing import (
    CHECKPOINT_KEY,
    RowPreprocessing,
    dump_preprocessing,
    load_preprocessing,
)
from lightkit.rows.table import TablePreprocessing, count_inputs
from lightkit.task import CLASSIFICATION, REGRESSION, OutputKind, Task

log = logging.getLogger("lightkit.models")


class TabularModel(ScoredModule, LightningModule):
    """A network for rows of a table, that predicts a class or a number.

    It is built when the data is known: its columns, their preparation, and whether the target is a
    class or a value come from there, and stay in the checkpoint. Of classes it logs ``loss``,
    ``accuracy``, ``f1``, ``precision`` and ``recall`` as ``val/accuracy`` and so on; of values
    ``loss``, ``mae`` and ``mse``, the last two in the units of the target and the loss in those of
    its standard deviation. Batches are those of `lightkit.data.TableData`; rows of weight 0 are in
    no metric.

    Args:
        network: ``mlp``, ``resnet`` (arXiv:2106.11959), or ``tabm``, an ensemble of MLPs that share
            most of their weights (arXiv:2410.24210), which is the most accurate and takes about ten
            times as long as ``mlp``.
        hidden: Units of a layer.
        blocks: Layers, or residual blocks.
        dropout: Share of units that are dropped in training.
        embedding: ``piecewise`` embeds each number by the bins that it is in (arXiv:2203.05556),
            ``none`` takes it as it is.
        num_bins: Most bins of a number.
        embedding_width: Of a number.
        category_width: Most numbers of the embedding of a category.
        members: Of ``tabm``.
        class_weight: Factor of the training loss of each class; `auto` takes all training rows over
            those of the class and the number of classes. Validation and test are without it.
        learning_rate: At the first step, where the config names no optimizer: AdamW along a cosine
            to zero.
        weight_decay: Of that optimizer, for all but biases and normalisation.
    """

    task: Task = CLASSIFICATION
    output_kind: OutputKind = CLASSIFICATION.output_kind
    """Kind of the output of ``forward``: logits, or values where the target is one."""
    row_preprocessing: RowPreprocessing | None = None
    """Preparation of rows; known once the network is built."""
    target_mean: Tensor
    target_std: Tensor
    _in_bar = frozenset({"val/loss", "val/accuracy", "val/mae"})

    def __init__(
        self,
        network: NetworkName = "tabm",
        hidden: PositiveInt = 256,
        blocks: PositiveInt = 2,
        dropout: Part = 0.1,
        embedding: Literal["piecewise", "none"] = "piecewise",
        num_bins: PositiveInt = 48,
        embedding_width: PositiveInt = 16,
        category_width: NonNegativeInt = 16,
        members: PositiveInt = 32,
        class_weight: Literal["auto"] | list[float] | None = None,
        learning_rate: NonNegativeFloat = 2e-3,
        weight_decay: NonNegativeFloat = 3e-4,
    ) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise ConfigError(
                f"model.init_args.dropout: expected at least 0 and below 1, got {dropout}."
            )
        self.save_hyperparameters()
        self.network_name = network
        self.sizes = {"hidden": hidden, "blocks": blocks, "members": members}
        self.dropout = dropout
        self.num_bins = num_bins
        self.embedding_width = embedding_width if embedding == "piecewise" else 0
        self.category_width = category_width
        self.class_weight = class_weight
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.class_names: list[str] | None = None
        self.encoder: RowEncoder | None = None
        self.network: nn.Module | None = None
        self._class_factors: Tensor | None = None
        self.register_buffer("target_mean", torch.zeros(1))
        self.register_buffer("target_std", torch.ones(1))

    # -- building ----------------------------------------------------------------------------------

    def configure_model(self) -> None:
        """Build the network for the columns and the target of the data.

        A checkpoint brings its own afterwards.

        Raises:
            ConfigError: If the data says neither.
        """
        if self.network is not None or self._trainer is None:
            return
        data = self._trainer.datamodule  # type: ignore[attr-defined]
        if self._trainer.state.fn == TrainerFn.FITTING:
            self._build_from_data(data)
            return
        # of the test split alone: the checkpoint has the rest
        with suppress(DataError, ConfigError):
            self._build_from_data(data)

    def _build_from_data(self, data: Any) -> None:
        preprocessing = getattr(data, "row_preprocessing", None)
        if not isinstance(preprocessing, TablePreprocessing):
            raise ConfigError(
                f"model: {type(self).__name__} predicts rows of a table, and {type(data).__name__}"
                " has no `row_preprocessing` of them. Set data.class_path to TableData."
            )
        self._build(preprocessing, list(data.class_names or ()))
        mean, std = data.target_scale
        self.target_mean.fill_(mean)
        self.target_std.fill_(std)

    def build_for_rows(
        self, preprocessing: RowPreprocessing, class_names: Sequence[str] | None
    ) -> None:
        """Build the network for weights that come from elsewhere than a checkpoint.

        Args:
            preprocessing: Of the rows that it was trained on.
            class_names: Names of its classes; None of a model of values.
        """
        self._build(preprocessing, list(class_names or ()))

    def _build(self, preprocessing: RowPreprocessing, class_names: list[str]) -> None:
        if not isinstance(preprocessing, TablePreprocessing):
            raise ConfigError(
                f"model: {type(self).__name__} takes rows of a table, and the preparation is of the"
                f" kind {preprocessing.kind}."
            )
        self.class_names = check_class_names(class_names, None) if class_names else None
        self.task = CLASSIFICATION if class_names else REGRESSION
        self.output_kind = self.task.output_kind
        self.row_preprocessing = preprocessing
        edges = preprocessing.list_bins(self.num_bins)
        num_numbers, sizes = count_inputs(preprocessing)
        self.encoder = RowEncoder(
            edges, sizes, width=self.embedding_width, category_width=max(self.category_width, 1)
        )
        num_outputs = len(class_names) or 1
        self.network = build_network(
            self.network_name,
            self.encoder.chunks,
            num_outputs,
            **self.sizes,
            dropout=self.dropout,
            draws_signs=self.embedding_width == 0,
        )
        self.scores = Scores(build_metrics(self.task, num_outputs))
        shapes = [torch.zeros(2, num_numbers)] if num_numbers else []
        shapes += [torch.zeros(2, len(sizes), dtype=torch.int64)] if sizes else []
        self.example_input_array = tuple(shapes)
        self.to(self.device)
        self.train(self.training)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the preparation of rows, and the class names."""
        checkpoint[CHECKPOINT_KEY] = dump_preprocessing(self.row_preprocessing)
        checkpoint["class_names"] = self.class_names

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take the preparation of the checkpoint, and build the network for it.

        Raises:
            ConfigError: If the checkpoint is of another model, or of other classes.
        """
        preprocessing = load_preprocessing(checkpoint.get(CHECKPOINT_KEY))
        if preprocessing is None:
            raise ConfigError(
                "ckpt_path: the checkpoint has no preparation of rows, so it was not saved by"
                f" {type(self).__name__}."
            )
        names = checkpoint.get("class_names") or []
        if self.class_names is not None and names:
            check_same_classes(names, self.class_names, by="the checkpoint")
        is_same = self.network is not None and preprocessing == self.row_preprocessing
        if not is_same or names != (self.class_names or []):
            self._build(preprocessing, names)

    # -- steps -------------------------------------------------------------------------------------

    def forward(self, numbers: Tensor, categories: Tensor | None = None) -> Tensor:
        """Return logits ``(batch, classes)``, or values ``(batch, 1)`` in the units of the target.

        Args:
            numbers: float32 ``(batch, numbers)``; where a table has none, int64 categories
                ``(batch, categories)``.
            categories: int64 ``(batch, categories)``, where it has both.
        """
        return self._combine(self._compute_members(numbers, categories))

    def forward_inputs(self, batch: Sequence[Any]) -> tuple[Tensor, ...]:
        """Return the inputs of ``forward`` in a batch, for an export."""
        return tuple(batch[0])

    def _compute_members(self, numbers: Tensor, categories: Tensor | None = None) -> Tensor:
        """Return the outputs ``(batch, members, outputs)``.

        Values in units of the standard deviation.
        """
        if self.network is None or self.encoder is None:
            raise ConfigError(
                "model: the columns of the table are unknown, as the data says none and there is no"
                " checkpoint. Train the model on TableData."
            )
        rows = (
            self.encoder(numbers, categories)
            if self.encoder.has_numbers
            else self.encoder(None, numbers)
        )
        members: Tensor = self.network(rows)
        return members

    def _combine(self, members: Tensor) -> Tensor:
        """Return the prediction of all members.

        The mean of their probabilities, as logits, or of their values.
        """
        if not self.task.has_probabilities:
            return members.mean(dim=1) * self.target_std + self.target_mean
        if members.shape[1] == 1:
            return members[:, 0]
        return torch.logsumexp(members.log_softmax(dim=2), dim=1) - math.log(members.shape[1])

    @property
    def metric_units(self) -> dict[str, list[float]]:
        """Numbers of this model's own by which a metric is divided: the variance of the target.

        By the metric.
        """
        if self.task.has_probabilities:
            return {}
        return {"loss": self.target_std.detach().double().square().tolist()}

    def on_train_start(self) -> None:
        """Take the factors of the classes.

        Raises:
            ConfigError: If there are not as many as classes.
        """
        factors = find_factors(
            self.class_weight, self.class_names or [], trainer=self._trainer, noun="row"
        )
        self._class_factors = None if factors is None else factors.to(self.device)

    def predict_step(self, batch: Sequence[Any]) -> Tensor:
        """Return probabilities ``(batch, classes)`` or values ``(batch, 1)`` of a batch.

        With or without targets.
        """
        outputs: Tensor = self(*batch[0])
        self._refuse_rounded(outputs)
        return widen(outputs).softmax(dim=1) if self.task.has_probabilities else outputs

    def _step(self, stage: Stage, batch: Sequence[Any]) -> dict[str, Tensor]:
        inputs, targets, weights = split_batch(batch)
        if self.network is None:
            raise ConfigError(
                "model: it is not built, as the data says no columns and there is no checkpoint."
            )
        if stage == "train":
            with spare_single_pixels(self.network, len(targets)):
                members = self._compute_members(*inputs)
            outputs = self._combine(members)
            self._check_targets(outputs, targets)
            losses = self._weigh_losses(
                stage, self._compute_member_losses(members, targets), weights
            )
        else:
            # which the proof of an export puts a file's outputs in the place of
            outputs = self(*inputs)
            self._check_targets(outputs, targets)
            losses = self._compute_loss(stage, self._scale(outputs), self._scale(targets), weights)
        name = "logits" if self.task.has_probabilities else "prediction"
        return self._count_outputs(stage, name, outputs, targets, weights, losses)

    def on_test_end(self) -> None:
        """Measure the importance of the columns on some rows of the test split.

        For the report of the run.
        """
        run = runs.current()
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        is_whole = self.trainer.world_size == 1 or isinstance(self.trainer.strategy, DDPStrategy)
        # not of what a gate puts around the data
        is_rows = callable(getattr(type(data), "encoded", None))
        preprocessing = self.row_preprocessing
        if run is None or not (is_whole and is_rows and self.trainer.is_global_zero):
            return
        assert isinstance(preprocessing, TablePreprocessing)
        rows = data.encoded("test")
        inputs, target, weights = split_batch(rows.__getitems__(space_evenly(len(rows), MOST_ROWS)))
        # as in the metrics
        counts = torch.ones(len(target), dtype=torch.bool) if weights is None else weights > 0
        if not counts.any():
            return
        precision = self.trainer.precision_plugin

        def predict(parts: Sequence[Tensor]) -> Tensor:
            with precision.forward_context():
                outputs: Tensor = self(*precision.convert_input(parts))
            return outputs

        found = measure_importance(
            predict,
            [each[counts].to(self.device) for each in inputs],
            target[counts].to(self.device),
            preprocessing,
        )
        checkpoint = self.trainer.ckpt_path
        about = {
            "schema": 1,
            "split": "test",
            "fingerprint": data.describe()["fingerprint"],
            "sha256": (
                runs.digest(checkpoint) if checkpoint and Path(checkpoint).is_file() else None
            ),
        }
        runs.write_json(run.folder / "importance.json", {**about, **found})

    def _scale(self, values: Tensor) -> Tensor:
        """Return values in units of the standard deviation; logits and classes as they are."""
        return values if self.task.has_probabilities else values / self.target_std

    def _compute_member_losses(self, members: Tensor, targets: Tensor) -> Tensor:
        """Return the mean of the losses of all members, each trained for itself: ``(batch,)``."""
        num = members.shape[1]
        if self.task.has_probabilities:
            factors = None if self._class_factors is None else self._class_factors.to(members.dtype)
            losses: Tensor = self.task.compute_losses(
                members.flatten(0, 1),
                targets.repeat_interleave(num),
                reduction="none",
                weight=factors,
            )
            return losses.view(-1, num).mean(dim=1)
        wanted = ((targets - self.target_mean) / self.target_std)[:, None].expand_as(members)
        losses = self.task.compute_losses(members, wanted, reduction="none")
        return losses.flatten(1).mean(dim=1)
