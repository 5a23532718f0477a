"""When a command has to be done: a time of day, a date or a duration, as one moment that no clock change moves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

from lightkit.errors import ConfigError

__all__ = ["duration_s", "parse_deadline", "shown_duration"]

_EXPECTED = (
    "a time of day such as 05:30, a duration such as 4h, 90m or 1h30m, or a date with a time such as 2026-11-23T05:30"
)
_TIME_OF_DAY = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")
_UNITS_S = (86400.0, 3600.0, 60.0, 1.0)
_MORE = f"expected {_EXPECTED}"
_LONGEST_S = 366 * 86400.0


def parse_deadline(said: str, *, now: datetime | None = None, is_resolved: bool = False) -> datetime:
    """Give the moment, in UTC, that somebody means.

    Args:
        said: ``05:30`` or ``05:30:00``: the next such time on this machine's clock; ``4h``, ``90m``, ``1h30m``,
            ``3600s``, ``1d``: from now on; or an ISO 8601 date with a time, on this machine's clock where it names no
            other zone.
        now: The present, with its zone; that of the clock if None.
        is_resolved: Whether another process has read it before, so that it may lie in the past by now.

    Raises:
        ConfigError: If it is none of these, or is over.
    """
    now = datetime.now(timezone.utc) if now is None else now
    text = said.strip()
    if found := _TIME_OF_DAY.fullmatch(text):
        return _next_time_of_day(text, [int(part or 0) for part in found.groups()], now)
    if (seconds := duration_s(text)) is not None:
        if not 0 < seconds <= _LONGEST_S:
            raise ConfigError(f"--deadline: {said!r} is {'no time at all' if not seconds else 'over a year'}; {_MORE}")
        return now.astimezone(timezone.utc) + timedelta(seconds=seconds)
    moment = _date(text)
    if moment is None:
        raise ConfigError(f"--deadline: expected {_EXPECTED}, got {said!r}")
    if moment <= now and not is_resolved:
        ago = shown_duration((now - moment).total_seconds())
        raise ConfigError(f"--deadline: {said!r} is over since {ago}; {_MORE}")
    return moment


def duration_s(text: str) -> float | None:
    """Give the seconds of a duration such as ``1h30m``; None where it is none."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or not any(found.groups()):
        return None
    return sum(float(number or 0) * unit for number, unit in zip(found.groups(), _UNITS_S, strict=True))


def shown_duration(seconds: float) -> str:
    """Write a duration as people say it: ``40 s``, ``12 min``, ``3 h 05 min``."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    if round(seconds) < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02} min"


def _next_time_of_day(said: str, parts: list[int], now: datetime) -> datetime:
    hour, minute, second = parts
    if hour > 23 or minute > 59 or second > 59:
        raise ConfigError(f"--deadline: there is no time of day {said!r}; {_MORE}")
    return next(moment for moment in _occurrences(hour, minute, second, now) if moment > now)


def _occurrences(hour: int, minute: int, second: int, now: datetime) -> Iterator[datetime]:
    """Give when it is that time today, once more where clocks are set back over it, and on the next days."""
    today = now.astimezone().date()
    for days in range(3):
        day = today + timedelta(days=days)
        for fold in (0, 1):
            wall = datetime(day.year, day.month, day.day, hour, minute, second, fold=fold)
            yield datetime.fromtimestamp(wall.timestamp(), timezone.utc)  # astimezone errs where clocks skip it


def _date(text: str) -> datetime | None:
    if not re.match(r"\d{4}-\d{2}-\d{2}[T ]\d", text):  # a date without a time is no deadline
        return None
    try:
        moment = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text))  # Python 3.10 knows no Z
    except ValueError:
        return None
    return moment.astimezone(timezone.utc)
