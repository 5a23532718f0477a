"""The option ``--deadline`` of a fit, which only the first process of a launch resolves to a moment."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime

from lightkit.cli.context import RunContext
from lightkit.launch import INHERITED, join_launch
from lightkit.runs.deadline import parse_deadline
from lightkit.runs.retrain_state import RUN_FILE

__all__ = ["fix_deadline", "get_deadline"]

_OPTION = "--deadline"


def get_deadline(context: RunContext) -> datetime | None:
    """Return the moment by which a fit has to end; None where none is given.

    Raises:
        ConfigError: If it cannot be read.
    """
    given = context.options.get("deadline")
    return None if given is None or context.command != "fit" else parse_deadline(str(given), is_resolved=True)


def fix_deadline(words: Sequence[str], environ: Mapping[str, str] = os.environ) -> list[str]:
    """Replace ``05:30`` or ``4h`` by its moment, from which ranks that start later count, too.

    Args:
        words: The command line after `fit`.
        environ: Environment variables. Processes that another one started may find the deadline over.

    Raises:
        ConfigError: If it cannot be read, or is over.
    """
    is_resolved = bool(environ.get(INHERITED) or environ.get(RUN_FILE)) or join_launch(environ) is not None
    fixed = list(words)
    for at, word in enumerate(fixed):
        if word.startswith(f"{_OPTION}=") or (at and fixed[at - 1] == _OPTION):
            option, equals, given = word.rpartition("=")
            fixed[at] = f"{option}{equals}{parse_deadline(given, is_resolved=is_resolved).isoformat()}"
    return fixed
