"""The names of a model's classes, which belong to its checkpoint and not to today's data."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.trainer.states import TrainerFn

from lightkit import runs
from lightkit.callbacks.checkpoint_io import read_checkpoint
from lightkit.errors import DataError, join_names

_log = logging.getLogger("lightkit")
_KEY = "lightkit_class_names"
_MODULES_OWN = "class_names"
"""Key of a checkpoint under which `ImageClassifier`, and modules that follow it, keep names
themselves."""


@dataclass(frozen=True)
class TrainedClasses:
    """The classes that a model was trained with, each list in the order of the numbers.

    None where they are unknown.

    Args:
        outputs: Names of its outputs.
        labels: Names of the labels in the batches of its training.
        numbering: Names in the order in which its steps take labels: as the module itself says in
            the checkpoint, else those of the training.
    """

    outputs: list[str] | None = None
    labels: list[str] | None = None
    numbering: list[str] | None = None


def names_of_labels(data: Any) -> list[str] | None:
    """Return the class names of a data module, in the order of its labels.

    None where it has none.
    """
    return _as_names(getattr(data, "class_names", None))


def find_trained_classes(checkpoint: Mapping[str, Any]) -> TrainedClasses:
    """Return the classes that the content of a checkpoint names."""
    kept = checkpoint.get(_KEY)
    kept = kept if isinstance(kept, Mapping) else {}
    by_module = _as_names(checkpoint.get(_MODULES_OWN))
    labels = _as_names(kept.get("labels")) or by_module
    return TrainedClasses(by_module or _as_names(kept.get("outputs")), labels, by_module or labels)


def read_trained_classes(path: str | Path | None) -> TrainedClasses:
    """Return the classes of a checkpoint, else those that the manifest of its run has.

    Args:
        path: File of the checkpoint; without one, or at an address, nothing is known.

    Raises:
        ConfigError: If the file cannot be read.
    """
    if path is None or "://" in str(path):
        return TrainedClasses()
    if not Path(path).is_dir():
        found = find_trained_classes(read_checkpoint(path, mmap=True))
        if found != TrainedClasses():
            return found

    # weights alone, a folder of shards, or a checkpoint from before the names were in it
    manifest = runs.read_json(Path(path).resolve().parent.parent / "manifest.json") or {}
    data = manifest.get("data")
    names = _as_names(data.get("class_names")) if isinstance(data, Mapping) else None
    return TrainedClasses(names, names, names)


def names_of_outputs(trainer: Trainer) -> list[str] | None:
    """Return the names of what the trainer's model predicts.

    Those of its checkpoint, the module's, or the data's.

    The names of the data say nothing of a model that comes from a checkpoint, whose data may have
    been another.
    """
    data = getattr(trainer, "datamodule", None)
    path = None if trainer.state.fn == TrainerFn.FITTING else trainer.ckpt_path
    trained = read_trained_classes(path)
    return (
        trained.outputs
        or _as_names(getattr(trainer.lightning_module, "class_names", None))
        or names_of_labels(data)
    )


def describe_other_classes(trained: TrainedClasses, data: Any) -> str | None:
    """Describe how the classes of the data differ from those of a training.

    None where they do not.
    """
    labels = names_of_labels(data)
    if trained.labels is None or labels is None or trained.labels == labels:
        return None
    order = ", but in another order" if sorted(trained.labels) == sorted(labels) else ""
    return (
        f"the classes of the checkpoint are not those of the data{order}: the checkpoint has"
        f" {len(trained.labels)} ({join_names(trained.labels, most=10)}), the data {len(labels)}"
        f" ({join_names(labels, most=10)})"
    )


class ClassNames(Callback):
    """Keep the class names of a training in its checkpoints.

    Score no model on labels that mean other classes.
    """

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the names of outputs and labels."""
        labels = names_of_labels(getattr(trainer, "datamodule", None))
        outputs = _as_names(getattr(pl_module, "class_names", None)) or labels
        if outputs is not None:
            checkpoint[_KEY] = {"outputs": outputs, "labels": labels}

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Warn if a training goes on with labels that mean other classes than before."""
        if trainer.state.fn != TrainerFn.FITTING or not trainer.is_global_zero:
            return
        found = describe_other_classes(
            find_trained_classes(checkpoint), getattr(trainer, "datamodule", None)
        )
        if found is not None:
            _log.warning("%s. The training goes on with the labels of the data.", found)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare the classes of the data with those of the checkpoint.

        Raises:
            DataError: If they differ.
        """
        found = describe_other_classes(
            read_trained_classes(trainer.ckpt_path), getattr(trainer, "datamodule", None)
        )
        if found is not None:
            raise DataError(
                f"data: {found}. Its labels mean other classes to the model, so that every score of"
                " it would be wrong. Score it on data of the classes that it was trained on, or"
                " train a new model."
            )

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare the classes where a checkpoint is validated outside a training.

        Raises:
            DataError: If they differ.
        """
        if trainer.state.fn == TrainerFn.VALIDATING:
            self.on_test_start(trainer, pl_module)


def _as_names(value: Any) -> list[str] | None:
    is_list = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    return [str(name) for name in value] if is_list and len(value) else None
