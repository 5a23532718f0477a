"""A process that does nothing is ended, one that works slowly or waits for another is not, or a little later."""

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

import pytest

from lightkit.launch import STALLED, Heartbeat, Hung, Stall, Watchdog, WatchdogSettings
from lightkit.launch.stacks import Place, Samples

PATIENCE_S = 30


@dataclass
class Kennel:
    """A watchdog, and what it has done."""

    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    reports: queue.Queue[Stall] = field(default_factory=queue.Queue)
    ends: queue.Queue[Stall] = field(default_factory=queue.Queue)

    @contextmanager
    def watching(
        self,
        limit_s: float | Callable[[], float],
        *,
        end: Callable[[Stall], object] | None = None,
        gently: bool = False,
    ) -> Iterator[Watchdog]:
        limit = limit_s if callable(limit_s) else lambda: limit_s
        watchdog = Watchdog(self.heartbeat, limit_s=limit, report=self.reports.put, end=end or self.ends.put)
        watchdog.prepare(gently=gently)
        watchdog.start()
        try:
            yield watchdog
        finally:
            watchdog.stop()


def test_a_process_that_hangs_is_ended_with_its_stack() -> None:
    kennel = Kennel()
    kennel.heartbeat.enter("validate")
    with kennel.watching(0.2):
        stall = kennel.ends.get(timeout=PATIENCE_S)  # this line is where the main thread hangs
    assert kennel.reports.get(timeout=PATIENCE_S) is stall
    assert "where the main thread hangs" in stall.stacks
    assert stall.phase == "validate"
    assert stall.seconds >= 0.2
    assert stall.waits_for is None
    assert stall.at is not None
    assert "test_watchdog.py:" in stall.at
    assert stall.at in stall.where


def test_one_that_waits_for_others_is_ended_later() -> None:
    kennel = Kennel()
    kennel.heartbeat.waits_for = "all-reduce of the gradients"
    began = time.monotonic()
    with kennel.watching(0.2):
        kennel.ends.get(timeout=PATIENCE_S)
    assert time.monotonic() - began > 5
    assert kennel.reports.get(timeout=PATIENCE_S).waits_for == "all-reduce of the gradients"


def test_progress_keeps_it_alive() -> None:
    kennel = Kennel()
    with kennel.watching(1.0):
        stop = threading.Event()
        for _ in range(30):
            kennel.heartbeat.beat()
            stop.wait(0.1)
    assert kennel.ends.empty()


@pytest.mark.parametrize("limit_s", [0.0, math.inf], ids=["zero", "infinity"])
def test_no_limit_watches_nothing(limit_s: float) -> None:
    kennel = Kennel()
    with kennel.watching(limit_s):
        assert "lightkit-watchdog" not in {thread.name for thread in threading.enumerate()}
    assert kennel.ends.empty()


def test_a_main_thread_that_sleeps_is_woken_by_an_exception_that_no_handler_of_failures_takes() -> None:
    kennel = Kennel()
    with kennel.watching(0.3, gently=True) as watchdog, pytest.raises(Hung) as caught, suppress(Exception):
        time.sleep(PATIENCE_S)
    assert caught.value.stall is watchdog.stall is kennel.reports.get(timeout=PATIENCE_S)
    assert kennel.ends.empty()  # it was stopped in time
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL


def test_a_main_thread_that_goes_on_hanging_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightkit.launch.watchdog._UNWINDING_S", 0.5)
    monkeypatch.setattr("lightkit.launch.watchdog._LOOK_S", 0.1)
    kennel = Kennel()
    with kennel.watching(0.2, gently=True):
        with pytest.raises(Hung) as kept:  # as while it goes up
            time.sleep(PATIENCE_S)
        assert kennel.ends.get(timeout=PATIENCE_S) is kept.value.stall


def test_whoever_has_heard_of_it_is_not_woken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightkit.launch.watchdog._UNWINDING_S", 0.5)
    monkeypatch.setattr("lightkit.launch.watchdog._LOOK_S", 0.1)
    kennel = Kennel()
    with kennel.watching(0.2, gently=True) as watchdog:
        try:
            time.sleep(PATIENCE_S)
        except Hung:
            watchdog.is_heard = True
        kennel.ends.get(timeout=PATIENCE_S)


