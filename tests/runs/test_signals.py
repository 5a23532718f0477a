"""Signals end a run at once, or between two steps; those that reach a worker are not the run's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from lightkit.errors import Interrupted
from lightkit.main import main
from lightkit.runs import signals
from lightkit.runs.signals import SignalWatch

HERE = Path(__file__).parents[2]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_outside_training_is_raised_at_once(signum: int) -> None:
    with SignalWatch(), pytest.raises(Interrupted) as caught:
        os.kill(os.getpid(), signum)
    assert caught.value.exit_code == 128 + signum


def test_a_deferred_signal_is_remembered_and_not_raised() -> None:
    with SignalWatch() as watch:
        watch.deferred = True
        os.kill(os.getpid(), signal.SIGTERM)
        assert watch.received == signal.SIGTERM


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_watch_is_being_set_up_ends_the_command_as_any_other(
    signum: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(SignalWatch, "_listen", lambda _: signal.raise_signal(signum))
    assert main(["--version"]) == 128 + signum
    captured = capsys.readouterr()
    assert captured.out == ""
    assert (
        captured.err
        == f"interrupted by {signal.Signals(signum).name}; there is nothing to resume\n"
    )


def test_the_handlers_of_before_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with SignalWatch():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    "signum", [signal.SIGHUP, signal.SIGINT], ids=["nohup", "in_the_background_of_a_script"]
)
def test_a_signal_that_the_process_was_started_to_ignore_is_left_alone(signum: int) -> None:
    before = signal.signal(signum, signal.SIG_IGN)
    try:
        with SignalWatch() as watch:
            os.kill(os.getpid(), signum)
            assert watch.received is None
            assert signal.getsignal(signum) == signal.SIG_IGN
    finally:
        signal.signal(signum, before)


def test_a_patient_signal_waits_for_as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "PATIENCE_S", 0.0)
    with SignalWatch() as watch:
        watch.add(signal.SIGUSR1, patiently=True)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert watch.received == signal.SIGUSR1
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_a_patient_signal_after_the_end_of_a_whole_program_does_not_make_it_fail() -> None:
    ended = _program(
        "with SignalWatch(to_the_end=True) as watch:\n  watch.add(signal.SIGUSR1, patiently=True)\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\nprint('went on')\n"
    )
    assert (ended.returncode, ended.stdout) == (0, "went on\n"), ended.stderr


def test_a_signal_in_a_block_with_a_clock_of_its_own_starts_no_other() -> None:
    """Else the second one would end the process."""
    ended = _program(
        "signals.PATIENCE_S = 600\nwith SignalWatch() as watch:\n  watch.deferred = True\n"
        "  with watch.handed_over():\n    os.kill(os.getpid(), TERM); heard.get(timeout=30)\n"
        "  os.kill(os.getpid(), INT); heard.get(timeout=30)\nprint('went on')\n"
    )
    assert (ended.returncode, ended.stdout) == (0, "went on\n"), ended.stderr


def test_a_block_that_must_not_be_cut_off_is_not() -> None:
    with SignalWatch() as watch:
        with watch.deferring():
            os.kill(os.getpid(), signal.SIGTERM)
        assert (watch.received, watch.deferred) == (signal.SIGTERM, False)


BEGIN = """\
import os, queue, signal, subprocess, sys, threading, time
from types import SimpleNamespace
from lightkit.runs import signals

TERM, INT = signal.SIGTERM, signal.SIGINT
clock, noticed, heard = [0.0], queue.SimpleQueue(), queue.SimpleQueue()
signals.time = SimpleNamespace(monotonic=lambda: clock[0], sleep=time.sleep)
signals._LAST_WORDS_S = 60.0

class SignalWatch(signals.SignalWatch):
    def _come(self, signum): super()._come(signum); noticed.put(signum)
    def _hear(self, signum): super()._hear(signum); heard.put(signum)

def me(signum, at_s=0.0):  # at a moment, and until it is noticed
    clock[0] = at_s; os.kill(os.getpid(), signum); noticed.get(timeout=30)
