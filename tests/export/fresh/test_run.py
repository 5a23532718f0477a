"""The program of a fresh process: how long it takes to say how long a call takes."""

from __future__ import annotations

import pytest

from lightkit.export.fresh.run import measure


class _Clock:
    """Stands still but for calls of the model, each of which takes as long as the one before."""

    def __init__(self, call_s: float) -> None:
        self._call_s = call_s
        self.now = 0.0
        self.num_calls = 0

    def call(self) -> None:
        self.num_calls += 1
        self.now += self._call_s

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("call_s", "repetitions", "num_calls"),
    [(0.001, 40, 42), (0.25, 14, 16), (1.0, 3, 4), (3.0, 1, 2), (60.0, 1, 2)],
    ids=["fast", "40 would take 10 s", "a second", "3 s", "a minute"],
)
def test_a_slow_call_is_timed_a_few_times_only(call_s: float, repetitions: int, num_calls: int) -> None:
    clock = _Clock(call_s)

    measured = measure(clock.call, clock=clock)

    assert measured["repetitions"] == repetitions
    assert clock.num_calls == num_calls
    assert measured["median_s"] == pytest.approx(call_s)
    assert measured["p95_s"] == pytest.approx(call_s)
    assert clock.now <= max(4.0, 2 * call_s)
