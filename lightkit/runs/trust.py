"""Whether a file of weights may bring code along: only within `trusting`, which ``--trust`` alone enters.

It is no key of a config and no variable: whoever can write those could otherwise let a file run code.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["allowance", "classes_named", "is_first_trusted", "is_trusting", "refusal", "trusting"]

_told: list[set[str]] = []
_NAMED = re.compile(r"(?:GLOBAL|global:?|class|function|REDUCE|NEWOBJ|BUILD for)\s+`?([A-Za-z_][\w.]*\.[\w.]*\w)")
_MOST_SHOWN = 5


@contextmanager
def trusting() -> Iterator[None]:
    """Let files bring code along for as long as the block lasts."""
    _told.append(set())
    try:
        yield
    finally:
        _told.pop()


def is_trusting() -> bool:
    """Tell whether files may bring code along."""
    return bool(_told)


def is_first_trusted(path: Path | str) -> bool:
    """Tell whether a file is allowed more than tensors for the first time, so that it is told once."""
    if not _told or str(path) in _told[-1]:
        return False
    _told[-1].add(str(path))
    return True


def classes_named(message: str) -> list[str]:
    """Find the classes and functions that torch names where it refuses a file."""
    return list(dict.fromkeys(_NAMED.findall(message)))


def refusal(path: Path | str, names: Collection[str]) -> str:
    """Say that a file is not loaded, and why.

    Args:
        path: The file.
        names: Classes and functions that loading it would call; none where they are not known.
    """
    return (
        f"{path} holds {_listed(names)} beside tensors and plain values. Loading that can run code, so nothing of it "
        f"was loaded. If you know who made the file, --trust on the command line allows it."
    )


def allowance(path: Path | str, names: Collection[str]) -> str:
    """Say what ``--trust`` has allowed, for a warning."""
    return f"--trust: {path} holds {_listed(names)} beside tensors and plain values; loading it may run code"


def _listed(names: Collection[str]) -> str:
    shown = sorted(names)[:_MOST_SHOWN]
    more = len(names) - len(shown)
    return (", ".join(shown) + (f" and {more} more" if more else "")) or "objects"
