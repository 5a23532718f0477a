"""Redact secrets, and drop nulls of the config, for records, checkpoints and trackers."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from lightkit.config import Resolved
from lightkit.config.secrets import HIDDEN, is_secret_value, mask_line

if TYPE_CHECKING:
    from pytorch_lightning.loggers import Logger


def redact(resolved: Resolved, value: Any) -> Any:
    """Put references in the place of secrets, in the strings of plain containers; a key may tell that they are."""
    if isinstance(value, str):
        return resolved.masked(value)
    if isinstance(value, Namespace):
        return type(value)(**redact(resolved, vars(value)))
    if isinstance(value, Mapping):
        pairs = ((key, redact(resolved, child)) for key, child in value.items())
        return {key: HIDDEN if is_secret_value(key, child) else child for key, child in pairs}
    if type(value) in (list, tuple):
        return type(value)(redact(resolved, child) for child in value)
    return value


def redact_command_line(resolved: Resolved, args: Iterable[str]) -> list[str]:
    """Return the arguments of a command line without secrets, also those too short to be masked in other texts."""
    shown: list[str] = []
    for word in args:
        is_value = bool(shown) and shown[-1].startswith("--") and "=" not in shown[-1]
        hidden = HIDDEN if is_value and is_secret_value(shown[-1].rpartition(".")[2], word) else mask_line(word)
        shown.append(resolved.masked(hidden))
    return shown


def redact_hyperparameters(logger: Logger, resolved: Resolved) -> None:
    """Keep secrets out of the hyper-parameters that a logger gets from any code."""
    log_hyperparams = logger.log_hyperparams

    def log_masked(params: Any, *args: Any, **kwargs: Any) -> Any:
        return log_hyperparams(redact(resolved, params), *args, **kwargs)

    logger.log_hyperparams = log_masked  # type: ignore[method-assign]


def redact_tags(loggers: Any, resolved: Resolved) -> None:
    """Keep secrets out of the tags that loggers are configured with, which trackers show next to the run."""
    for entry in loggers if isinstance(loggers, list) else [loggers]:
        arguments = getattr(entry, "init_args", None)
        if arguments is not None and arguments.get("tags"):
            arguments["tags"] = redact(resolved, arguments["tags"])


def drop_nulls(value: Any) -> Any:
    """Leave out what no one has set."""
    if isinstance(value, Mapping):
        return {key: drop_nulls(child) for key, child in value.items() if child is not None}
    return value
