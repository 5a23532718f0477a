"""What checkpoints and trackers are told of the config: no secrets, no nulls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytorch_lightning.loggers import Logger

from lightkit.config import Resolved

__all__ = ["mask_hyperparameters", "masked", "without_nulls"]


def masked(resolved: Resolved, value: Any) -> Any:
    """Put references in the place of secrets, in the strings of plain containers."""
    if isinstance(value, str):
        return resolved.masked(value)
    if isinstance(value, Mapping):
        return {key: masked(resolved, child) for key, child in value.items()}
    if type(value) in (list, tuple):
        return type(value)(masked(resolved, child) for child in value)
    return value


def mask_hyperparameters(logger: Logger, resolved: Resolved) -> None:
    """Keep secrets out of the hyper-parameters that a logger gets, whoever gives them."""
    log_hyperparams = logger.log_hyperparams

    def log_masked(params: Any, *args: Any, **kwargs: Any) -> Any:
        return log_hyperparams(masked(resolved, params), *args, **kwargs)

    logger.log_hyperparams = log_masked  # type: ignore[method-assign]


def without_nulls(value: Any) -> Any:
    """Leave out what no one has set."""
    if isinstance(value, Mapping):
        return {key: without_nulls(child) for key, child in value.items() if child is not None}
    return value
