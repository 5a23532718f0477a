"""The clock for durations."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from pathlib import Path

# on macOS the latter counts sleep as well
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def elapsed_s() -> float:
    """Return the seconds since a fixed moment.

    No change of the clock moves them, and they count while it is suspended.

    `time.monotonic` stands still on Linux while the machine sleeps; the wall clock is set back and
    forth.
    """
    return time.clock_gettime(_CLOCK)


def name_clock() -> str:
    """Name the host and its boot, within which `elapsed_s` means the same in all processes."""
    boot = ""
    with suppress(OSError):  # macOS has no such file
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    return f"{socket.gethostname()}/{boot}"
