"""What this process is doing, so that a hang can be told from waiting for another rank that hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Heartbeat", "heartbeat", "waiting"]


class Heartbeat:
    """Progress of this process: when it last did something, and for which collective it waits."""

    def __init__(self) -> None:
        self.progress_at_s = time.monotonic()
        self.num_beats = 0
        self.waits_for: str | None = None
        self._lock = threading.Lock()

    def beat(self) -> None:
        """Say that something was finished: a batch, a validation, a checkpoint."""
        with self._lock:
            self.progress_at_s = time.monotonic()
            self.num_beats += 1

    @property
    def silent_s(self) -> float:
        """Seconds since the last progress."""
        return time.monotonic() - self.progress_at_s


_HEARTBEAT = Heartbeat()


def heartbeat() -> Heartbeat:
    """Give the heartbeat of this process."""
    return _HEARTBEAT


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Say that this process waits for all other ranks: whoever hangs then is not this one.

    Args:
        what: Collective that it waits in, such as ``all-reduce of the gradients``.
    """
    before, _HEARTBEAT.waits_for = _HEARTBEAT.waits_for, what
    try:
        yield
    finally:
        _HEARTBEAT.waits_for = before
