"""The option ``--deadline`` of a training: read once, by the process that somebody has started."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime

from lightkit.cli.context import RunContext
from lightkit.cli.joining import INHERITED, seat_of
from lightkit.runs.deadlines import parse_deadline
from lightkit.runs.retrain_state import RUN_FILE

__all__ = ["deadline_of", "with_moment"]

_OPTION = "--deadline"


def deadline_of(session: RunContext) -> datetime | None:
    """Give the moment by which a training has to be done; None where nobody has said one.

    Raises:
        ConfigError: If it cannot be read.
    """
    said = session.options.get("deadline")
    return None if said is None or session.command != "fit" else parse_deadline(str(said), is_resolved=True)


def with_moment(words: Sequence[str], environ: Mapping[str, str] = os.environ) -> list[str]:
    """Write the moment in the place of ``05:30`` or ``4h``: ranks that begin later must not count from then on.

    Args:
        words: The command line after `fit`.
        environ: Environment variables: they tell processes that others have started, to which a deadline may be over.

    Raises:
        ConfigError: If it cannot be read, or is over.
    """
    was_read = bool(environ.get(INHERITED) or environ.get(RUN_FILE)) or seat_of(environ) is not None
    said = list(words)
    for at, word in enumerate(said):
        if word.startswith(f"{_OPTION}="):
            said[at] = f"{_OPTION}={_moment(word.partition('=')[2], was_read)}"
        elif at and said[at - 1] == _OPTION:
            said[at] = _moment(word, was_read)
    return said


def _moment(said: str, was_read: bool) -> str:
    return parse_deadline(said, is_resolved=was_read).isoformat()
