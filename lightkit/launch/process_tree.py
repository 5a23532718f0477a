"""A program on this machine with all that it starts, none of which outlives it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.05
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def search_path(environ: Mapping[str, str] = os.environ) -> str:
    """Return a PATH on which this environment's programs come first.

    Launchers look up `python` there.
    """
    own = str(Path(sys.executable).parent)
    others = [part for part in environ.get("PATH", os.defpath).split(os.pathsep) if part != own]
    return os.pathsep.join([own, *others])


def end_with_parent() -> None:
    """Have this process get SIGTERM once its parent is gone, however that has ended; on Linux."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


class ProcessTree:
    """A program and everything that descends from it, also processes whose parent has ended.

    It is started in a process group of its own, so that a terminal's Ctrl-C comes to this process
    alone.

    Args:
        command: The program and its arguments.
        environment: All of its variables.
        stdout: Its standard output; that of this process if None.
        stderr: The same for standard error.
        folder: Its working directory; that of this process if None.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        stdout: IO[bytes] | None = None,
        stderr: IO[bytes] | None = None,
        folder: str | None = None,
    ) -> None:

        def prepare() -> None:
            os.setpgid(0, 0)
            end_with_parent()

        # a process whose parent has ended becomes this one's child, so that it can be found
        if _libc is not None:
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._before = {child.pid for child in psutil.Process().children()}
        self.program = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            preexec_fn=prepare,  # noqa: PLW1509 (this process has no other thread yet)
        )

    def poll(self) -> int | None:
        """Return the exit code of the program once it has ended.

        128 plus the number of a signal that ended it.
        """
        code = self.program.poll()
        return 128 - code if code is not None and code < 0 else code

    def end(self, *, timeout_s: float) -> None:
        """Ask the program to end, wait for its last process, then kill those that are left.

        Args:
            timeout_s: Seconds to wait.
        """
        self.program.terminate()
        deadline_s = time.monotonic() + timeout_s
        while left := self._list_alive():
            if time.monotonic() >= deadline_s:
                for process in left:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
            time.sleep(_POLL_S)
        self.program.wait()

    def _list_alive(self) -> list[psutil.Process]:
        alive = []
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    if process.pid not in self._before and process.status() != psutil.STATUS_ZOMBIE:
                        alive.append(process)
        return alive
