"""Commands as processes of their own: their codes, their output, and the signals that reach them."""

from __future__ import annotations

import signal
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest

import lightkit
from lightkit.commands.retrain import CommandRunner

SLEEPER = """\
import signal, sys, time
from pathlib import Path
def leave(signum, frame):
    Path("asked").write_text(str(signum))
    sys.exit(75)
for each in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
    signal.signal(each, leave)
Path("ready").touch()
while True:
    time.sleep(0.02)
"""


@pytest.fixture
def sleeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which ``python -m lightkit`` is a program that waits for a signal."""
    package = tmp_path / "lightkit"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(SLEEPER, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(("words", "code"), [(["--version"], 0), (["nonsense"], 2)], ids=["well", "mistake"])
def test_a_command_gives_its_code_and_writes_where_this_process_does(
    words: list[str], code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    looks: list[int] = []
    with CommandRunner() as runner:
        done = runner.run(words, environment={}, on_poll=lambda: looks.append(1))
    assert (done.code, done.was_late, done.killed_by) == (code, False, None)
    assert looks
    told = capfd.readouterr()
    assert "lightkit" in told.out if code == 0 else "is not a command" in told.err


def test_a_silent_command_writes_nothing(capfd: pytest.CaptureFixture[str]) -> None:
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
    assert done.code in (75, 128 + signal.SIGTERM)  # the latter before it has a handler
    assert runner.received is None


def test_a_signal_that_comes_while_a_command_is_started_reaches_it(sleeper: Path) -> None:
    with CommandRunner() as runner:
        runner.received = signal.SIGTERM
        done = runner.run([], environment={})
    assert done.code in (75, 128 + signal.SIGTERM)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing tells a process that its parent is gone")
def test_a_command_does_not_outlive_this_process(sleeper: Path) -> None:
    parent = (
        "import sys; sys.path.remove('')\n"  # where this test has its own lightkit
        "from lightkit.commands.retrain import CommandRunner\n"
        "CommandRunner().run([], environment={'PYTHONPATH': '.'})"
    )
    root = str(Path(lightkit.__file__).parents[1])
    with subprocess.Popen([sys.executable, "-c", parent], env={"PYTHONPATH": root}, cwd=sleeper) as process:
        while not (sleeper / "ready").exists():
            assert process.poll() is None
        process.kill()
    while not (sleeper / "asked").exists():
        pass
    assert (sleeper / "asked").read_text(encoding="utf-8") in ("", str(int(signal.SIGTERM)))
