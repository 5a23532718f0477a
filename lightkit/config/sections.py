"""The sections of a config: its top-level keys that hold more than one value."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Section(NamedTuple):
    """A section of a config.

    Args:
        kind: What it holds: one ``class`` with its arguments, ``entries`` by name, each a class, or
            the ``keys`` of a class that is fixed.
        owner: Whose classes or keys these are, as a rule: the ``user``'s, of which a script may fix
            the class; those of ``lightning`` and torch; or those of ``lightkit``.
        may_be_file: Whether the name of a file that holds the section may stand in its place.
        help: Its description; that of ``keys`` is the docstring of their class.
    """

    kind: Literal["class", "entries", "keys"]
    owner: Literal["user", "lightning", "lightkit"]
    may_be_file: bool = True
    help: str = ""


SECTIONS = {
    "model": Section("class", "user", help="The model: a LightningModule"),
    "data": Section("class", "user", help="The data: a LightningDataModule"),
    "optimizer": Section(
        "class", "lightning", help="The optimizer, where the model leaves it to the config"
    ),
    "lr_scheduler": Section(
        "class",
        "lightning",
        help="The learning rate's schedule, where the model leaves it to the config",
    ),
    "run": Section("keys", "lightkit"),
    # a word in its place is the kind of hardware
    "accelerator": Section("keys", "lightkit", may_be_file=False),
    "launch": Section("keys", "lightkit", may_be_file=False),
    "watchdog": Section("keys", "lightkit"),
    "gate": Section("keys", "lightkit"),
    "sweep": Section("keys", "lightkit"),
    "trainer": Section("keys", "lightning"),
    "callbacks": Section(
        "entries",
        "lightning",
        help="Callbacks by name; a later layer changes, adds, or with null removes one",
    ),
    "logger": Section(
        "entries",
        "lightning",
        help="Loggers by name; a later layer changes, adds, or with null removes one",
    ),
}
"""All sections by name; every list of some of them is taken from here."""

CLASS_SECTIONS = tuple(name for name, section in SECTIONS.items() if section.kind == "class")
"""Sections that hold one class each, unless the command line fixes the class in Python."""

FILE_SECTIONS = tuple(name for name, section in SECTIONS.items() if section.may_be_file)
"""Sections in whose place the name of a file that holds them may stand."""

USER_SECTIONS = tuple(name for name, section in SECTIONS.items() if section.owner == "user")
"""Sections of which a script may fix the class."""

_LIGHTNING = "pytorch_lightning.callbacks."
NAMED_CLASSES = {
    "callbacks": {
        "checkpoint": "lightkit.callbacks.Checkpoint",
        "device_stats": _LIGHTNING + "DeviceStatsMonitor",
        "early_stopping": _LIGHTNING + "EarlyStopping",
        "ema": "lightkit.callbacks.EMA",
        "gradient_accumulation": _LIGHTNING + "GradientAccumulationScheduler",
        "lr_finder": _LIGHTNING + "LearningRateFinder",
        "lr_monitor": _LIGHTNING + "LearningRateMonitor",
        "notify": "lightkit.callbacks.AppriseNotifier",
        "pruning": _LIGHTNING + "ModelPruning",
        "scale_lr": "lightkit.distributed.ScaledLearningRate",
        "slack": "lightkit.callbacks.SlackNotifier",
        "swa": _LIGHTNING + "StochasticWeightAveraging",
        "timer": _LIGHTNING + "Timer",
        "webhook": "lightkit.callbacks.WebhookNotifier",
    },
    "logger": {
        "comet": "lightkit.loggers.Comet",
        "csv": "lightkit.loggers.CSV",
        "mlflow": "lightkit.loggers.MLflow",
        "tensorboard": "lightkit.loggers.TensorBoard",
        "wandb": "lightkit.loggers.WandB",
    },
}
"""Sections of entries, each with what an entry's name stands for where it has no class_path."""
