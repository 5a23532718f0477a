"""Standard output that says in words when it cannot be written, as on a full disk.

Apart from `main`: only here can be told that an error of the system is about standard output, and about no other file.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from lightkit.errors import OutputLost

__all__ = ["discard_output", "guard_standard_output", "print_error"]


def guard_standard_output() -> None:
    """Let whatever is printed from now on raise `OutputLost` where it cannot be written."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # not where there is none, or somebody's own
        sys.stdout = _Told(sys.stdout)


def discard_output(stream: TextIO) -> None:
    """Let what a stream still holds, and all that is written to it later, go nowhere."""
    with suppress(OSError, ValueError):  # it is no file of the system
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def print_error(text: str) -> None:
    """Print a line to standard error, where that can be written; the exit code tells the rest."""
    try:
        print(text, file=sys.stderr)
    except OSError:
        discard_output(sys.stderr)


class _Told(io.TextIOWrapper):
    """What `sys.stdout` was, with words in the place of the system's errors.

    Args:
        stream: What it was. It stays `sys.__stdout__`, so that its file is not closed under this one.
    """

    def __init__(self, stream: io.TextIOWrapper) -> None:
        stream.flush()
        super().__init__(
            stream.buffer,
            stream.encoding,
            stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )

    def write(self, text: str, /) -> int:
        with _told():
            return super().write(text)

    def flush(self) -> None:
        with _told():
            super().flush()


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # the reader has left, which is no mishap
        raise
    except OSError as error:
        raise OutputLost(f"standard output cannot be written: {error.strerror}") from error
