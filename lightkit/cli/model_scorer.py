"""Scores of models beside one another: the same steps, samples, precision and callbacks."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer, seed_everything

from lightkit import runs
from lightkit.callbacks import VerifiedCheckpointIO
from lightkit.callbacks.class_names import read_trained_classes
from lightkit.callbacks.computation import Computation, name_device
from lightkit.callbacks.metric_modes import find_metric_modes
from lightkit.callbacks.prediction_recorder import PredictionRecorder
from lightkit.cli.console import print_line
from lightkit.cli.model_builder import build_metric_callbacks
from lightkit.cli.stage_config import StageConfig
from lightkit.config import near
from lightkit.config.accelerator.vocabulary import PRECISIONS
from lightkit.config.bounds import is_int
from lightkit.errors import ConfigError
from lightkit.export.bare_trainer import build_bare_trainer
from lightkit.registry.evaluation import EvaluationData
from lightkit.registry.gate import GateSettings, ModelScores
from lightkit.reports.predictions import (
    UNKNOWN_SCORE,
    Predictions,
    explain_class_metric,
    is_loss_name,
    score_class,
)
from lightkit.reports.statistics import score_slice
from lightkit.runs.metric_mode import override_modes
from lightkit.runs.scores import StageScore

FULL_PRECISION = "32-true"
"""Precision of the trainer in which a score is the same on each machine."""


@dataclass
class ModelScorer:
    """Scores models by their own test or validation steps, so that they can be compared.

    Args:
        stage_config: Config of the run that is judged. Its precision, its seed and its callbacks
            are those of all models.
        settings: The gate: its metric, and the classes and slices that it judges.
        stack: For what is undone at the end.
        modes: Modes of metrics as the training knew them; those of the metric objects of what is
            scored are added.
    """

    stage_config: StageConfig
    settings: GateSettings
    stack: ExitStack
    modes: dict[str, Any]

    def __post_init__(self) -> None:
        self.metric = str(self.settings.metric)
        seed = self.stage_config.resolved.value_of("seed_everything")
        self.seed = seed if is_int(seed) else 0  # it may decide which samples there are
        has_gpu = self.stage_config.hardware.kind != "cpu" and torch.cuda.is_available()
        self._device = torch.device("cuda" if has_gpu else "cpu")
        self.precision = self._choose_precision()
        self._needs_callbacks = False  # of the config, one of which logs the metric

    def score(
        self, name: str, module: LightningModule, checkpoint: Path, data: EvaluationData
    ) -> ModelScores:
        """Run a model's own test or validation steps over all samples.

        Find the values of single classes.

        Args:
            name: Its name in messages.
            module: The model, which gets its weights here.
            checkpoint: File of its weights.
            data: The samples, prepared as this model takes them.

        Raises:
            ConfigError: If the checkpoint does not fit, the model logs no such metric, or there is
                no such class.
            DataError: If the data has a class that the model does not know.
        """
        print_line(f"scores {name}", self.stage_config.mode)
        data.model_classes = read_trained_classes(checkpoint).numbering
        data.model_name = name
        recorder = PredictionRecorder(None)
        trainer = self._build_trainer(recorder)

        def evaluate(ckpt_path: str | None) -> Mapping[str, float]:
            run_split = trainer.test if data.split == "test" else trainer.validate
            # the same samples, where that draws numbers
            seed_everything(self.seed, workers=True, verbose=False)
            data.begin_pass()
            # Lightning 2.6.6, of a trainer without the callbacks of the training
            with warnings.catch_warnings():
                warnings.filterwarnings(
                    "ignore", message="Be aware that when using `ckpt_path`, callbacks"
                )
                # of `self.log(..., logger=True)`: a gate has no logger
                warnings.filterwarnings(
                    "ignore", message=r"You called `self.log\(.*no logger configured"
                )
                run_split(
                    module,
                    datamodule=data,
                    ckpt_path=ckpt_path,
                    verbose=False,
                    weights_only=not runs.is_trusting(),
                )
            self.modes = override_modes(find_metric_modes(trainer, module), self.modes)
            return {key: float(value) for key, value in trainer.callback_metrics.items()}

        metrics = evaluate(str(checkpoint))
        if (
            self.metric not in metrics
            and not self._needs_callbacks
            and self._add_callbacks(trainer)
        ):
            metrics = evaluate(None)
            self._needs_callbacks = self.metric in metrics
        predictions = data.name_predictions(recorder.predictions)
        predictions = data.add_slices(predictions, list(self.settings.slices or ()))
        if self.metric not in metrics:
            raise ConfigError(
                f"gate.metric: {name} logs no {self.metric!r} on the {data.split}"
                f" split{near(self.metric, metrics)}"
                f"\nlogged: {', '.join(sorted(metrics)) or 'none'}"
            )
        of_classes = {
            each: self._score_class(
                each, metrics[self.metric], predictions, data, partial(evaluate, None)
            )
            for each in self.settings.slices or {}
        }
        return ModelScores(
            name, metrics, of_classes, predictions, unit=find_unit(module, self.metric)
        )

    def computes_alike(self, score: StageScore) -> bool:
        """Return whether a score would be computed here as it was computed.

        To the last digits of float32.
        """
        if score.precision != self.precision:
            return False
        return score.precision == FULL_PRECISION or score.device == name_device(self._device)

    def _choose_precision(self) -> str:
        """Return the run's own precision where this machine has it, else float32's."""
        trainer = self.stage_config.resolved.section("trainer")
        precision = PRECISIONS.get(str(trainer.get("precision")), FULL_PRECISION)
        has_bf16 = name_device(self._device) == "cpu with bf16"
        if self._device.type == "cuda":
            has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        is_fast = {"bf16-mixed": has_bf16, "16-mixed": self._device.type == "cuda"}
        return precision if is_fast.get(precision, False) else FULL_PRECISION

    def _build_trainer(self, recorder: PredictionRecorder) -> Trainer:
        """Build a trainer that computes as the run did, and keeps the predictions."""
        accelerator = "gpu" if self._device.type == "cuda" else "cpu"
        trainer = build_bare_trainer(
            VerifiedCheckpointIO(), accelerator=accelerator, precision=self.precision
        )
        block = self.stage_config.resolved.section("accelerator")
        computation = Computation(memory_format=block.get("memory_format") or "contiguous")
        trainer.callbacks.extend([computation, recorder])  # type: ignore[attr-defined]
        if self._needs_callbacks:
            self._add_callbacks(trainer)
        return trainer

    def _add_callbacks(self, trainer: Trainer) -> int:
        """Add the callbacks of the judged run's config, of which one may log the metric.

        Both models get them from there, so that the metric is computed alike.

        Returns:
            Number of callbacks.
        """
        callbacks = build_metric_callbacks(self.stage_config, self.stack)
        trainer.callbacks.extend(callbacks)  # type: ignore[attr-defined]
        return len(callbacks)

    def _score_class(
        self,
        class_name: str,
        score: float,
        predictions: Predictions | None,
        data: EvaluationData,
        evaluate: Callable[[], Mapping[str, float]],
    ) -> float | None:
        """Find the metric of one class, or of one slice by a column.

        Its own value of the predictions, else by the steps on its samples alone.

        Args:
            class_name: Name of the class.
            score: The metric over all samples.
            predictions: For all samples; None where the steps do not return them.
            data: The samples.
            evaluate: Runs the steps.

        Returns:
            None where the class has no samples, or no finite value.

        Raises:
            ConfigError: If there is no such class, or the metric is no mean over samples.
        """
        if data.is_column_slice(class_name):
            own = score_slice(self.metric, class_name, score, predictions)
            if own is not UNKNOWN_SCORE:
                return own
            raise ConfigError(
                f"gate.slices.{class_name}: the predictions do not tell {self.metric} of some rows"
                " alone. Judge slices by accuracy, f1, precision, recall, mae or mse."
            )
        if predictions is not None and predictions.task.form.count_classes(predictions) is not None:
            number = data.number_of_label(class_name)
            found = score_class(predictions, number, self.metric, score)
            if found is not UNKNOWN_SCORE:
                return found
            refusal = explain_class_metric(predictions.task, self.metric, score)
            if refusal is not None:
                raise ConfigError(refusal)
        return self._score_samples(class_name, score, data, evaluate)

    def _score_samples(
        self,
        class_name: str,
        score: float,
        data: EvaluationData,
        evaluate: Callable[[], Mapping[str, float]],
    ) -> float | None:
        """Find the metric of one class by the steps on its samples alone, see `_score_class`.

        A mean over samples is the weighted mean of what its parts have.
        """
        values: dict[bool, float] = {}
        sizes: dict[bool, int] = {}
        for is_left_out in (False, True):
            data.choose_class(class_name, is_left_out=is_left_out)
            value = evaluate().get(self.metric)
            sizes[is_left_out] = data.num_given
            values[is_left_out] = math.nan if value is None or not data.num_given else value
        data.choose_all()
        own = values[False]
        if not math.isfinite(own):
            return None
        parts = [values[each] * sizes[each] for each in sizes if sizes[each]]
        mean = sum(parts) / sum(sizes.values())
        if (
            not is_loss_name(self.metric)
            and math.isfinite(score)
            and not math.isclose(mean, score, rel_tol=1e-3, abs_tol=1e-4)
        ):
            raise ConfigError(
                f"gate.slices: {self.metric} is no mean over samples, such as a mean over classes,"
                f" so that its value on the samples of {class_name} alone says nothing of"
                f" {class_name}; and no predictions give {score:.4g}. Judge classes by accuracy,"
                ' f1, precision or recall, for which the steps return {"logits": ..., "target":'
                " ...} of which the likeliest class has that score, or leave gate.slices out."
            )
        return own


def find_unit(module: LightningModule, metric: str) -> tuple[float, ...] | None:
    """Return the numbers by which a model divides a metric, as its `metric_units` says.

    None for a unit of all runs.
    """
    units = getattr(module, "metric_units", None)
    found = units.get(metric.rpartition("/")[2]) if isinstance(units, Mapping) else None
    return None if found is None else tuple(map(float, found))
