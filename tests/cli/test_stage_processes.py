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
from lightkit.runs.deadline import parse_deadline
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


def run_python(
    program: str, folder: Path, *, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder whose modules it can import."""
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=check,
        timeout=120,
    )


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
        "stage_processes.OF_STAGES = ['too_large']\n"
        "with stage_processes.StageProcesses() as processes:\n"
        "    print(processes.run(['--version'], {}, lambda: None), processes.reason)\n"
    )
    done = run_python(program, tmp_path)
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
        "stage_processes.OF_STAGES = ['loud']\n"
        "with stage_processes.StageProcesses() as processes:\n"
        "    processes.run(['test'], {}, lambda: None)\n"
    )
    done = run_python(program, tmp_path)
    assert done.stderr == "a warning of my own\n"


def test_a_signal_while_the_fork_server_imports_ends_the_command_at_once(tmp_path: Path) -> None:
    """As torch takes minutes on a crowded machine, and SIGTERM has 15 s.

    Nor does the fork server hold the output open, for whose end a pipe waits.
    """
    (tmp_path / "slow.py").write_text(
        "import os, time\nos.mkfifo('begun')\nopen('begun').close()\ntime.sleep(600)\n"
    )
    program = (
        "import os, signal, threading\n"
        "from lightkit.cli import stage_processes\n"
        "stage_processes.OF_STAGES = ['slow']\n"
        "def end():\n"
        "    while not os.path.exists('begun'): pass\n"
        "    open('begun', 'w').close()\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "threading.Thread(target=end, daemon=True).start()\n"
        "with stage_processes.StageProcesses() as processes:\n"
        "    print(processes.run(['test'], {}, lambda: None), processes.reason, flush=True)\n"
    )
    done = run_python(program, tmp_path)
    assert (
        done.stdout == "-15 interrupted by SIGTERM; the same lightkit retrain goes on with test\n"
    )


def test_a_deadline_while_the_fork_server_imports_ends_the_wait_for_a_command(
    tmp_path: Path,
) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(600)\n", encoding="utf-8")
    program = (
        "from lightkit.cli.stage_processes import StageProcesses\n"
        "from lightkit.runs.deadline import parse_deadline\n"
        "deadline = parse_deadline('0.5s')\n"
        "with StageProcesses(modules=['slow'], deadline=deadline) as processes:\n"
        "    for _ in range(2):\n"
        "        print(processes.start(['test'], {}).poll(), processes.is_late, flush=True)\n"
        "print(deadline.left_s < 0, processes.received)\n"
    )
    done = run_python(program, tmp_path)
    assert done.stdout.splitlines() == ["-9 True", "-9 True", "True None"]


def test_a_deadline_may_be_thousands_of_years_away() -> None:
    deadline = parse_deadline("9999-12-31T00:00")
    with StageProcesses(preloads=False, deadline=deadline) as processes:
        assert processes.run(["--version"], {}, lambda: None) == 0
        assert not processes.is_late


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


def run_program(folder: Path, *lines: str) -> str:
    """Run a program that starts commands, of which `stand_in.py` takes the place."""
    program = [
        "import os, signal, sys, time",
        "from lightkit.cli import stage_processes",
        "import psutil",
        "stage_processes.OF_STAGES = ['stand_in']",
        *lines,
    ]
    done = run_python("\n".join(program), folder, check=False)
    assert not done.stderr
    return done.stdout


def test_a_command_gets_the_process_that_waits_for_it_or_one_of_its_own_where_that_was_killed(
    tmp_path: Path,
) -> None:
    """Each command prints its process, its word and its variable."""
    (tmp_path / "stand_in.py").write_text(
        "import os, runpy, sys\n"
        "runpy.run_module = lambda *_, **__:"
        " print(os.getpid(), sys.argv[1], os.environ['NAME'], flush=True)\n",
        encoding="utf-8",
    )
    printed = run_program(
        tmp_path,
        "with stage_processes.StageProcesses() as processes:",
        "    for number in range(3):",
        "        waiting = processes._waiting and processes._waiting.process.pid",
        "        if number == 2:",
        "            os.kill(waiting, signal.SIGKILL)",
        "            psutil.wait_procs([psutil.Process(waiting)])",
        "        command = processes.start([f'fit{number}'], {'NAME': str(number)})",
        "        processes.prepare()",
        "        while command.poll(0.01) is None: pass",
        "        processes.forget(command)",
        "        print(command.pid == waiting, flush=True)",  # not while the command prints
        "    left = processes._waiting.process.pid",
        "print(psutil.pid_exists(left))",
    )
    lines = printed.splitlines()
    assert [line.split()[1:] for line in lines if "fit" in line] == [
        [f"fit{number}", str(number)] for number in range(3)
    ]
    assert [line for line in lines if "fit" not in line] == ["False", "True", "False", "False"]


def test_commands_without_a_seed_draw_numbers_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "stand_in.py").write_text(
        "import numpy, random, runpy, torch\n"
        "runpy.run_module = lambda *_, **__:"
        " print(numpy.random.rand(), random.random(), torch.rand(()).item(), flush=True)\n",
        encoding="utf-8",
    )
    printed = run_program(
        tmp_path,
        "with stage_processes.StageProcesses() as processes:",
        "    for _ in range(2):",
        "        processes.run(['fit'], {}, lambda: None)",
    )
    assert len(set(printed.split())) == 6


def test_a_process_that_waits_for_a_command_ends_with_its_parent(tmp_path: Path) -> None:
    (tmp_path / "stand_in.py").write_text("", encoding="utf-8")
    printed = run_program(
        tmp_path,
        "with stage_processes.StageProcesses() as processes:",
        "    processes.prepare()",
        "    print(processes._waiting.process.pid, flush=True)",
        "    os.kill(os.getpid(), signal.SIGKILL)",
    )
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(printed)).wait(timeout=60)


def test_a_command_that_says_that_it_has_ended_well_is_over_while_its_process_still_ends(
    tmp_path: Path,
) -> None:
    """The process waits for a thread of its own, and the last of all is waited for."""
    (tmp_path / "stand_in.py").write_text(
        "import os, runpy, sys, threading\n"
        "def run(*_, **__):\n"
        "    threading.Thread(target=lambda: open('pipe').close()).start()\n"
        "    sys.exit(int(sys.argv[1]))\n"
        "runpy.run_module = run\n",
        encoding="utf-8",
    )
    os.mkfifo(tmp_path / "pipe")
    printed = run_program(
        tmp_path,
        "with stage_processes.StageProcesses(overlaps=True) as processes:",
        "    command = processes.start(['0'], {})",
        "    while (code := command.poll()) is None: processes.wait(0.01)",
        "    print(code, command.process.is_alive())",
        "    processes.forget(command)",
        "    open('pipe', 'w').close()",
        "print(command.process.is_alive())",
        "with stage_processes.StageProcesses(overlaps=True) as processes:",
        "    command = processes.start(['1'], {})",
        "    open('pipe', 'w').close()",
        "    while (code := command.poll()) is None: processes.wait(0.01)",
        "    print(code, command.process.is_alive())",
        "    processes.forget(command)",
    )
    assert printed.splitlines() == ["0 True", "False", "1 False"]


def test_a_process_that_still_ends_or_whose_fork_server_is_gone_is_waited_for_without_a_busy_loop(
    tmp_path: Path,
) -> None:
    """Nothing that is waited for is ready before the end."""
    (tmp_path / "stand_in.py").write_text(
        "import os, runpy, sys, threading\n"
        "def run(*_, **__):\n"
        "    threading.Thread(target=lambda: open(sys.argv[1]).close()).start()\n"
        "    sys.exit(0)\n"
        "runpy.run_module = run\n",
        encoding="utf-8",
    )
    for name in ("still_ends", "lost"):
        os.mkfifo(tmp_path / name)
    printed = run_program(
        tmp_path,
        "from multiprocessing.connection import wait",
        "with stage_processes.StageProcesses() as processes:",
        "    command = processes.start(['still_ends'], {})",
        "    command._receiver.poll(None)  # it has said its code",
        "    print(wait(command.sources, 0))",
        "    open('still_ends', 'w').close()",
        "    print(wait(command.sources) == [command.process.sentinel])",
        "    while command.poll() is None: processes.wait(0.01)",
        "    processes.forget(command)",
        "    command = processes.start(['lost'], {})",
        "    command._receiver.poll(None)",
        "    for child in psutil.Process().children():",
        "        if 'forkserver' in ' '.join(child.cmdline()): child.kill()",
        "    wait([command.process.sentinel])",
        "    print(command.poll(), command.sources)",
        "    open('lost', 'w').close()",
        "    while (code := command.poll()) is None: processes.wait(0.01)",
        "    processes.forget(command)",
        "    print(code)",
    )
    assert printed.splitlines() == ["[]", "True", "None []", "0"]


def test_a_crash_after_a_command_has_said_that_it_has_ended_well_does_not_count(
    tmp_path: Path,
) -> None:
    """What it did is done and on record by then. A crash before that counts."""
    (tmp_path / "stand_in.py").write_text(
        "import os, runpy, sys, threading\n"
        "def run(*_, **__):\n"
        "    if sys.argv[1] == 'before': os.kill(os.getpid(), 11)\n"
        "    main = threading.main_thread()\n"
        "    def crash(): main.join(); os.kill(os.getpid(), 11)\n"
        "    threading.Thread(target=crash).start()\n"
        "    sys.exit(0)\n"
        "runpy.run_module = run\n",
        encoding="utf-8",
    )
    printed = run_program(
        tmp_path,
        "with stage_processes.StageProcesses(overlaps=True) as processes:",
        "    for word in ('after', 'before'):",
        "        command = processes.start([word], {})",
        "        while (code := command.poll()) is None: processes.wait(0.01)",
        "        processes.forget(command)",
        "        print(code)",
    )
    assert printed.splitlines() == ["0", "-11"]


def test_exit_functions_are_called_as_at_the_end_of_a_program(tmp_path: Path) -> None:
    (tmp_path / "stand_in.py").write_text(
        "import atexit, runpy, sys\n"
        "def run(*_, **__):\n"
        "    atexit.register(lambda: print('left', sys.argv[1], flush=True))\n"
        "    sys.exit(int(sys.argv[1]))\n"
        "runpy.run_module = run\n",
        encoding="utf-8",
    )
    printed = run_program(
        tmp_path,
        "with stage_processes.StageProcesses() as processes:",
        "    for code in ('0', '5'):",
        "        command = processes.start([code], {})",
        "        while command.poll() is None: processes.wait(0.01)",
        "        processes.forget(command)",
    )
    assert printed.splitlines() == ["left 0", "left 5"]


def test_a_process_that_never_ends_after_its_command_is_killed_and_the_code_that_it_told_counts(
    tmp_path: Path,
) -> None:
    """A process that it has started ends with it. Nothing kills one that ends in time."""
    (tmp_path / "stand_in.py").write_text(
        "import runpy, subprocess, sys, threading\n"
        "def run(*_, **__):\n"
        "    if sys.argv[2] == 'hangs':\n"
        "        child = subprocess.Popen(['sleep', '1000'], stdout=subprocess.DEVNULL)\n"
        "        open('child', 'w').write(str(child.pid))\n"
        "        threading.Thread(target=threading.Event().wait).start()\n"
        "    sys.exit(int(sys.argv[1]))\n"
        "runpy.run_module = run\n",
        encoding="utf-8",
    )
    printed = run_program(
        tmp_path,
        "import logging",
        "logging.getLogger('lightkit').addHandler(logging.StreamHandler(sys.stdout))",
        "for overlaps in (False, True):",
        "    with stage_processes.StageProcesses(overlaps=overlaps) as processes:",
        "        for words in (['0', 'hangs'], ['1', 'hangs'], ['0', 'ends']):",
        "            stage_processes._END_S = {'hangs': 0.5, 'ends': 120}[words[1]]",
        "            command = processes.start(words, {})",
        "            while (code := command.poll()) is None: processes.wait(0.01)",
        "            print(words, code)",
        "            processes.forget(command)",
        "            if words[1] == 'hangs' and not (overlaps and code == 0):",
        "                child = psutil.Process(int(open('child').read()))",
        "                print(command.process.is_alive(), child.wait(60))",
    )
    killed = "the process of `lightkit {}` had not ended 0.5 s after its work was done"
    lines = [line.partition(", and was killed")[0] for line in printed.splitlines()]
    assert lines[:7] == [
        *(killed.format(0), "['0', 'hangs'] 0", "False None"),
        *(killed.format(1), "['1', 'hangs'] 1", "False None"),
        "['0', 'ends'] 0",
    ]
    # overlapping, the first may be killed while the second still runs
    assert sorted(lines[7:]) == sorted(
        [
            *("['0', 'hangs'] 0", killed.format(0), killed.format(1)),
            *("['1', 'hangs'] 1", "False None", "['0', 'ends'] 0"),
        ]
    )


def test_a_process_that_never_ends_holds_up_no_command_that_runs_beside_it(tmp_path: Path) -> None:
    (tmp_path / "stand_in.py").write_text(
        "import runpy, sys, threading\n"
        "def run(*_, **__):\n"
        "    if sys.argv[1] == 'runs':\n"
        "        open('pipe').close()\n"
        "    else:\n"
        "        threading.Thread(target=threading.Event().wait).start()\n"
        "    sys.exit(0)\n"
        "runpy.run_module = run\n",
        encoding="utf-8",
    )
    os.mkfifo(tmp_path / "pipe")
    printed = run_program(
        tmp_path,
        "import logging",
        "logging.getLogger('lightkit').addHandler(logging.NullHandler())",
        "with stage_processes.StageProcesses(overlaps=True) as processes:",
        "    beside = processes.start(['runs'], {})",
        "    hanging = [processes.start([str(number)], {}) for number in range(2)]",
        "    for command in hanging:",
        "        while command.poll() is None: processes.wait(0.01)",
        "        processes.forget(command)",
        "    print(beside.poll(), [command.process.is_alive() for command in hanging])",
        "    stage_processes._END_S = 0.0",
        "    processes.wait(0.01)",
        "    print(beside.poll(), [command.process.is_alive() for command in hanging])",
        "    open('pipe', 'w').close()",
        "    while beside.poll() is None: processes.wait(0.01)",
        "    processes.forget(beside)",
        "    print(beside.poll())",
    )
    assert printed.splitlines() == ["None [True, True]", "None [False, False]", "0"]
