"""Files that a file server grants to one process only, also one that knows no `flock`."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightkit.errors import ConfigError, LightkitError
from lightkit.runs.holders import read_holder

__all__ = ["appears", "lines_of", "unwritten", "write_new", "write_whole"]

_NO_HARD_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV)


def appears(aside: Path, path: Path, token: str) -> bool:
    """Let a file appear as a whole; tell whether this process is the one that the server let do it.

    Args:
        aside: The whole file, under a name of its own.
        path: Where it is to appear.
        token: Word in it by which the process knows its own file.
    """
    try:
        os.link(aside, path)
    except FileExistsError:  # a network file system may have done it and lost the answer
        there = read_holder(path)
        return there is not None and there.token == token
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        return write_new(path, json.loads(aside.read_bytes()))
    return True


def write_new(path: Path, content: dict[str, Any]) -> bool:
    """Write a JSON file that is not there; tell whether this process is the one that made it."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        return False
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            write_whole(file.fileno(), lines_of(content))
    except OSError:  # a full disk: a half would be believed until it is stale
        path.unlink(missing_ok=True)
        raise
    return True


def write_whole(descriptor: int, content: bytes) -> None:
    """Write over the beginning of a file.

    Raises:
        OSError: If not all of it could be written.
    """
    if os.pwrite(descriptor, content, 0) < len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def lines_of(content: Mapping[str, Any], *, least: int = 0) -> bytes:
    """Give the bytes of a JSON file, as many when little is added, so that one write in its place replaces it.

    Args:
        content: What it says.
        least: Bytes to fill at least: those of the file that is replaced.
    """
    text = json.dumps(content, indent=2, ensure_ascii=False).encode()
    return (text + b" " * (-len(text) % 1024 - 1)).ljust(least - 1) + b"\n"


def unwritten(path: Path, error: OSError) -> LightkitError:
    """Give the words for a lock that could not be written."""
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return LightkitError(
            f"Cannot write the lock {path}: {reason}. Free space, or set run.root to a folder on another disk; then "
            "run the same command again."
        )
    return ConfigError(
        f"run.root: cannot write the lock {path}: {reason}. Set run.root to a folder that can be written."
    )
