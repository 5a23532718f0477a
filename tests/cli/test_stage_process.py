"""Commands as processes of their own: their codes, their output, and their deadline."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from lightkit.cli.command_table import parse
from lightkit.cli.stage_config import StageConfig
from lightkit.cli.stage_processes import StageProcesses, describe_kill
from lightkit.cli.stage_runner import run_stage
from lightkit.errors import DataChanged
from lightkit.runs.signals import SignalWatch


@pytest.fixture(scope="module")
def processes() -> Iterator[StageProcesses]:
    with StageProcesses(preloads=False) as entered:
        yield entered


@pytest.mark.parametrize(
    ("words", "code"), [(["--version"], 0), (["nonsense"], 2)], ids=["well", "error"]
)
def test_a_command_gives_its_code_and_writes_where_this_process_does(
    processes: StageProcesses, words: list[str], code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    polls: list[int] = []
    assert processes.run(words, {}, lambda: polls.append(1)) == code
    assert polls
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())


def children(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def run_beside(processes: StageProcesses, interfere: Callable[[list[psutil.Process]], None]) -> int:
    """Run a command whose config is a pipe, and interfere with its processes once it reads that."""
    os.mkfifo("slow.yaml")
    has_interfered: list[bool] = []

    def on_poll() -> None:
        if has_interfered:
            return
        try:
            writer = os.open("slow.yaml", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # nobody reads it yet
            return
        has_interfered.append(True)
        interfere(children(os.getpid()))
        Path("again.yaml").write_text("model: 3\n", encoding="utf-8")
        Path("again.yaml").replace("slow.yaml")  # for a second look at it
        with suppress(BrokenPipeError):
            os.write(writer, b"model: 3\n")
        os.close(writer)

    return processes.run(["validate", "-c", "slow.yaml"], {}, on_poll)


def is_fork_server(process: psutil.Process) -> bool:
    return (
        "multiprocessing.forkserver" in " ".join(process.cmdline())
        and process.ppid() == os.getpid()
    )


def test_a_command_goes_on_where_the_fork_server_is_killed(
    processes: StageProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def kill_fork_server(found: list[psutil.Process]) -> None:
        (server,) = [each for each in found if is_fork_server(each)]
        server.kill()

    assert run_beside(processes, kill_fork_server) == 2
    assert "model" in processes.reason
    assert processes.run(["--version"], {}, lambda: None) == 0  # by a new fork server


def test_a_command_that_is_killed_has_the_signal_as_its_status(
    processes: StageProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def kill_command(found: list[psutil.Process]) -> None:
        (server,) = [each for each in found if is_fork_server(each)]
        (command,) = server.children()
        command.kill()

    assert run_beside(processes, kill_command) == -signal.SIGKILL
    assert "most likely no memory was left" in describe_kill(signal.SIGKILL)


def test_a_fork_server_that_dies_at_the_start_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It imports a module that kills it, as one does that takes the last of the memory."""
    (tmp_path / "too_large.py").write_text("import os\nos.kill(os.getpid(), 9)\n", encoding="utf-8")
    program = (
        "import multiprocessing, sys\n"
        "from lightkit.cli import stage_processes\n"
        "stage_processes._PRELOAD = ['too_large']\n"
        "with stage_processes.StageProcesses() as processes:\n"
        "    print(processes.run(['--version'], {}, lambda: None), processes.reason)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.startswith("-9 it could not be started")
    assert "Traceback" not in done.stderr


def test_an_interruption_of_a_later_stage_says_that_the_retrain_goes_on(
    processes: StageProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def terminate(found: list[psutil.Process]) -> None:
        (server,) = [each for each in found if is_fork_server(each)]
        (command,) = server.children()
        command.terminate()

    assert run_beside(processes, terminate) == 75
    assert (
        processes.reason
        == "interrupted by SIGTERM; the same lightkit retrain goes on with validate"
    )


@pytest.mark.parametrize(
    ("stage", "end"),
    [
        ("validate", "the same lightkit retrain goes on with validate"),
        ("fit", "there is nothing to resume"),
    ],
    ids=["later stage", "training"],
)
def test_a_signal_that_a_stage_does_not_live_to_handle_is_told_all_the_same(
    stage: str, end: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It ends the new process as soon as that takes signals, before lightkit handles them."""
    with StageProcesses(preloads=False) as early:
        monkeypatch.setattr(early, "received", signal.SIGTERM)
        assert early.run([stage], {}, lambda: None) == -signal.SIGTERM
    assert early.reason == f"interrupted by SIGTERM; {end}"
    assert capfd.readouterr().err == f"{early.reason}\n"


def test_warnings_of_other_modules_are_shown_whatever_the_fork_server_has_imported(
    tmp_path: Path,
) -> None:
    """mlflow.pytorch sets the level of the root logger.

    The command here is a stand-in that warns.
    """
    lines = ("import logging, runpy", "logging.basicConfig(level=logging.ERROR)")
    command = (
        "runpy.run_module = lambda *_, **__:"
        " logging.getLogger('mine').warning('a warning of my own')"
    )
    (tmp_path / "loud.py").write_text("\n".join((*lines, command)), encoding="utf-8")
    program = (
        "from lightkit.cli import stage_processes\n"
        "stage_processes._PRELOAD = ['loud']\n"
        "with stage_processes.StageProcesses() as processes:\n"
        "    processes.run(['test'], {}, lambda: None)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stderr == "a warning of my own\n"


def test_a_signal_while_the_fork_server_imports_ends_the_command_at_once(tmp_path: Path) -> None:
    """As torch takes minutes on a crowded machine, and SIGTERM has 15 s."""
    (tmp_path / "slow.py").write_text(
        "import os, time\nos.mkfifo('begun')\nopen('begun').close()\ntime.sleep(600)\n"
    )
    program = (
        "import os, signal, threading\n"
        "from lightkit.cli import stage_processes\n"
        "stage_processes._PRELOAD = ['slow']\n"
        "def end():\n"
        "    while not os.path.exists('begun'): pass\n"
        "    open('begun', 'w').close()\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "threading.Thread(target=end, daemon=True).start()\n"
        "with stage_processes.StageProcesses() as processes:\n"
        "    print(processes.run(['test'], {}, lambda: None), processes.reason, flush=True)\n"
        "from lightkit.runs.signals import kill_children\n"
        "kill_children()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert (
        done.stdout == "-15 interrupted by SIGTERM; the same lightkit retrain goes on with test\n"
    )


def test_a_fit_that_begins_again_for_other_data_keeps_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    Path("small.yaml").write_text("model: Regressor\ndata: Temperatures\n", encoding="utf-8")
    starts: list[StageConfig] = []

    def start(stage_config: StageConfig, **_: object) -> int:
        starts.append(stage_config)
        if len(starts) == 1:
            raise DataChanged("the data has changed")
        return 0

    monkeypatch.setattr("lightkit.cli.stage_runner.run_in_process", start)
    assert run_stage(parse(["fit", "-c", "small.yaml", "--deadline=1h"]), SignalWatch()) == 0
    first, again = starts
    assert again.invocation.words[-1] == "--run.resume=never"
    assert first.deadline is not None
    assert again.deadline == first.deadline
