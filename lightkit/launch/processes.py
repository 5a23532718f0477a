"""Processes that were started here, with all that they have started: none of them outlives its launch."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import IO

import psutil

__all__ = ["Tree", "started_tree"]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class Tree:
    """A program and everything that descends from it.

    Args:
        program: The program.
    """

    def __init__(self, program: subprocess.Popen[bytes]) -> None:
        self.program = program
        self._before = {child.pid for child in psutil.Process().children()} - {program.pid}

    def poll(self) -> int | None:
        """Exit code of the program once it has ended; one above 128 where a signal ended it."""
        code = self.program.poll()
        return 128 - code if code is not None and code < 0 else code

    def living(self) -> list[psutil.Process]:
        """All of its processes that live, also those whose parent has ended."""
        return [process for process in _descendants() if process.pid not in self._before and _lives(process)]

    def terminate(self) -> None:
        """Ask the program to end; it ends what it has started."""
        if self.program.poll() is None:
            self.program.terminate()

    def end(self, *, timeout_s: float) -> int:
        """Wait for the last process, then kill what is left.

        Args:
            timeout_s: Seconds to wait.

        Returns:
            Number of processes that had to be killed.
        """
        left = self._outlasting(self.living(), timeout_s)
        num_killed = 0
        while left := [process for process in {*left, *self.living()} if _lives(process)]:
            for process in left:
                num_killed += _sent(process, signal.SIGKILL)
            left = self._outlasting(left, 5)
        self.program.wait()
        return num_killed

    def _outlasting(self, processes: Sequence[psutil.Process], timeout_s: float) -> list[psutil.Process]:
        """Wait for processes; the program's own end is left to `Popen`, which knows no exit code that psutil took."""
        deadline = time.monotonic() + timeout_s
        _, left = psutil.wait_procs([p for p in processes if p.pid != self.program.pid], timeout=timeout_s)
        try:
            self.program.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            left += [process for process in processes if process.pid == self.program.pid]
        return list(left)


def started_tree(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    stdout: IO[bytes] | int | None = None,
    stderr: IO[bytes] | int | None = None,
) -> Tree:
    """Start a program in a process group of its own, so that a terminal's Ctrl-C comes to this process alone.

    Args:
        command: The program and its arguments.
        environment: All of its variables.
        stdout: Where its standard output goes; to this process's where None.
        stderr: The same for standard error.
    """
    _adopt_orphans()
    program = subprocess.Popen(
        command,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        preexec_fn=_alone_and_mortal,  # noqa: PLW1509 (this process has no other thread yet)
    )
    return Tree(program)


def _alone_and_mortal() -> None:
    """In the child: a group of its own, and SIGTERM once the parent is gone, however that has ended."""
    os.setpgid(0, 0)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _adopt_orphans() -> None:
    """A grandchild whose parent has ended becomes this process's child, so that it can be found."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _descendants() -> list[psutil.Process]:
    try:
        found: list[psutil.Process] = psutil.Process().children(recursive=True)
    except psutil.NoSuchProcess:  # one has ended while they were counted
        return []
    return found


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _sent(process: psutil.Process, signum: int) -> bool:
    try:
        process.send_signal(signum)
    except psutil.NoSuchProcess:
        return False
    return True
