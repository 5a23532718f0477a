"""The clock for durations."""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # on macOS the latter counts sleep as well


def elapsed_s() -> float:
    """Return the seconds since a fixed moment: no change of the clock moves them, and they count while it is suspended.

    `time.monotonic` stands still on Linux while the machine sleeps; the wall clock is set back and forth.
    """
    return time.clock_gettime(_CLOCK)