def test_who_passes_over_everything_is_woken_again() -> None:
    kennel = Kennel()

    def hang() -> None:
        with suppress(BaseException):
            time.sleep(PATIENCE_S)
        time.sleep(PATIENCE_S)

    with kennel.watching(0.2, gently=True), pytest.raises(Hung):
        hang()
    assert kennel.ends.empty()
    assert kennel.reports.qsize() == 1


def test_who_passes_over_everything_again_and_again_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightkit.launch.watchdog._LOOK_S", 0.1)
    kennel = Kennel()
    num_passed_over = 0
    with kennel.watching(0.2, gently=True):
        while kennel.ends.empty():
            with suppress(BaseException):
                kennel.ends.put(kennel.ends.get(timeout=PATIENCE_S))
            num_passed_over += 1
    assert num_passed_over >= 3


def test_a_handler_of_the_users_own_for_the_signal_stays() -> None:
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        kennel = Kennel()
        with kennel.watching(0.2, gently=True):
            kennel.ends.get(timeout=PATIENCE_S)
        assert signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR2, before)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells what a thread has read and written")
@pytest.mark.parametrize(("in_step", "is_ended"), [(False, False), (True, True)], ids=["checkpoint", "step"])
def test_what_is_no_step_may_read_and_write_for_as_long_as_it_takes(
    tmp_path: Path, in_step: bool, is_ended: bool
) -> None:
    kennel = Kennel()
    kennel.heartbeat.enter("checkpoint")
    if in_step:
        kennel.heartbeat.step("checkpoint")
        kennel.heartbeat.step("checkpoint")
    with kennel.watching(0.5), (tmp_path / "large.ckpt").open("wb") as file:
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:
            file.write(bytes(2**20))
            file.flush()
            time.sleep(0.02)
    assert kennel.ends.empty() is not is_ended


def test_a_debuggers_prompt_is_no_stall(tmp_path: Path) -> None:
    source = compile("def ask(wait):\n    wait(1.2)\n", str(tmp_path / "lib" / "pdb.py"), "exec")
    names: dict[str, Callable[[Callable[[float], None]], None]] = {}
    exec(source, names)  # a frame of a file of that name, as a prompt is
    kennel = Kennel()
    with kennel.watching(0.3):
        names["ask"](time.sleep)
    assert kennel.ends.empty()


STOPPED = """\
import sys, time
from lightkit.launch import Heartbeat, Watchdog

watchdog = Watchdog(Heartbeat(), limit_s=lambda: float(sys.argv[1]), report=lambda _: print("stalled", flush=True))
watchdog.start()
print("watching", flush=True)
time.sleep(3600)
"""


@pytest.mark.slow
def test_the_time_in_which_the_whole_process_was_stopped_does_not_count() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED, "3"], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "watching\n"
            began = time.monotonic()
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(4)  # longer than the limit, as a machine that sleeps
            os.kill(process.pid, signal.SIGCONT)
            assert process.stdout.readline() == "stalled\n"
            assert time.monotonic() - began > 6
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


def test_the_median_is_of_the_newest_steps_and_leaves_out_what_lies_between(monkeypatch: pytest.MonkeyPatch) -> None:
    at = StepsAt(monkeypatch)
    at.steps("train", *[100.0] * 60, *[1.0] * 60)
    assert at.heartbeat.step_s == 1.0
    at.heartbeat.enter("checkpoint")
    at.now_s += 1000
    at.heartbeat.step("train")
    assert at.heartbeat.step_s == 1.0
    at.now_s += 50
    at.heartbeat.postpone(49)
    assert at.heartbeat.silent_s == 1.0


def test_the_words_name_who_where_and_what() -> None:
    place = Place(str(Path.cwd() / "mine.py"), 37, "__getitem__")
    stall = Stall("train", 2.0, 2.0, "data loader worker 7", str(place), Samples((36, 37), 37), None, "")
    assert stall.where == "data loader worker 7 stands still at mine.py:37 in __getitem__, loading sample 37"