"""


def _program(text: str) -> subprocess.CompletedProcess[str]:
    """Run a program that has a watch over all of it, in which training has begun."""
    command = [sys.executable, "-c", BEGIN + text]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, cwd=HERE
    )


SLEEPER = """
child = subprocess.Popen(
    ["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
)
print(child.pid, flush=True)
"""


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("signals", "code"),
    [("me(TERM); me(INT)", 130), ("me(TERM); me(TERM, at_s=0.6)", 143)],
    ids=["another", "the_same_later"],
)
def test_a_second_signal_ends_the_process_and_its_children(signals: str, code: int) -> None:
    ended = _program(
        "signals.PATIENCE_S = 600; watch = SignalWatch(); watch.deferred = True;"
        f" watch.__enter__()\n{SLEEPER}{signals}; print('went on', flush=True)\n"
    )
    assert ended.returncode == code, ended.stderr
    (child,) = ended.stdout.split()
    assert not _is_alive(int(child))


def test_the_same_signal_to_the_process_and_to_its_group_is_one_wish() -> None:
    ended = _program(
        "signals.PATIENCE_S = 600\nwith SignalWatch() as watch:\n  watch.deferred = True\n"
        "  me(TERM); me(TERM, at_s=0.2); me(TERM, at_s=0.4)\n"
        "print('went on')\n"
    )
    assert (ended.returncode, ended.stdout) == (0, "went on\n"), ended.stderr


STUCK = {
    "asleep": "time.sleep(600)",
    "a_thread_that_never_ends": "threading.Thread(target=time.sleep, args=(600,)).start()",
}


@pytest.mark.parametrize("stuck", STUCK.values(), ids=STUCK)
def test_a_process_that_does_not_end_is_ended_with_its_children_and_last_words(stuck: str) -> None:
    ended = _program(
        "signals.PATIENCE_S = 0.3; watch = SignalWatch(to_the_end=True); watch.__enter__()\n"
        "watch.deferred = True\n"
        "watch.last_words = lambda signum: print('signal', signum, flush=True) or 75\n"
        f"{SLEEPER}threading.Timer(0.1, me, (TERM,)).start()\n{stuck}\n"
    )
    assert ended.returncode == 75, ended.stderr
    child, *said = ended.stdout.split()
    assert said == ["signal", "15"]
    assert "ended by force: not all had ended 0.3 s after the signal" in ended.stderr
    assert not _is_alive(int(child))


def test_last_words_that_hang_do_not_keep_the_process() -> None:
    ended = _program(
        "signals._LAST_WORDS_S = signals.PATIENCE_S = 0.1\n"
        "watch = SignalWatch(); watch.__enter__(); watch.deferred = True\n"
        "watch.last_words = lambda signum: time.sleep(600)\nme(TERM); time.sleep(600)\n"
    )
    assert ended.returncode == 143


def test_children_that_are_left_at_the_end_of_an_interrupted_program_are_ended() -> None:
    ended = _program(
        f"from lightkit.errors import Interrupted\n{SLEEPER}try:\n  with"
        " SignalWatch(to_the_end=True) as watch: me(TERM)\nexcept Interrupted as end:"
        " sys.exit(end.exit_code)"
    )
    assert ended.returncode == 143
    assert not _is_alive(int(ended.stdout))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_the_signals_of_a_forked_process_are_not_its_parents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(signals, "PATIENCE_S", 0.0)
    with SignalWatch() as watch:
        watch.deferred = True
        pid = os.fork()
        if pid == 0:
            for signum in (signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
                os.kill(os.getpid(), signum)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert watch.received is None


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


def _raised(error: BaseException, during: BaseException) -> BaseException:
    """An error as it is when it was raised while another one was handled."""
    error.__context__ = during
    return error


@pytest.mark.parametrize(
    ("error", "is_explained"),
    [
        (KeyError("half"), False),
        (ImportError("half"), True),
        (_raised(KeyError("half"), Interrupted(15)), True),
        (_raised(KeyError("half"), _raised(ValueError("first"), Interrupted(15))), True),
        (_raised(KeyError("half"), ValueError("first")), False),
    ],
    ids=[
        "its own",
        "import",
        "in its context",
        "in the context of its context",
        "in another's context",
    ],
)
def test_what_became_of_a_signal_is_known_by_its_context(
    error: BaseException, is_explained: bool
) -> None:
    with SignalWatch() as watch:
        assert not watch.explains(error), "no signal has come"
        watch.note(signal.SIGTERM)
        assert watch.explains(error) is is_explained


def test_what_fails_after_a_signal_that_was_swallowed_is_the_signals() -> None:
    with SignalWatch() as watch:
        with suppress(Interrupted):
            os.kill(os.getpid(), signal.SIGTERM)
        assert watch.explains(KeyError("a module of which one half is loaded"))


NATIVE = """\
import ctypes
from lightkit.runs import signals

signals.PATIENCE_S = 0.5
library = ctypes.CDLL(None)
mutex = ctypes.create_string_buffer(64)
library.pthread_mutex_lock(mutex)
with signals.SignalWatch(to_the_end=True) as watch:
    watch.deferred = True
    print("ready", flush=True)
    library.pthread_mutex_lock(mutex)  # for ever
"""


def test_a_process_whose_main_thread_is_in_native_code_ends_in_time() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", NATIVE], cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGTERM)
    _, words = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert b"ended by force" in words


def test_a_signal_of_a_forked_process_is_not_the_parents() -> None:
    with SignalWatch() as watch:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert watch._first is None
