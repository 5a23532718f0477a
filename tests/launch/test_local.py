"""Programs that are watched over, and how they ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

STUBBORN = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
OBEDIENT = "import time; print(flush=True); time.sleep(60)"
CONTENT = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit()); print(flush=True); time.sleep(60)"
)


@pytest.mark.parametrize(
    ("program", "code"),
    [
        pytest.param(STUBBORN, 128 + signal.SIGKILL, id="killed"),
        pytest.param(OBEDIENT, 128 + signal.SIGTERM, id="ended"),
        pytest.param(CONTENT, 128 + signal.SIGTERM, id="says that all is well"),
    ],
)
def test_a_program_that_a_guard_ends_has_the_exit_code_of_its_end(program: str, code: int) -> None:
    command = [sys.executable, "-m", "lightkit.launch.local", "0.3", sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as guard:
        assert guard.stdout is not None
        guard.stdout.readline()
        os.kill(guard.pid, signal.SIGTERM)
        assert guard.wait(timeout=60) == code
