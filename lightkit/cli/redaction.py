"""Redact secrets, and drop nulls of the config, for records, checkpoints and trackers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from lightkit.config import Resolved
from lightkit.config.secrets import HIDDEN, is_secret, mask_line

if TYPE_CHECKING:
    from pytorch_lightning.loggers import Logger


def redact_command_line(resolved: Resolved, args: Iterable[str]) -> list[str]:
    """Return the arguments of a command line without secrets.

    Also without those too short to be masked in other texts.
    """
    shown: list[str] = []
    for word in args:
        is_value = bool(shown) and shown[-1].startswith("--") and "=" not in shown[-1]
        hidden = (
            HIDDEN
            if is_value and is_secret(shown[-1].rpartition(".")[2], word)
            else mask_line(word)
        )
        shown.append(resolved.masked(hidden))
    return shown


def redact_hyperparameters(logger: Logger, resolved: Resolved) -> None:
    """Keep secrets out of the hyper-parameters that a logger gets from any code."""
    log_hyperparams = logger.log_hyperparams

    def log_masked(params: Any, *args: Any, **kwargs: Any) -> Any:
        return log_hyperparams(resolved.masked(params), *args, **kwargs)

    logger.log_hyperparams = log_masked  # type: ignore[method-assign]


def redact_tags(loggers: Any, resolved: Resolved) -> None:
    """Keep secrets out of the tags that loggers are configured with.

    Trackers show these next to the run.
    """
    for entry in loggers if isinstance(loggers, list) else [loggers]:
        arguments = getattr(entry, "init_args", None)
        if arguments is not None and arguments.get("tags"):
            arguments["tags"] = resolved.masked(arguments["tags"])


def drop_nulls(value: Any) -> Any:
    """Leave out what no one has set."""
    if isinstance(value, Mapping):
        return {key: drop_nulls(child) for key, child in value.items() if child is not None}
    return value
