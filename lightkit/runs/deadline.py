"""Deadlines and durations of the command line: ``05:30``, ``4h``, ``2026-11-23T05:30``."""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta, timezone

from lightkit.errors import ConfigError

_EXPECTED = (
    "expected a time of day such as 05:30, a duration such as 4h, 90m or 1h30m, or a date with a time such as "
    "2026-11-23T05:30"
)
_UNITS_S = (86400.0, 3600.0, 60.0, 1.0)
_LONGEST_S = 366 * 86400.0


def parse_deadline(text: str, *, now: datetime | None = None, is_resolved: bool = False) -> datetime:
    """Parse a deadline and return it in UTC, so that no change of the local clock moves it.

    Args:
        text: ``05:30`` or ``05:30:00``: the next such time on this machine's clock; ``4h``, ``90m``, ``1h30m``,
            ``3600s``, ``1d``: from now on; or an ISO 8601 date with a time, on this machine's clock if it names no
            other zone.
        now: Current time, with its zone; that of the clock if None.
        is_resolved: Whether another process has parsed it before, so that it may lie in the past by now.

    Raises:
        ConfigError: If it is none of these, or is over.
    """
    now = datetime.now(timezone.utc) if now is None else now
    stripped = text.strip()
    if found := re.fullmatch(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?", stripped):
        hour, minute, second = (int(part or 0) for part in found.groups())
        time_of_day = time(hour, minute, second)
        today = now.astimezone().date()
        days = (datetime.combine(today + timedelta(days=days), time_of_day) for days in (0, 1))
        # `astimezone` errs for a time that clocks skip; `timestamp` does not.
        moments = (datetime.fromtimestamp(day.timestamp(), timezone.utc) for day in days)
        return next(moment for moment in moments if moment > now)
    if (seconds := parse_duration(stripped)) is not None:
        if not 0 < seconds <= _LONGEST_S:
            raise ConfigError(f"--deadline: expected a duration of more than nothing and at most a year, got {text!r}")
        return now.astimezone(timezone.utc) + timedelta(seconds=seconds)
    has_time = re.match(r"\d{4}-\d{2}-\d{2}[T ]\d", stripped)
    try:  # Python 3.10 knows no Z
        moment = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", stripped) if has_time else "no date with a time")
    except ValueError:
        raise ConfigError(f"--deadline: {_EXPECTED}, got {text!r}") from None
    moment = moment.astimezone(timezone.utc)
    if moment <= now and not is_resolved:
        ago = format_duration((now - moment).total_seconds())
        raise ConfigError(f"--deadline: {text!r} is over since {ago}; {_EXPECTED}")
    return moment


def parse_duration(text: str) -> float | None:
    """Parse a duration such as ``1h30m`` to seconds; None if it is none."""
    units = "".join(rf"(?:(\d+(?:\.\d+)?){unit})?" for unit in "dhms")
    found = re.fullmatch(units, text.strip().lower())
    if found is None or not any(found.groups()):
        return None
    return sum(float(number or 0) * unit for number, unit in zip(found.groups(), _UNITS_S, strict=True))


def format_duration(seconds: float) -> str:
    """Format a duration as ``40 s``, ``12 min`` or ``3 h 05 min``."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    if round(seconds) < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02} min"
