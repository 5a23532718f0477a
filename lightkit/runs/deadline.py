"""Deadlines and durations of the command line: ``05:30``, ``4h``, ``2026-11-23T05:30``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta

from lightkit.errors import ConfigError
from lightkit.runs.clock import elapsed_s, name_clock

DEADLINE = "_LIGHTKIT_DEADLINE"
"""Environment variable with a deadline that is a duration from a process's start, for those that
the process starts."""

_EXPECTED = (
    "expected a time of day such as 05:30, a duration such as 4h, 90m or 1h30m, or a date with a"
    " time such as 2026-11-23T05:30"
)
_UNITS_S = (86400.0, 3600.0, 60.0, 1.0)
_LONGEST_S = 366 * 86400.0


@dataclass(frozen=True)
class Deadline:
    """Moment by which a command has to be done.

    Args:
        moment: In UTC, as the clock is set; for people, and where it is a time of day or a date.
        ends_s: The same on the clock of `elapsed_s`, which nobody sets, where it is a duration from
            the start; else None.
    """

    moment: datetime
    ends_s: float | None = None

    @property
    def left_s(self) -> float:
        """Seconds until then; negative once it is over."""
        if self.ends_s is not None:
            return self.ends_s - elapsed_s()
        return (self.moment - datetime.now(UTC)).total_seconds()

    @property
    def is_duration(self) -> bool:
        """Return whether it counts from the start.

        So the same command has as much time again, and no more.
        """
        return self.ends_s is not None

    @property
    def shown(self) -> str:
        """The moment on the local clock."""
        return f"{self.moment.astimezone():%Y-%m-%d %H:%M:%S}"

    @property
    def word(self) -> str:
        """Value of ``--deadline`` for another process, which also needs `environment`."""
        return self.moment.isoformat()

    def environment(self) -> Mapping[str, str]:
        """Return the variables by which another process on this machine takes this deadline."""
        return (
            {} if self.ends_s is None else {DEADLINE: f"{self.word} {self.ends_s} {name_clock()}"}
        )

    def before(self, seconds: float) -> Deadline:
        """Return the deadline that is so much earlier."""
        ends_s = None if self.ends_s is None else self.ends_s - seconds
        return Deadline(self.moment - timedelta(seconds=seconds), ends_s)


def parse_deadline(
    text: str, *, now: datetime | None = None, is_resolved: bool = False
) -> Deadline:
    """Parse a deadline.

    A duration counts by a clock that nobody sets, a time of day or a date by the wall clock.

    Args:
        text: ``05:30`` or ``05:30:00``: the next such time on this machine's clock; ``4h``,
            ``90m``, ``1h30m``, ``3600s``, ``1d``: from now on; or an ISO 8601 date with a time, on
            this machine's clock if it names no other zone.
        now: Current time, with its zone; that of the clock if None.
        is_resolved: Whether another process has parsed it before, so that it may lie in the past by
            now.

    Raises:
        ConfigError: If it is none of these, or is over.
    """
    now = datetime.now(UTC) if now is None else now
    stripped = text.strip()
    if found := re.fullmatch(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?", stripped):
        hour, minute, second = (int(part or 0) for part in found.groups())
        return Deadline(_find_next(time(hour, minute, second), now))
    if (seconds := parse_duration(stripped)) is not None:
        if not 0 < seconds <= _LONGEST_S:
            raise ConfigError(
                "--deadline: expected a duration of more than nothing"
                f" and at most a year, got {text!r}"
            )
        return Deadline(now.astimezone(UTC) + timedelta(seconds=seconds), elapsed_s() + seconds)
    has_time = re.match(r"\d{4}-\d{2}-\d{2}[T ]\d", stripped)
    try:
        moment = datetime.fromisoformat(stripped.upper() if has_time else "no date with a time")
    except ValueError:
        raise ConfigError(f"--deadline: {_EXPECTED}, got {text!r}") from None
    moment = moment.astimezone(UTC)
    if moment <= now and not is_resolved:
        ago = format_duration((now - moment).total_seconds())
        raise ConfigError(f"--deadline: {text!r} is over since {ago}; {_EXPECTED}")
    return Deadline(moment, _read_end(stripped) if is_resolved else None)


def _find_next(time_of_day: time, now: datetime) -> datetime:
    """Return the next moment at which the clock of this machine shows a time, in UTC."""
    today = now.astimezone().date()
    days = (datetime.combine(today + timedelta(days=days), time_of_day) for days in (0, 1))
    # `astimezone` errs for a time that clocks skip; `timestamp` does not.
    moments = (datetime.fromtimestamp(day.timestamp(), UTC) for day in days)
    return next(moment for moment in moments if moment > now)


def _read_end(word: str) -> float | None:
    """Return the end of a deadline that another process has passed on.

    On the clock of `elapsed_s`, by a process of this machine.
    """
    passed_on = os.environ.get(DEADLINE, "").split(maxsplit=2)
    if len(passed_on) < 3 or (passed_on[0], passed_on[2]) != (word, name_clock()):
        return None
    return float(passed_on[1])


def parse_duration(text: str) -> float | None:
    """Parse a duration such as ``1h30m`` to seconds; None if it is none."""
    units = "".join(rf"(?:(\d+(?:\.\d+)?){unit})?" for unit in "dhms")
    found = re.fullmatch(units, text.strip().lower())
    if found is None or not any(found.groups()):
        return None
    return sum(
        float(number or 0) * unit for number, unit in zip(found.groups(), _UNITS_S, strict=True)
    )


def format_duration(seconds: float) -> str:
    """Format a duration as ``40 s``, ``12 min`` or ``3 h 05 min``."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    if round(seconds) < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02} min"
