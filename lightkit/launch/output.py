"""What ranks write: each to a file of its own, which the screen follows."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

__all__ = ["Follower", "prefixed", "redirect", "writer"]


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
    """Hands on what is appended to a file.

    Args:
        path: The file; it may not be there yet.
        write: Takes what is new.
        by_line: Hand on whole lines only.
        skip: Leave out what is there already.
    """

    def __init__(
        self, path: Path, write: Callable[[bytes], None], *, by_line: bool = False, skip: bool = False
    ) -> None:
        self._path = path
        self._at = path.stat().st_size if skip and path.is_file() else 0
        self._write = write
        self._by_line = by_line
        self._file: BinaryIO | None = None
        self._rest = b""

    def follow(self, *, to_end: bool = False) -> None:
        """Hand on what is new.

        Args:
            to_end: The file is complete: hand on a last line without its end, too, and close the file.
        """
        if self._file is None:
            try:
                self._file = self._path.open("rb")
                self._file.seek(self._at)
            except FileNotFoundError:
                return
        text = self._rest + self._file.read()
        end = text.rfind(b"\n") + 1 if self._by_line and not to_end else len(text)
        self._rest = text[end:]
        if text[:end]:
            self._write(text[:end])
        if to_end:
            self._file.close()
            self._file = None


def writer(stream: BinaryIO) -> Callable[[bytes], None]:
    """Give a function that writes to a stream at once; nothing more once its terminal has been closed."""

    def write(text: bytes) -> None:
        try:
            stream.write(text)
            stream.flush()
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

    return write


def prefixed(write: Callable[[bytes], None], prefix: bytes) -> Callable[[bytes], None]:
    """Give a function that writes with something before each line."""

    def write_prefixed(text: bytes) -> None:
        write(b"".join(prefix + line for line in text.splitlines(keepends=True)))

    return write_prefixed
