"""The metrics that callbacks and schedulers go by."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from pytorch_lightning import Callback, Trainer
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint

from lightkit.config import KeyPath, Resolved, dotted, mistake, near
from lightkit.errors import ConfigError

__all__ = ["Monitored", "take_monitors", "unlogged"]

_BOTH = ("init_args", "monitor")


@dataclass(frozen=True)
class Monitored:
    """A metric that something goes by.

    Args:
        path: The key that names it.
        who: What goes by it.
        metric: Its name.
        is_needed: Whether its lack ends the training.
    """

    path: KeyPath
    who: str
    metric: str
    is_needed: bool = True


def take_monitors(trainer: Trainer, paths: Mapping[int, KeyPath], resolved: Resolved) -> list[Monitored]:
    """List all metrics that the trainer's parts go by, and let the parts do without, so that none ends the batch.

    Args:
        trainer: Once its optimizers are made.
        paths: What of the config made each callback, by its `id`.
        resolved: The config.
    """
    found = [taken for callback in trainer.callbacks for taken in _of_callback(callback, paths)]  # type: ignore[attr-defined]
    for config in trainer.lr_scheduler_configs:
        if config.reduce_on_plateau and config.monitor is not None:
            by_key = isinstance(resolved.values.get("lr_scheduler"), dict)
            path = ("lr_scheduler", *_BOTH) if by_key else ("model",)
            found.append(Monitored(path, type(config.scheduler).__name__, config.monitor, is_needed=config.strict))
            config.strict = False
    _hush_consequences()
    return found


def _of_callback(callback: Callback, paths: Mapping[int, KeyPath]) -> Iterable[Monitored]:
    path = (*paths[id(callback)], *_BOTH) if id(callback) in paths else ("model",)
    who = type(callback).__name__
    if isinstance(callback, EarlyStopping) and callback.monitor is not None:
        yield Monitored(path, who, callback.monitor, is_needed=callback.strict)
        callback.strict = False
    elif isinstance(callback, ModelCheckpoint) and callback.monitor is not None:
        yield Monitored(path, who, callback.monitor)
        callback.monitor = None


def _hush_consequences() -> None:
    for who in ("Early stopping", "ReduceLROnPlateau"):
        warnings.filterwarnings("ignore", message=f"{who} conditioned on metric")


def unlogged(monitored: Iterable[Monitored], logged: Collection[str], resolved: Resolved) -> list[ConfigError]:
    """Tell of each metric that is needed and was never logged."""
    return [
        mistake(f"{_subject(item)} is never logged{_hint(item.metric, logged)}",
                resolved.origin_of(item.path))
        for item in monitored
        if item.is_needed and item.metric not in logged
    ]  # fmt: skip


def _subject(item: Monitored) -> str:
    by = "" if item.path[-1] == "monitor" else f"{item.who}, which its code makes, monitors "
    return f"{dotted(item.path)}: {by}{item.metric!r}{', which' if by else ''}"


def _hint(metric: str, logged: Collection[str]) -> str:
    meant = near(metric, logged)
    return f"{meant}{' ' if meant else '; '}logged are: {', '.join(sorted(logged)) or 'no metrics'}"
