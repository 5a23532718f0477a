"""Signals end a run at once, or between two steps; those that reach a worker are not the run's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from lightkit.errors import Interrupted
from lightkit.runs.signals import SignalWatch


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_outside_training_is_raised_at_once(signum: int) -> None:
    with SignalWatch(), pytest.raises(Interrupted) as caught:
        os.kill(os.getpid(), signum)
    assert caught.value.exit_code == 128 + signum


def test_a_deferred_signal_is_remembered_and_not_raised() -> None:
    with SignalWatch() as watch:
        watch.deferred = True
        os.kill(os.getpid(), signal.SIGTERM)
        assert watch.received == signal.SIGTERM


def test_the_handlers_of_before_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with SignalWatch():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_second_signal_ends_the_process() -> None:
    program = (
        "import os, signal\n"
        "from lightkit.runs.signals import SignalWatch\n"
        "watch = SignalWatch(); watch.deferred = True; watch.__enter__()\n"
        "os.kill(os.getpid(), signal.SIGTERM); os.kill(os.getpid(), signal.SIGINT)\n"
        "print('went on')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout) == (130, "")


@pytest.mark.parametrize(
    ("signum", "ends"),
    [(signal.SIGINT, os.WIFEXITED), (signal.SIGTERM, os.WIFSIGNALED)],
    ids=["ctrl_c_is_the_parents", "terminate_ends_the_worker"],
)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_worker_raises_nothing(signum: int, ends: Callable[[int], bool]) -> None:
    with SignalWatch() as watch:
        pid = os.fork()
        if pid == 0:
            os.kill(os.getpid(), signum)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
    assert ends(status)
    assert watch.received is None
