"""A process that does nothing is ended, one that waits for another a little later."""

from __future__ import annotations

import queue
import threading
import time

from lightkit.launch import STALLED, Heartbeat, Watchdog


def watched(
    heartbeat: Heartbeat, timeout_s: float
) -> tuple[Watchdog, queue.Queue[tuple[str, str | None]], queue.Queue[int]]:
    reports: queue.Queue[tuple[str, str | None]] = queue.Queue()
    ends: queue.Queue[int] = queue.Queue()
    watchdog = Watchdog(
        heartbeat, timeout_s=timeout_s, report=lambda *told: reports.put((told[0], told[1])), end=ends.put
    )
    return watchdog, reports, ends


def test_a_process_that_hangs_is_ended_with_its_stack() -> None:
    watchdog, reports, ends = watched(Heartbeat(), 0.2)
    watchdog.start()
    assert ends.get(timeout=30) == STALLED  # this line is where the main thread hangs
    stacks, waits_for = reports.get(timeout=30)
    watchdog.stop()
    assert "test_watchdog.py" in stacks
    assert "where the main thread hangs" in stacks
    assert waits_for is None


def test_one_that_waits_for_others_is_ended_later() -> None:
    heartbeat = Heartbeat()
    heartbeat.waits_for = "all-reduce of the gradients"
    watchdog, reports, ends = watched(heartbeat, 0.2)
    began = time.monotonic()
    watchdog.start()
    assert ends.get(timeout=60) == STALLED
    assert time.monotonic() - began > 5
    assert reports.get(timeout=30)[1] == "all-reduce of the gradients"
    watchdog.stop()


def test_progress_keeps_it_alive() -> None:
    heartbeat = Heartbeat()
    watchdog, _, ends = watched(heartbeat, 1.0)
    watchdog.start()
    stop = threading.Event()
    for _ in range(30):
        heartbeat.beat()
        stop.wait(0.1)
    watchdog.stop()
    assert ends.empty()


def test_no_limit_watches_nothing() -> None:
    watchdog, _, ends = watched(Heartbeat(), 0)
    watchdog.start()
    watchdog.stop()
    assert ends.empty()
