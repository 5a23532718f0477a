"""The identity of a model: the values of a config that can change its weights or metrics.

An interrupted fit is resumed, `--if-changed` trains nothing, and a retrain goes on as long as the
identity is the same. Every key is in it but those listed here, so that a key of the user's own, or
one that this list forgot, counts: the worst of that is a training too many, never a model that is
taken for another.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from lightkit.config.origins import KeyPath
from lightkit.config.sections import NAMED_CLASSES

_OUTSIDE = (
    # where a run is, when it begins, and who hears of it
    "run",
    # a judgement of a model that is trained
    "gate",
    # the search for other values, whose trials have theirs in a layer of their own
    "sweep",
    # records of a training
    "logger",
    "trainer.logger",
    "trainer.default_root_dir",
    "trainer.enable_autolog_hparams",
    "trainer.enable_model_summary",
    "trainer.enable_progress_bar",
    "trainer.model_registry",
    "trainer.profiler",
    # how patiently hangs and lost processes are watched; `watchdog.on_nonfinite` leaves out batches
    "watchdog.factor",
    "watchdog.floor_s",
    "launch.max_failures",
    "launch.max_restarts",
    "launch.stall_timeout_s",
    "launch.timeout_s",
    # how processes find one another, and what they print; how many there are changes the batches
    "launch.all_ranks",
    "launch.network_interface",
    "launch.rendezvous",
    "launch.slurm",
)
_OBSERVERS = {
    "AppriseNotifier": ("lightkit",),
    "SlackNotifier": ("lightkit",),
    "WebhookNotifier": ("lightkit",),
    "DeviceStatsMonitor": ("lightning", "pytorch_lightning"),
    "ModelSummary": ("lightning", "pytorch_lightning"),
    "RichModelSummary": ("lightning", "pytorch_lightning"),
    "RichProgressBar": ("lightning", "pytorch_lightning"),
    "TQDMProgressBar": ("lightning", "pytorch_lightning"),
}
"""Callbacks that read a training and change nothing in it, each with the packages that it may come
from."""
_EXACT_LOADERS = {
    "DrawnBouquets": ("lightkit",),
    "DrawnFlowers": ("lightkit",),
    "DrawnMasks": ("lightkit",),
    "FashionMNIST": ("lightkit",),
    "Flowers": ("lightkit",),
    "ImageFolder": ("lightkit",),
    "ImageTable": ("lightkit",),
    "MaskFolder": ("lightkit",),
    "TableData": ("lightkit",),
    "TextData": ("lightkit",),
}
"""Data modules that give the same batches, whichever processes load them."""
_OF_LOADING = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory")
"""Arguments of data modules that change how fast batches come."""
_OF_SCORES = {
    "validate": ("limit_val_batches", "overfit_batches", "precision", "fast_dev_run"),
    "test": ("limit_test_batches", "precision", "fast_dev_run"),
}
"""Arguments of the trainer that can change a score, by stage."""
_OUTSIDE_BEFORE = (
    *("run", "gate", "ckpt_path"),
    *("watchdog.factor", "watchdog.floor_s", "launch.timeout_s", "launch.stall_timeout_s"),
)
"""List of lightkit until November 2026, whose digests are in registries."""


def select_identity(values: Mapping[str, Any]) -> dict[str, Any]:
    """Select the values by dotted key that can change a weight or a metric."""
    return {key: value for key, value in values.items() if is_in_identity(key, values)}


def is_in_identity(key: str, values: Mapping[str, Any]) -> bool:
    """Check whether a dotted key can change a weight or a metric.

    Args:
        key: The key.
        values: All values by dotted key, among which are the classes that the key may belong to.
    """
    if _is_listed(key, _OUTSIDE):
        return False
    section, _, name = key.partition(".")
    if section == "callbacks":
        return not _is_of(_OBSERVERS, _find_class(("callbacks", name.partition(".")[0]), values))
    if section == "data" and name.removeprefix("init_args.") in _OF_LOADING:
        return not _is_of(_EXACT_LOADERS, _find_class(("data",), values))
    return True


def is_in_earlier_identity(key: str, _values: Mapping[str, Any]) -> bool:
    """Check whether earlier versions have digested a dotted key."""
    return not _is_listed(key, _OUTSIDE_BEFORE)


def can_change_score(path: KeyPath, stage: str) -> bool:
    """Check whether a value can change the score that a stage computes of a model that is trained.

    Args:
        path: Path of the value.
        stage: `validate` or `test`.
    """
    if path[0] == "trainer":
        return path[-1] in _OF_SCORES[stage]
    return path[0] == "model" or can_change_data(path)


def can_change_data(path: KeyPath) -> bool:
    """Check whether a value can change the samples that a data module has."""
    return path[0] == "data" and path[-1] not in ("batch_size", *_OF_LOADING)


def _is_listed(key: str, names: Collection[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)


def _find_class(place: tuple[str, ...], values: Mapping[str, Any]) -> str:
    """Return the path or the short name of the class at a place; empty if there is none."""
    dotted = ".".join(place)
    given = values.get(f"{dotted}.class_path") or values.get(dotted)
    # an entry is known by its name, also where a layer has removed it
    if given is None and len(place) == 2:
        given = NAMED_CLASSES[place[0]].get(place[1])
    return given if isinstance(given, str) else ""


def _is_of(classes: Mapping[str, Collection[str]], class_path: str) -> bool:
    """Check whether a class is one of some.

    Named by its path in one of their packages or by its name alone.
    """
    name = class_path.rpartition(".")[2]
    package = class_path.partition(".")[0]
    return name in classes and (package == name or package in classes[name])
