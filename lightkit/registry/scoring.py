"""A model's scores on the samples of a gate."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from pytorch_lightning import LightningModule, Trainer

from lightkit import runs
from lightkit.callbacks import VerifiedCheckpointIO
from lightkit.callbacks.checkpoint_reading import read_checkpoint
from lightkit.config import near
from lightkit.errors import ConfigError
from lightkit.export.bare_trainer import bare_trainer
from lightkit.registry.gate import Scored
from lightkit.registry.samples import EvaluationData

__all__ = ["Contender", "accelerator_of", "score"]

# What Lightning 2.6.6 says of a trainer without the callbacks of the training.
_EXPECTED = "Be aware that when using `ckpt_path`, callbacks"


@dataclass(frozen=True)
class Contender:
    """A model that is scored.

    Args:
        name: It, in words.
        module: As its class makes it; it gets its weights here.
        checkpoint: File of its weights.
        data: The samples, prepared as this model takes them.
    """

    name: str
    module: LightningModule
    checkpoint: Path
    data: EvaluationData


def accelerator_of(configured: str | None) -> str:
    """Choose the device: the CPU where the config says so or there is nothing else, else a GPU."""
    if configured == "cpu" or not torch.cuda.is_available():
        return "cpu"
    return "gpu"


def score(contender: Contender, *, metric: str, slices: Sequence[str] = (), accelerator: str = "cpu") -> Scored:
    """Run a model's own test or validation steps over all samples, and again over those of each class.

    Args:
        contender: The model.
        metric: The metric that is judged.
        slices: Classes, by name or number.
        accelerator: On one device of which it runs.

    Raises:
        ConfigError: If the checkpoint does not fit, the model logs no such metric, or there is no such class.
    """
    names = read_checkpoint(contender.checkpoint, mmap=True).get("class_names")
    contender.data.for_classes(names if isinstance(names, (list, tuple)) else None)
    contender.data.of_class(None)
    trainer = bare_trainer(VerifiedCheckpointIO(), accelerator=accelerator)
    metrics = _evaluated(trainer, contender, checkpoint=contender.checkpoint)
    if metric not in metrics:
        there = ", ".join(sorted(metrics)) or "none"
        raise ConfigError(
            f"gate.metric: {contender.name} logs no {metric!r} on the {contender.data.split} split"
            f"{near(metric, metrics)}\nlogged: {there}"
        )
    by_class: dict[str, float | None] = {}
    try:
        for name in slices:
            contender.data.of_class(name)
            value = _evaluated(trainer, contender, checkpoint=None).get(metric)
            by_class[name] = None if value is None or not math.isfinite(value) else value
    finally:
        contender.data.of_class(None)
    return Scored(contender.name, metrics, by_class)


def _evaluated(trainer: Trainer, contender: Contender, *, checkpoint: Path | None) -> Mapping[str, float]:
    """Evaluate, with the weights of a checkpoint or as the module is."""
    evaluate = trainer.test if contender.data.split == "test" else trainer.validate
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_EXPECTED)
        evaluate(
            contender.module,
            datamodule=contender.data,
            ckpt_path=None if checkpoint is None else str(checkpoint),
            verbose=False,
            weights_only=not runs.is_trusting(),
        )
    return {name: float(value) for name, value in trainer.callback_metrics.items()}
