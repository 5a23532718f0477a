"""A process that does nothing is ended, one that works slowly or waits for another is not.

One may be ended a little later.
"""

from __future__ import annotations

import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from traceback import FrameSummary

import pytest

from lightkit.launch.watchdog import (
    STALLED,
    Heartbeat,
    Hung,
    Stack,
    Stall,
    Watchdog,
    WatchdogSettings,
)

PATIENCE_S = 60.0
LIMIT_S = 1000.0


@dataclass
class Kennel:
    """A watchdog, and what it has done.

    Its limit is one that no machine stands still for, until a test says that the time is over.
    """

    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    reports: queue.Queue[Stall] = field(default_factory=queue.Queue)
    ends: queue.Queue[Stall] = field(default_factory=queue.Queue)
    limit_s: float = LIMIT_S
    asked: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    @contextmanager
    def watching(self, *, gently: bool = False) -> Iterator[Watchdog]:
        watchdog = Watchdog(
            self.heartbeat, limit_s=self._limit_s, report=self.reports.put, end=self._end
        )
        watchdog.prepare(gently=gently)
        watchdog.start()
        try:
            yield watchdog
        finally:
            watchdog.stop()

    def _limit_s(self) -> float:
        self.asked.release()
        return self.limit_s

    def _end(self, stall: Stall) -> None:
        self.ends.put(stall)
        self.asked.release()

    def time_is_over(self) -> float:
        """From now on a moment without progress is too long.

        Give the seconds to wait for what comes of it.
        """
        self.limit_s = 0.01
        return PATIENCE_S

    def as_if_silent_for(self, seconds: float) -> None:
        """Let the watchdog look once as if nothing had been finished for so long.

        Unless it has ended the process.
        """
        self.heartbeat.progress_at_s -= seconds
        while self.asked.acquire(blocking=False):
            pass
        for _ in range(4):  # it asks twice in each round, and may be in the middle of one
            assert not self.ends.empty() or self.asked.acquire(timeout=PATIENCE_S)


@pytest.fixture
def kennel(monkeypatch: pytest.MonkeyPatch) -> Kennel:
    monkeypatch.setattr("lightkit.launch.watchdog._POLL_S", 0.05)
    return Kennel()


def test_a_process_that_hangs_is_ended_with_its_stack(kennel: Kennel) -> None:
    kennel.heartbeat.enter("validate")
    with kennel.watching():
        stall = kennel.ends.get(timeout=kennel.time_is_over())  # where the main thread hangs
    assert kennel.reports.get(timeout=PATIENCE_S) is stall
    assert "where the main thread hangs" in stall.stacks
    assert stall.phase == "validate"
    assert stall.seconds >= stall.limit_s == kennel.limit_s
    assert stall.waits_for is None
    assert stall.culprit.own_line is not None
    assert "test_watchdog.py:" in stall.culprit.own_line
    assert stall.culprit.own_line in str(stall)


def test_one_that_waits_for_others_is_ended_later(kennel: Kennel) -> None:
    kennel.heartbeat.waits_for = "all-reduce of the gradients"
    with kennel.watching():
        stall = kennel.ends.get(timeout=kennel.time_is_over())
    assert stall.seconds > 5
    assert stall.waits_for == "all-reduce of the gradients"


@pytest.mark.parametrize("beats", [True, False])
def test_progress_keeps_it_alive(kennel: Kennel, beats: bool) -> None:
    with kennel.watching():
        for _ in range(3):
            kennel.as_if_silent_for(0.4 * LIMIT_S)
            if beats:
                kennel.heartbeat.beat()
    assert kennel.ends.empty() is beats


@pytest.mark.parametrize("limit_s", [0.0, math.inf], ids=["zero", "infinity"])
def test_no_limit_watches_nothing(kennel: Kennel, limit_s: float) -> None:
    kennel.limit_s = limit_s
    with kennel.watching():
        assert "lightkit-watchdog" not in {thread.name for thread in threading.enumerate()}
    assert kennel.ends.empty()


def test_a_main_thread_that_sleeps_is_woken_by_an_exception_that_no_handler_of_failures_takes(
    kennel: Kennel,
) -> None:
    with (
        kennel.watching(gently=True) as watchdog,
        pytest.raises(Hung) as caught,
        suppress(Exception),
    ):
        time.sleep(kennel.time_is_over())
    assert caught.value.stall is watchdog.stall is kennel.reports.get(timeout=PATIENCE_S)
    assert kennel.ends.empty()  # it was stopped in time
    assert signal.getsignal(signal.SIGURG) == signal.SIG_DFL


