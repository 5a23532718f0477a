"""Launchers on this machine, as trees of processes of which none outlives its launch.

``python -m lightkit.launch.local SECONDS COMMAND...`` runs a command and ends it with all its descendants if it is
asked to end or its own parent is gone: Spark kills its workers without warning, and Java and Ray have children that
leave their session.
"""

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

from lightkit.launch.plan import Plan
from lightkit.launch.ranks import SUPERVISOR

__all__ = ["ProcessTree", "launcher_command", "run_guarded", "search_path", "start_tree"]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.1
_LEFTOVER_S = 2.0


def search_path(environ: Mapping[str, str] = os.environ) -> str:
    """Return a PATH on which this environment's programs come first: launchers look up `python` there."""
    own = str(Path(sys.executable).parent)
    others = [part for part in environ.get("PATH", os.defpath).split(os.pathsep) if part != own]
    return os.pathsep.join([own, *others])


def launcher_command(plan: Plan, words: Sequence[str], *, folder: Path, environment: Mapping[str, str]) -> list[str]:
    """Return the command that starts all ranks of a launch, unless it is one of Spark or Ray.

    Args:
        plan: The launch.
        words: The command line after `lightkit`, which each rank gets.
        folder: Folder of the launch.
        environment: Variables that each rank needs beside those of this process.
    """
    settings, rank = plan.settings, [sys.executable, "-m", "lightkit", *words]
    if plan.engine == "horovod":
        return [
            *(sys.executable, "-m", "horovod.runner.launch", f"--{settings.controller}"),
            *("--num-proc", str(plan.processes), "--hosts", settings.hosts or f"localhost:{plan.processes}"),
            *("--start-timeout", str(max(1, round(settings.timeout_s)))),
            *(["--network-interfaces", settings.network_interface] if settings.network_interface else []),
            *rank,
        ]
    if plan.engine == "torchrun":
        is_alone = settings.num_nodes[1] == 1 and settings.rendezvous is None
        endpoint = ["--rdzv-backend", "c10d", "--rdzv-endpoint", str(settings.rendezvous), "--rdzv-id", "lightkit"]
        return [
            *(sys.executable, "-m", "torch.distributed.run"),
            *(
                ["--standalone"]
                if is_alone
                else [*endpoint, "--rdzv-conf", f"join_timeout={round(settings.timeout_s)}"]
            ),
            *("--nnodes", str(settings.nodes), "--nproc-per-node", str(plan.local_processes)),
            *("--max-restarts", str(settings.max_restarts), "--monitor-interval", "0.5"),
            *("--log-dir", str(folder / f"torchrun-{environment.get(SUPERVISOR, '')}")),
            *("-m", "lightkit", *words),
        ]
    return rank


class ProcessTree:
    """A program and everything that descends from it, also processes whose parent has ended.

    Args:
        program: The program.
    """

    def __init__(self, program: subprocess.Popen[bytes]) -> None:
        self.program = program
        self._before = {child.pid for child in psutil.Process().children()} - {program.pid}

    def poll(self) -> int | None:
        """Return the exit code of the program once it has ended; 128 plus the number of a signal that ended it."""
        code = self.program.poll()
        return 128 - code if code is not None and code < 0 else code

    def list_alive(self) -> list[psutil.Process]:
        """List all of its processes that are alive."""
        alive = []
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    if process.pid not in self._before and process.status() != psutil.STATUS_ZOMBIE:
                        alive.append(process)
        return alive

    def terminate(self) -> None:
        """Ask the program to end; it ends what it has started."""
        if self.program.poll() is None:
            self.program.terminate()

    def end(self, *, timeout_s: float) -> None:
        """Wait for the last process, then kill the others.

        Args:
            timeout_s: Seconds to wait.
        """
        deadline_s = time.monotonic() + timeout_s
        # `Popen` waits for the program: it knows no exit code that psutil has collected.
        psutil.wait_procs([each for each in self.list_alive() if each.pid != self.program.pid], timeout=timeout_s)
        with suppress(subprocess.TimeoutExpired):
            self.program.wait(max(0.0, deadline_s - time.monotonic()))
        while left := self.list_alive():
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            self.program.poll()
            psutil.wait_procs([each for each in left if each.pid != self.program.pid], timeout=5)
        self.program.wait()


def start_tree(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    stdout: IO[bytes] | int | None = None,
    stderr: IO[bytes] | int | None = None,
) -> ProcessTree:
    """Start a program in a process group of its own, so that a terminal's Ctrl-C comes to this process alone.

    Args:
        command: The program and its arguments.
        environment: All of its variables.
        stdout: Its standard output; that of this process if None.
        stderr: The same for standard error.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def prepare() -> None:
        os.setpgid(0, 0)
        if libc is not None:  # SIGTERM once the parent is gone, however that has ended
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)

    if libc is not None:  # a process whose parent has ended becomes this one's child, so that it can be found
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    program = subprocess.Popen(
        command,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        preexec_fn=prepare,  # noqa: PLW1509 (this process has no other thread yet)
    )
    return ProcessTree(program)


def run_guarded(command: Sequence[str], *, grace_s: float) -> int:
    """Run a command to its end and return its exit code, 128 plus the signal's number if one killed it.

    On SIGTERM or SIGINT, or when this process's parent is gone, the command gets SIGTERM; all its descendants that are
    left ``grace_s`` later are killed. Those that are left after its own end are killed too.

    Args:
        command: Program and arguments.
        grace_s: Seconds that it has to end by itself.
    """
    parent, requests = os.getppid(), list[int]()
    asking = (signal.SIGTERM, signal.SIGINT)
    before = {signum: signal.signal(signum, lambda signum, _: requests.append(signum)) for signum in asking}
    try:
        tree = start_tree(command, environment=os.environ)
        while tree.poll() is None and not requests and os.getppid() == parent:
            time.sleep(_POLL_S)
        has_ended = tree.poll() is not None
        tree.terminate()
        tree.end(timeout_s=_LEFTOVER_S if has_ended else grace_s)
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    code = tree.poll()
    assert code is not None
    return code if has_ended else code or 128 + signal.SIGTERM  # a command that was asked to end is not done


if __name__ == "__main__":
    sys.exit(run_guarded(sys.argv[2:], grace_s=float(sys.argv[1])))
