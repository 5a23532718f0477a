"""Starts the stand-ins of trials in the place of trainings.

Apart, since a stand-in itself is to start at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lightkit.cli.stage_processes import CommandProcess, StageProcesses

PROGRAM = str(Path(__file__).with_name("stand_in.py"))


class StandInProcess(CommandProcess):
    """A trial's process."""

    def __init__(self, args: Sequence[str], started: subprocess.Popen[bytes], output: Path) -> None:
        super().__init__(args, None, None)
        self._started = started
        self._output = output

    @property
    def pid(self) -> int | None:
        return self._started.pid

    def send_signal(self, signum: int) -> None:
        self._started.send_signal(signum)

    def poll(self, wait_s: float = 0.0) -> int | None:
        code = self._started.poll()
        if code is not None and self._output.exists():
            lines = self._output.read_text(encoding="utf-8").splitlines() or [""]
            self.reason = lines[-1].removeprefix("error: ")
        return code

    def end(self) -> None:
        self._started.terminate()
        self._started.wait()


class StandInProcesses(StageProcesses):
    """Starts stand-ins."""

    def start(
        self, args: Sequence[str], environment: Mapping[str, str], *, output: Path | None = None
    ) -> StandInProcess:
        assert output is not None
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("ab") as file:
            started = subprocess.Popen(
                [sys.executable, PROGRAM, "--trial", *args],
                env={**os.environ, **environment},
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        process = StandInProcess(args, started, output)
        self._running.append(process)
        return process
