"""What this process is doing, so that a hang can be told from slow work, and from waiting for a rank that hangs."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Heartbeat", "heartbeat", "waiting"]

_KEPT_STEPS = 50  # of each phase: enough for a median, and soon those of today's speed only


class Heartbeat:
    """Progress of this process: when it last finished something, in which phase, and for which collective it waits.

    A phase (train, validate, ...) has steps, each of which is timed; what comes before its first and between two
    phases is no step, and nobody knows how long it takes.
    """

    def __init__(self) -> None:
        self.progress_at_s = time.monotonic()
        self.phase = "start"
        self.waits_for: str | None = None
        self._in_step = False
        self._before = "start"
        self._steps: dict[str, deque[float]] = {}

    def beat(self) -> None:
        """Say that the process lives."""
        self.progress_at_s = time.monotonic()

    def enter(self, phase: str) -> None:
        """Say that something begins which is no step, such as the wait for the first batch of a phase."""
        if self.phase != phase:
            self._before = self.phase
        self.phase, self._in_step = phase, False
        self.beat()

    def leave(self) -> None:
        """Say that it is done, and that the phase before goes on."""
        self.phase, self._in_step = self._before, False
        self.beat()

    def step(self, phase: str) -> None:
        """Say that a step of a phase is done; the next one begins."""
        now = time.monotonic()
        if self._in_step and phase == self.phase:
            self._steps.setdefault(phase, deque(maxlen=_KEPT_STEPS)).append(now - self.progress_at_s)
        self.phase, self._in_step, self.progress_at_s = phase, True, now

    def postpone(self, seconds: float) -> None:
        """Leave out a time in which the whole process stood still, as while its machine slept."""
        self.progress_at_s = min(self.progress_at_s + seconds, time.monotonic())

    @property
    def silent_s(self) -> float:
        """Seconds since the last progress."""
        return time.monotonic() - self.progress_at_s

    @property
    def step_s(self) -> float | None:
        """Median seconds of the phase's newest steps while one is under way; None where none is, or none was timed."""
        kept = tuple(self._steps.get(self.phase, ()))
        return statistics.median(kept) if self._in_step and kept else None

    @property
    def longest_step_s(self) -> float:
        """The longest of all phases' medians, in seconds; 0 before any step."""
        return max((statistics.median(tuple(kept)) for kept in tuple(self._steps.values())), default=0.0)


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
