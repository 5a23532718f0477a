"""A reader of a command's output that has left before the command ends with an error."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import sys
from lightkit import main
from lightkit.errors import GateFailed, Interrupted

def print_and_fail(words, watch):
    print("accuracy 0.5")
    raise {error}

main._dispatch = print_and_fail
sys.argv = ["lightkit", "gate"]
sys.exit(main.main())
"""
"""A command that fails after a line, which Python still holds."""


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        ("GateFailed('not good enough')", 4, "error: not good enough\n"),
        ("Interrupted(15)", 143, "interrupted by SIGTERM; there is nothing to resume\n"),
        ("SystemExit(3)", 3, ""),
    ],
    ids=["error", "signal", "exit"],
)
def test_an_error_after_the_reader_has_left_has_its_code_and_its_line_alone(
    error: str, code: int, says: str
) -> None:
    ended = _run_for_a_reader_that_has_left(SCRIPT.format(error=error))
    assert (ended.returncode, ended.stderr) == (code, says)


def test_an_error_that_nobody_reads_has_its_code() -> None:
    ended = _run_for_a_reader_that_has_left(
        SCRIPT.format(error="GateFailed('not good enough')"), reads_errors=False
    )
    assert ended.returncode == 4


def _run_for_a_reader_that_has_left(
    script: str, *, reads_errors: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a script whose standard output is closed.

    Without ``reads_errors`` its standard error, too.
    """
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb", buffering=0) as pipe:
        errors = subprocess.PIPE if reads_errors else pipe
        command = [sys.executable, "-c", script]
        return subprocess.run(
            command, stdout=pipe, stderr=errors, env=environ, check=False, text=True
        )


def test_a_thread_that_finds_the_disk_full_is_one_line_and_another_error_a_traceback() -> None:
    program = (
        "import errno, threading\n"
        "from lightkit.cli.console import configure_console\n"
        "configure_console('plain')\n"
        "def fail(error): raise error\n"
        "full = OSError(errno.ENOSPC, 'No space left on device', 'events')\n"
        "for error in (full, OSError(errno.EIO, 'Input/output error')):\n"
        "    thread = threading.Thread(target=fail, args=(error,), name='writer')\n"
        "    thread.start()\n"
        "    thread.join()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    first, second, *_, last = done.stderr.splitlines()
    assert first == (
        "warning: No space left on device: events cannot be written by the thread writer"
    )
    assert second == "Exception in thread writer:"
    assert last == "OSError: [Errno 5] Input/output error"
