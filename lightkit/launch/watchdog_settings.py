"""The config's `watchdog` block: what counts as a stall, and what happens after a loss that is not finite."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal

from lightkit.config import Resolved, mistake, read_scalar
from lightkit.launch.heartbeat import Heartbeat

__all__ = ["WatchdogSettings", "read_watchdog"]

_FOR_NO_STEP = 4.0


@dataclass(frozen=True)
class WatchdogSettings:
    """When training that goes wrong by itself is ended.

    A step is a stall once nothing has been finished for longer than `factor` times the median of the last 50 steps of
    its kind (training, validation, test, prediction), and for longer than `floor_s` seconds. What nobody has timed has
    four times as long: the first two batches of a kind, the end of an epoch, a checkpoint; and longer as long as it
    reads or writes files. Downloads and the preparation of data before the first batch are not watched, nor is a
    debugger's prompt, and the time in which the whole process stood still does not count.

    Args:
        factor: Times the median step.
        floor_s: Seconds, however short the steps are; 0: nothing counts as a stall.
        on_nonfinite: After a loss that is NaN or infinite: `stop` ends the run and names its last good checkpoint;
            `skip` leaves the batch out.
    """

    factor: float = 20.0
    floor_s: float = 300.0
    on_nonfinite: Literal["stop", "skip"] = "stop"

    def limit_s(self, heartbeat: Heartbeat) -> float:
        """Give the seconds that what is under way may take; infinite where nothing counts as a stall."""
        if not self.floor_s:
            return math.inf
        step_s = heartbeat.step_s
        if step_s is not None:
            return max(self.factor * step_s, self.floor_s)
        return _FOR_NO_STEP * max(self.factor * heartbeat.longest_step_s, self.floor_s)


_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "factor": (lambda value: 0 < value < math.inf, "a number above 0"),
    "floor_s": (lambda value: 0 <= value < math.inf, "seconds, or 0 to end nothing"),
}


def read_watchdog(resolved: Resolved) -> WatchdogSettings:
    """Give the `watchdog` block of a config, whose keys and types are judged with all others.

    Raises:
        ConfigError: If a number in it is out of its range.
    """
    said = resolved.values.get("watchdog")
    said = said if isinstance(said, dict) else {}
    given = {key: read_scalar(value) if isinstance(value, str) else value for key, value in said.items()}
    for key, (holds, expects) in _RANGES.items():
        value = given.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and not holds(value):
            raise mistake(f"watchdog.{key}: expected {expects}, got {value!r}", resolved.origin_of(("watchdog", key)))
    known = [field.name for field in fields(WatchdogSettings)]
    return WatchdogSettings(**{key: value for key, value in given.items() if key in known})
