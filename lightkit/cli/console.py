"""What appears on the screen: for a terminal, a pipe, a quiet one, or a program that reads events."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal, TextIO

from lightkit.cli.tracebacks import mask_tracebacks
from lightkit.errors import ConfigError

__all__ = ["OutputMode", "choose_output_mode", "configure_console", "print_line", "quiet_libraries"]

OutputMode = Literal["terminal", "plain", "quiet", "json"]

# Advice that Lightning 2.6.6 and its parts give to everybody, and that is settled here or of no use to the reader.
KNOWN_NOISE = (
    r".*isinstance\(treespec, LeafSpec\)",
    r"The '.*dataloader' does not have many workers",
    r"The number of training batches",
    r"No seed found, seed set to 0",
    r"Checkpoint directory .* exists and is not empty",
    r".*configure_optimizers` will be overridden by",
    r"Found \d+ module\(s\) in eval mode at the start of training",  # a frozen backbone is meant to be
    r"You're resuming from a checkpoint that ended before the epoch ended",  # said by lightkit where it is so
)


def choose_output_mode(options: Mapping[str, str | bool], stdout: TextIO) -> OutputMode:
    """Choose from the options and from what standard output is.

    Raises:
        ConfigError: If ``--output`` names a form that there is not.
    """
    form = options.get("output")
    if form not in (None, "json"):
        raise ConfigError(f"--output: expected json, got {form!r}")
    if form == "json":
        return "json"
    if options.get("quiet"):
        return "quiet"
    return "terminal" if stdout.isatty() else "plain"


def configure_console(mode: OutputMode, mask: Callable[[str], str] = str) -> None:
    """Send warnings and the log records of lightkit to standard error, one plain line each, and hide secrets there.

    Args:
        mode: What the screen shows.
        mask: Puts references in the place of secrets.
    """
    for message in KNOWN_NOISE:
        warnings.filterwarnings("ignore", message=message)
    warnings.showwarning = partial(_show_warning, mask)
    mask_tracebacks(mask)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Plain(mask))
    own = logging.getLogger("lightkit")
    own.handlers[:] = [handler]
    own.propagate = False
    own.setLevel(logging.INFO if mode in ("terminal", "plain") else logging.WARNING)


def quiet_libraries() -> None:
    """Keep libraries' records below warnings off the screen; after their import, which sets levels of its own."""
    for name in ("pytorch_lightning", "lightning_fabric", "lightning", "mlflow", "alembic", "comet_ml"):
        logging.getLogger(name).setLevel(logging.WARNING)


def print_line(text: str, mode: OutputMode) -> None:
    """Print a line for people to standard output, where people are reading."""
    if mode in ("terminal", "plain"):
        print(text, flush=True)


class _Plain(logging.Formatter):
    def __init__(self, mask: Callable[[str], str]) -> None:
        super().__init__()
        self._mask = mask

    def format(self, record: logging.LogRecord) -> str:
        text = self._mask(super().format(record))
        return text if record.levelno < logging.WARNING else f"{record.levelname.lower()}: {text}"


def _show_warning(
    mask: Callable[[str], str],
    message: Warning | str,
    category: type[Warning],
    filename: str,  # noqa: ARG001 (the signature is Python's)
    lineno: int,  # noqa: ARG001
    file: TextIO | None = None,
    line: str | None = None,  # noqa: ARG001
) -> None:
    if not issubclass(category, (DeprecationWarning, PendingDeprecationWarning, FutureWarning)):
        print(f"warning: {mask(' '.join(str(message).split()))}", file=file or sys.stderr)
