"""What is imported is not searched for garbage, and not freed at the end of a command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

IMPORTING = """\
import gc, sys, weakref
from lightkit.cli.heap import freezing_imports

class Node:
    pass

def leave_garbage():
    node = Node()
    node.itself = node
    return weakref.ref(node)

if "torch" in sys.argv:
    sys.modules["torch"] = sys
with freezing_imports():
    print("paused" if not gc.isenabled() else "collecting")
print("frozen" if gc.get_freeze_count() else "not frozen")
left = leave_garbage()
gc.collect()
print("collected" if gc.isenabled() and left() is None else "kept")
"""
ENDING = """\
import atexit, os, sys, threading
from lightkit.cli.heap import allow_quick_end, end_quickly

class Last:
    def __del__(self):
        os.write(1, b"freed\\n")

last = Last()
atexit.register(print, "at exit")
if "not allowed" not in sys.argv:
    allow_quick_end()
if "a thread" in sys.argv:
    threading.Timer(0.2, print, ["thread"]).start()
if "a library" in sys.argv:
    sys.modules["mpi4py"] = sys
print("end")
end_quickly(7)
print("goes on")
sys.exit(7)
"""


SITE = """\
import atexit, os

class Last:
    def __del__(self, write=os.write):
        write(1, b"freed\\n")

last = Last()
atexit.register(print, "at exit")
"""


def run(
    *words: str, folder: Path | None = None, environ: Mapping[str, str] | None = None
) -> tuple[int, list[str]]:
    """Run Python; return its exit code and the lines that it prints."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, **(environ or {})},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode, done.stdout.splitlines()


def test_what_is_imported_is_frozen_and_what_is_created_later_is_collected() -> None:
    assert run("-c", IMPORTING) == (0, ["paused", "frozen", "collected"])


def test_where_torch_is_imported_already_nothing_is_frozen() -> None:
    assert run("-c", IMPORTING, "torch") == (0, ["collecting", "not frozen", "collected"])


@pytest.fixture
def command(tmp_path: Path) -> Path:
    """A program with the name of the script that pip installs."""
    path = tmp_path / "lightkit"
    path.write_text(ENDING, encoding="utf-8")
    return path


def test_a_quick_end_has_the_exit_code_the_output_and_the_exit_functions(command: Path) -> None:
    assert run(str(command)) == (7, ["end", "at exit"])


@pytest.mark.parametrize("reason", ["not allowed", "a thread", "a library"])
def test_a_process_that_needs_its_whole_end_has_it(reason: str, command: Path) -> None:
    code, lines = run(str(command), reason)
    assert code == 7
    assert lines[:2] == ["end", "goes on"]
    assert lines[-2:] == ["at exit", "freed"]


@pytest.mark.parametrize(
    "words", [["-c", ENDING], ["own.py"], ["-m", "own"]], ids=["text", "script", "module"]
)
def test_a_program_that_runs_a_command_goes_on_after_it(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(ENDING, encoding="utf-8")
    assert run(*words, folder=tmp_path) == (7, ["end", "goes on", "at exit", "freed"])


def test_a_profiler_that_runs_a_command_goes_on_after_it(command: Path) -> None:
    program = "import runpy, sys\nsys.argv[:] = sys.argv[1:]\n"
    program += "try:\n    runpy.run_path(sys.argv[0], run_name='__main__')\n"
    program += "except SystemExit:\n    print('profile')\n"
    (command.parent / "profiler.py").write_text(program, encoding="utf-8")
    _, lines = run("profiler.py", str(command), folder=command.parent)
    assert lines[:3] == ["end", "goes on", "profile"]


def test_a_fork_of_multiprocessing_ends_as_its_parent_expects(tmp_path: Path) -> None:
    program = """\
import multiprocessing, sys
from lightkit.cli.heap import allow_quick_end, end_quickly

def work(queue):
    allow_quick_end()
    end_quickly(7)
    queue.put("goes on")

if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=work, args=(queue,))
    process.start()
    print(queue.get(timeout=20))
    process.join()
"""
    (tmp_path / "forking.py").write_text(program, encoding="utf-8")
    assert run("forking.py", folder=tmp_path) == (0, ["goes on"])


@pytest.mark.slow
def test_a_training_by_classes_of_lightkit_ends_quickly(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITE, encoding="utf-8")
    environ = {"PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    words = ("-c", "lightkit:temperatures", "--trainer.max_epochs=1", "--quiet")
    assert run("-m", "lightkit", "--version", folder=tmp_path, environ=environ)[1][-1] == "freed"
    done = run("-m", "lightkit", "fit", *words, folder=tmp_path, environ=environ)
    assert done == (0, ["at exit"])
