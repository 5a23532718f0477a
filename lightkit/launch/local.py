"""Launchers on this machine, as trees of processes of which none outlives its launch, and their command lines."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import psutil

from lightkit.errors import LightkitError
from lightkit.launch.plan import THREADS, LaunchSettings, Plan

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def search_path(environ: Mapping[str, str] = os.environ) -> str:
    """Return a PATH on which this environment's programs come first: launchers look up `python` there."""
    own = str(Path(sys.executable).parent)
    others = [part for part in environ.get("PATH", os.defpath).split(os.pathsep) if part != own]
    return os.pathsep.join([own, *others])


def launcher_command(plan: Plan, words: Sequence[str], *, folder: Path, environment: Mapping[str, str]) -> list[str]:
    """Return the command that starts all ranks of a launch.

    Args:
        plan: The launch.
        words: The command line after `lightkit`, which each rank gets.
        folder: Folder of the launch.
        environment: Variables that each rank needs in addition to those of this process.
    """
    settings, rank = plan.settings, [sys.executable, "-m", "lightkit", *words]
    if plan.engine in ("spark", "ray"):
        threads = os.environ.get(THREADS) or "1"
        job = Job(plan, list(words), {THREADS: threads, **environment}, str(Path.cwd()), str(folder))
        return [sys.executable, "-m", f"lightkit.launch.{plan.engine}", json.dumps(asdict(job))]
    if plan.engine == "horovod":
        return [
            *(sys.executable, "-m", "horovod.runner.launch", f"--{settings.controller}"),
            *("--num-proc", str(plan.processes), "--hosts", settings.hosts or f"localhost:{plan.processes}"),
            *("--start-timeout", str(max(1, round(settings.timeout_s)))),
            *(["--network-interfaces", settings.network_interface] if settings.network_interface else []),
            *rank,
        ]
    if plan.engine == "torchrun":
        meeting = [
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", str(settings.rendezvous), "--rdzv-id", "lightkit"),
            *("--rdzv-conf", f"join_timeout={round(settings.timeout_s)}"),
        ]
        is_alone = settings.num_nodes[1] == 1 and settings.rendezvous is None
        return [
            *(sys.executable, "-m", "torch.distributed.run", *(["--standalone"] if is_alone else meeting)),
            *("--nnodes", str(settings.nodes), "--nproc-per-node", str(plan.local_processes)),
            *("--max-restarts", str(settings.max_restarts), "--monitor-interval", "0.5"),
            *("--log-dir", str(folder / "torchrun")),
            *("-m", "lightkit", *words),
        ]
    return rank


class ProcessTree:
    """A program and everything that descends from it, also processes whose parent has ended.

    It is started in a process group of its own, so that a terminal's Ctrl-C comes to this process alone.

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
        stdout: IO[bytes] | int | None = None,
        stderr: IO[bytes] | int | None = None,
        folder: str | None = None,
    ) -> None:
        libc = ctypes.CDLL(None) if sys.platform == "linux" else None

        def prepare() -> None:
            os.setpgid(0, 0)
            if libc is not None:  # SIGTERM once the parent is gone, however that has ended
                libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)

        if libc is not None:  # a process whose parent has ended becomes this one's child, so that it can be found
            libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
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
        """Return the exit code of the program once it has ended; 128 plus the number of a signal that ended it."""
        code = self.program.poll()
        return 128 - code if code is not None and code < 0 else code

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
        psutil.wait_procs([each for each in self._list_alive() if each.pid != self.program.pid], timeout=timeout_s)
        with suppress(subprocess.TimeoutExpired):
            self.program.wait(max(0.0, deadline_s - time.monotonic()))
        while left := self._list_alive():
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            self.program.poll()
            psutil.wait_procs([each for each in left if each.pid != self.program.pid], timeout=5)
        self.program.wait()

    def _list_alive(self) -> list[psutil.Process]:
        alive = []
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    if process.pid not in self._before and process.status() != psutil.STATUS_ZOMBIE:
                        alive.append(process)
        return alive


# -- driver programs of Spark and Ray ------------------------------------------------------------------------------


class LaunchError(LightkitError):
    """The cluster could not run all ranks to a good end."""


@dataclass(frozen=True)
class Job:
    """A command of lightkit that the processes of a cluster run together.

    Args:
        plan: The launch.
        words: Command line after `lightkit`.
        environment: Variables that every rank must have.
        folder: Working directory.
        launch: Folder of the launch.
    """

    plan: Plan
    words: list[str]
    environment: dict[str, str]
    folder: str
    launch: str

    @property
    def threads(self) -> int:
        """Threads of each rank."""
        outermost = self.environment[THREADS].partition(",")[0].strip()  # OpenMP takes one number a level
        return int(outermost) if outermost.isdigit() else 1

    def rank_environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Build the variables of one rank from those of the process that starts it."""
        return {**environ, "PATH": search_path(environ), THREADS: str(self.threads), **self.environment}


def run_driver(drive: Callable[[Job], None], text: str) -> int:
    """Run a driver program and return its exit code.

    Args:
        drive: Function that runs all ranks of a job.
        text: The job as JSON.
    """
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))  # what it has started ends too
    fields = json.loads(text)
    settings = LaunchSettings(**fields["plan"].pop("settings"))
    try:
        drive(Job(**{**fields, "plan": Plan(**fields["plan"], settings=settings)}))
    except LightkitError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)  # noqa: T201 (this is a program)
        return error.exit_code
    return 0


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its name if it has none."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
