"""What the benches find, on standard output; nothing else of them is written there."""

from __future__ import annotations

import os
import sys

__all__ = ["shown"]

_PIPE_CLOSED = 128 + 13  # as shells tell the end by SIGPIPE
_LOST = 74  # as of lightkit


def shown(text: str) -> int:
    """Print what was found and return the exit code.

    Returns:
        0; 141 where the reader has left, as ``| head -1`` does; 74 where standard output cannot be written, which is
        told on standard error.
    """
    try:
        print(text, flush=True)
    except BrokenPipeError:
        code = _PIPE_CLOSED
    except OSError as error:
        print(f"error: standard output cannot be written: {error.strerror}", file=sys.stderr)
        code = _LOST
    else:
        return 0
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python would write the rest at its end
    return code
