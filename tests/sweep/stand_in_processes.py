"""Starts the stand-ins of trials in the place of trainings.

Apart, since a stand-in itself is to start at once. Each is a fork of the sweep, which has imported
all that a stand-in needs; it keeps no file of the sweep's open, as a new program would not.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from lightkit.cli.stage_processes import CommandProcess, StageProcesses
from tests.sweep.stand_in import main

_MOST_FILES = 1024  # open ones of a sweep


class StandInProcess(CommandProcess):
    """A trial's process."""

    def __init__(self, args: Sequence[str], pid: int, output: Path) -> None:
        super().__init__(args, None, None)
        self._pid = pid
        self._output = output
        self._exit_code: int | None = None

    @property
    def pid(self) -> int | None:
        return self._pid

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self._pid, signum)

    def poll(self, wait_s: float = 0.0) -> int | None:
        if self._exit_code is None:
            self._wait(os.WNOHANG)
        if self._exit_code is not None and self._output.exists():
            lines = self._output.read_text(encoding="utf-8").splitlines() or [""]
            self.reason = lines[-1].removeprefix("error: ")
        return self._exit_code

    def end(self) -> None:
        self.send_signal(signal.SIGTERM)
        if self._exit_code is None:
            self._wait(0)

    def _wait(self, options: int) -> None:
        pid, status = os.waitpid(self._pid, options)
        if pid:
            self._exit_code = os.waitstatus_to_exitcode(status)


class StandInProcesses(StageProcesses):
    """Starts stand-ins."""

    def start(
        self, args: Sequence[str], environment: Mapping[str, str], *, output: Path | None = None
    ) -> StandInProcess:
        assert output is not None
        output.parent.mkdir(parents=True, exist_ok=True)
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            _become_stand_in(args, environment, output)
        process = StandInProcess(args, pid, output)
        self._running.append(process)
        return process

    def prepare(self) -> None:
        """Prepare nothing: a stand-in starts at once."""


def _become_stand_in(args: Sequence[str], environment: Mapping[str, str], output: Path) -> NoReturn:
    """Make this fork of a sweep a stand-in, and run it to its end."""
    code = 1
    try:
        os.setsid()
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(signum, signal.SIG_DFL)
        os.closerange(3, _MOST_FILES)
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        os.environ.update(environment)
        code = main(["--trial", *args])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 (as Python does with what nothing catches)
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
