"""Output of ranks: each writes to a file of its own, which the supervisor copies to the screen."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

__all__ = ["Follower", "redirect", "writer"]


def redirect(path: Path, *descriptors: int) -> None:
    """Let this process, its children and its native code write to the end of a file.

    Args:
        path: The file.
        descriptors: 1 for standard output, 2 for standard error.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for descriptor in descriptors:
        stream = {1: sys.stdout, 2: sys.stderr}[descriptor]
        if stream is not None:
            stream.flush()
        os.dup2(target, descriptor)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
    os.close(target)


class Follower:
    """Copies new text of a file, which may not exist yet, to a function; text that exists already is left out.

    Args:
        path: The file.
        write: Takes the text.
        prefix: Put before each line; only whole lines are copied then.
    """

    def __init__(self, path: Path, write: Callable[[bytes], None], *, prefix: bytes = b"") -> None:
        self._path = path
        self._offset = path.stat().st_size if path.is_file() else 0
        self._write = write
        self._prefix = prefix

    def follow(self, *, to_end: bool = False) -> None:
        """Copy new text.

        Args:
            to_end: The file is complete: copy a last line without its end, too.
        """
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return
        if self._prefix:
            text = text if to_end else text[: text.rfind(b"\n") + 1]
        self._offset += len(text)
        if text:
            lines = text.splitlines(keepends=True) if self._prefix else [text]
            self._write(b"".join(self._prefix + line for line in lines))


def writer(stream: BinaryIO) -> Callable[[bytes], None]:
    """Return a function that writes to a stream at once, and nothing more once its terminal has been closed."""

    def write(text: bytes) -> None:
        try:
            stream.write(text)
            stream.flush()
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

    return write