def test_a_main_thread_that_goes_on_hanging_is_ended(
    kennel: Kennel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightkit.launch.watchdog._UNWINDING_S", 0.5)
    with kennel.watching(gently=True):
        with pytest.raises(Hung) as kept:  # as while it goes up
            time.sleep(kennel.time_is_over())
        assert kennel.ends.get(timeout=PATIENCE_S) is kept.value.stall


def test_a_handler_of_the_users_own_for_the_signal_stays(kennel: Kennel) -> None:
    before = signal.signal(signal.SIGURG, signal.SIG_IGN)
    try:
        with kennel.watching(gently=True):
            kennel.ends.get(timeout=kennel.time_is_over())
        assert signal.getsignal(signal.SIGURG) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGURG, before)


@pytest.mark.parametrize(("file", "is_ended"), [("pdb.py", False), ("mine.py", True)])
def test_a_debuggers_prompt_is_no_stall(
    kennel: Kennel, tmp_path: Path, file: str, is_ended: bool
) -> None:
    source = compile("def ask(wait):\n    wait()\n", str(tmp_path / "lib" / file), "exec")
    names: dict[str, Callable[[Callable[[], None]], None]] = {}
    exec(source, names)  # a frame of a file of that name, as a prompt is
    with kennel.watching():
        names["ask"](lambda: kennel.as_if_silent_for(2 * LIMIT_S))
    assert kennel.ends.empty() is not is_ended


STOPPED = """\
import os, signal, sys, time
from lightkit.launch.watchdog import Heartbeat, Watchdog

def say(stall):
    print(time.monotonic() - began - stall.seconds, flush=True)

is_over = False
watchdog = Watchdog(Heartbeat(), limit_s=lambda: 0.1 if is_over else 1000.0, report=say)
began = time.monotonic()
watchdog.start()
os.kill(os.getpid(), signal.SIGSTOP)
is_over = True
time.sleep(3600)
"""


@pytest.mark.slow
def test_the_time_in_which_the_whole_process_was_stopped_does_not_count() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        try:
            assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
            time.sleep(3)  # as a machine that sleeps
            os.kill(process.pid, signal.SIGCONT)
            assert process.stdout is not None
            # all three but the second in which it looks anyway
            assert float(process.stdout.readline()) > 1.5
            assert process.wait(PATIENCE_S) == STALLED
        finally:
            process.kill()


class StepsAt:
    """A heartbeat at moments that a test chooses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        self.heartbeat = Heartbeat()

    def steps(self, phase: str, *seconds: float) -> None:
        self.heartbeat.enter(phase)
        for each in seconds:
            self.now_s += each
            self.heartbeat.step(phase)


def test_the_limit_of_a_step_is_a_multiple_of_the_median_of_its_kind_and_of_no_step_four_times_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at, settings = StepsAt(monkeypatch), WatchdogSettings(factor=10, floor_s=30)
    assert settings.limit_s(at.heartbeat) == 4 * 30
    at.steps("train", 90)
    assert settings.limit_s(at.heartbeat) == 4 * 30  # no step has been timed
    at.steps("train", 90, 1, 2, 3)  # the first one is the wait for a batch
    assert settings.limit_s(at.heartbeat) == 30
    at.steps("validate", 90, 5, 6, 7)
    assert settings.limit_s(at.heartbeat) == 10 * 6
    at.heartbeat.enter("checkpoint")
    assert settings.limit_s(at.heartbeat) == 4 * 10 * 6
    at.heartbeat.leave()
    assert at.heartbeat.phase == "validate"
    at.steps("train", 90)
    assert settings.limit_s(at.heartbeat) == 30
    assert WatchdogSettings(floor_s=0).limit_s(at.heartbeat) == math.inf


def test_the_median_is_of_the_newest_steps_and_leaves_out_what_lies_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = StepsAt(monkeypatch)
    at.steps("train", *[100.0] * 60, *[1.0] * 60)
    assert at.heartbeat.step_s == 1.0
    at.heartbeat.enter("checkpoint")
    at.now_s += 1000
    at.heartbeat.step("train")
    assert at.heartbeat.step_s == 1.0


def test_a_stall_names_process_line_and_sample() -> None:
    line = FrameSummary(str(Path.cwd() / "mine.py"), 37, "__getitem__")
    stall = Stall(
        "train", 2.0, 2.0, Stack("data loader worker 7", "", (line,), (36, 37), 37), None, ""
    )
    assert str(stall).endswith(
        ": data loader worker 7 hangs at mine.py:37 in __getitem__, loading sample 37"
    )
