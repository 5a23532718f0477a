"""What people say after --deadline."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo

import pytest

from lightkit.errors import ConfigError
from lightkit.runs import deadline
from lightkit.runs.deadline import Deadline, format_duration, parse_deadline, parse_duration

NIGHT = datetime(2026, 11, 22, 23, 0, tzinfo=UTC)


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose clock is Berlin's, one hour before UTC in winter and two in summer."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("4h", 14400),
        ("90m", 5400),
        ("1h30m", 5400),
        ("3600s", 3600),
        ("1.5h", 5400),
        ("1d2h", 93600),
        ("4H", 14400),
    ],
    ids=str,
)
def test_a_duration_counts_from_now(said: str, seconds: int) -> None:
    assert parse_deadline(said, now=NIGHT).moment == NIGHT + timedelta(seconds=seconds)
    assert parse_duration(said) == seconds


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize(
    ("said", "now", "expected"),
    [
        ("05:30", "2026-11-23T02:00+01:00", "2026-11-23T04:30Z"),
        ("05:30", "2026-11-22T22:00+01:00", "2026-11-23T04:30Z"),
        ("5:30:15", "2026-11-22T05:30:15+01:00", "2026-11-23T04:30:15Z"),
        ("05:30", "2026-03-28T22:00+01:00", "2026-03-29T03:30Z"),
        ("02:30", "2026-03-28T22:00+01:00", "2026-03-29T01:30Z"),
        ("02:30", "2026-10-24T22:00+02:00", "2026-10-25T00:30Z"),
        ("02:30", "2026-10-25T02:45+01:00", "2026-10-26T01:30Z"),
        ("2026-11-23T05:30", "2026-11-22T22:00+01:00", "2026-11-23T04:30Z"),
        ("2026-11-23 05:30", "2026-11-22T22:00+01:00", "2026-11-23T04:30Z"),
        ("2026-11-23T05:30Z", "2026-11-22T22:00+01:00", "2026-11-23T05:30Z"),
        ("2026-11-23T05:30:00-05:00", "2026-11-22T22:00+01:00", "2026-11-23T10:30Z"),
    ],
    ids=[
        "later today", "tomorrow", "not this very moment", "clocks go forward before it",
        "clocks go forward over it",
        "clocks go back over it", "after its second time",
        "a date", "a date with a space", "a date in UTC", "a date elsewhere",
    ],
)  # fmt: skip
def test_a_time_of_day_is_the_next_on_the_local_clock(said: str, now: str, expected: str) -> None:
    present = datetime.fromisoformat(now).astimezone(UTC)
    assert parse_deadline(said, now=present) == Deadline(datetime.fromisoformat(expected))


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ("tomorrow", "expected a time of day such as 05:30, a duration such as 4h"),
        ("", "expected a time of day"),
        ("25:00", "got '25:00'"),
        ("05:61", "got '05:61'"),
        ("0s", "expected a duration of more than nothing and at most a year, got '0s'"),
        ("9999h", "at most a year, got '9999h'"),
        ("3600", "got '3600'"),
        ("-4h", "got '-4h'"),
        ("2026-11-23", "got '2026-11-23'"),
        ("2026-13-45T05:30", "got '2026-13-45T05:30'"),
        ("2026-11-22T20:00+00:00", "is over since 3 h 00 min"),
    ],
)
def test_what_is_no_deadline_is_reported(said: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("+", r"\+")) as caught:
        parse_deadline(said, now=NIGHT)
    assert "--deadline" in str(caught.value)


def test_a_deadline_that_was_read_before_may_be_over_by_now() -> None:
    earlier = NIGHT - timedelta(hours=1)
    assert parse_deadline(earlier.isoformat(), now=NIGHT, is_resolved=True) == Deadline(earlier)


class Clocks:
    """The two clocks of a machine.

    Args:
        patch: Puts them in the place of the real ones.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.elapsed_s, self.wall = 5000.0, NIGHT
        clocks = self

        class Wall(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
                return clocks.wall.astimezone(tz)

        patch.setattr(deadline, "datetime", Wall)
        patch.setattr(deadline, "elapsed_s", lambda: clocks.elapsed_s)

    def pass_by(self, seconds: float, *, set_by_s: float = 0.0) -> None:
        """Let time pass, in which the wall clock is set."""
        self.elapsed_s += seconds
        self.wall += timedelta(seconds=seconds + set_by_s)


@pytest.mark.parametrize("set_by_s", [-3600.0, 0.0, 3600.0], ids=["back", "not", "forward"])
def test_a_wall_clock_that_is_set_moves_a_time_of_day_and_no_duration(
    set_by_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = Clocks(monkeypatch)
    of_duration = parse_deadline("10m")
    at_time = parse_deadline((NIGHT + timedelta(minutes=10)).isoformat())
    clocks.pass_by(60, set_by_s=set_by_s)
    assert of_duration.left_s == 540
    assert at_time.left_s == 540 - set_by_s
    assert of_duration.before(240).left_s == 300


@pytest.mark.parametrize("set_by_s", [-3600.0, 3600.0], ids=["back", "forward"])
def test_another_process_of_the_machine_takes_the_same_deadline(
    set_by_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = Clocks(monkeypatch)
    of_duration = parse_deadline("10m")
    for name, value in of_duration.environment().items():
        monkeypatch.setenv(name, value)
    clocks.pass_by(60, set_by_s=set_by_s)
    assert parse_deadline(of_duration.word, is_resolved=True) == of_duration
    other = of_duration.before(1)
    assert parse_deadline(other.word, is_resolved=True) == Deadline(other.moment), (
        "whose variable is not there"
    )
    monkeypatch.setattr(deadline, "name_clock", lambda: "another-host/boot")
    assert parse_deadline(of_duration.word, is_resolved=True) == Deadline(of_duration.moment)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-3, "0.0 s"),
        (0.44, "0.4 s"),
        (40, "40 s"),
        (119, "119 s"),
        (720, "12 min"),
        (11100, "3 h 05 min"),
    ],
    ids=str,
)
def test_durations_read_as_people_say_them(seconds: float, shown: str) -> None:
    assert format_duration(seconds) == shown
