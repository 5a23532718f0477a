"""Commands as processes of their own: their codes, their output, and the signals that reach them."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

from lightkit.commands.retrain import CommandRunner


def _sleep() -> None:
    """Wait for a signal, in the place of a command."""

    def leave(signum: int, _frame: object) -> None:
        Path("asked").write_text(str(signum), encoding="utf-8")
        sys.exit(75)

    for each in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        signal.signal(each, leave)
    Path("ready").touch()
    while True:
        time.sleep(0.02)


@pytest.fixture
def sleeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which every command waits for a signal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lightkit.main.main", _sleep)
    monkeypatch.setattr("lightkit.commands.retrain._HEAVY_MODULES", ())
    return tmp_path


@pytest.mark.parametrize(("words", "code"), [(["--version"], 0), (["nonsense"], 2)], ids=["well", "mistake"])
def test_a_command_gives_its_code_and_writes_where_this_process_does(
    words: list[str], code: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightkit.commands.retrain._HEAVY_MODULES", ())
    looks: list[int] = []
    with CommandRunner() as runner:
        done = runner.run(words, environment={}, on_poll=lambda: looks.append(1))
    assert (done.code, done.was_late) == (code, False)
    assert looks
    told = capfd.readouterr()
    assert "lightkit" in told.out if code == 0 else "is not a command" in told.err


def test_a_silent_command_writes_nothing(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightkit.commands.retrain._HEAVY_MODULES", ())
    with CommandRunner() as runner:
        assert runner.run(["--version"], environment={}, is_silent=True).code == 0
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT], ids=lambda signum: signum.name)
def test_signals_are_passed_on(sleeper: Path, signum: signal.Signals) -> None:
    sent: list[bool] = []

    def knock() -> None:
        if (sleeper / "ready").exists() and not sent:
            sent.append(True)
            signal.raise_signal(signum)

    before = signal.getsignal(signum)
    with CommandRunner() as runner:
        done = runner.run([], environment={}, on_poll=knock)
    assert (done.code, runner.received) == (75, signum)
    assert (sleeper / "asked").read_text(encoding="utf-8") == str(int(signum))
    assert signal.getsignal(signum) == before


def test_a_command_is_asked_to_end_at_its_deadline(sleeper: Path) -> None:
    with CommandRunner() as runner:
        done = runner.run([], environment={}, deadline=datetime.now(timezone.utc))
    assert done.was_late
    assert done.code in (75, -signal.SIGTERM)  # the latter before it has a handler
    assert runner.received is None


def test_a_signal_that_comes_while_a_command_is_started_reaches_it(sleeper: Path) -> None:
    with CommandRunner() as runner:
        runner.received = signal.SIGTERM
        done = runner.run([], environment={})
    assert done.code in (75, -signal.SIGTERM)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing tells a process that its parent is gone")
def test_a_command_does_not_outlive_this_process(sleeper: Path) -> None:
    if (pid := os.fork()) == 0:
        with CommandRunner() as runner:
            runner.run([], environment={})
        os._exit(1)
    while not (sleeper / "ready").exists():
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while not (sleeper / "asked").exists():
        time.sleep(0.01)
    assert (sleeper / "asked").read_text(encoding="utf-8") in ("", str(int(signal.SIGTERM)))
