"""Launchers on this machine, as trees of processes of which none outlives its launch, and their command lines.

``python -m lightkit.launch.local SECONDS COMMAND...`` runs a command and ends it with all its descendants if it is
asked to end or its own parent is gone: Spark kills its workers without warning, and Java and Ray have children that
leave their session.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import psutil

from lightkit.errors import LightkitError
from lightkit.launch.plan import LaunchSettings, Plan
from lightkit.launch.ranks import LAUNCH, SUPERVISOR

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.1
_LEFTOVER_S = 2.0
_DRIVER_GRACE_S = 6.0  # less than the supervisor gives


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
        environment: Variables that each rank needs beside those of this process.
    """
    settings, rank = plan.settings, [sys.executable, "-m", "lightkit", *words]
    if plan.engine in ("spark", "ray"):
        threads = os.environ.get("OMP_NUM_THREADS") or "1"
        job = Job(plan, list(words), {"OMP_NUM_THREADS": threads, **environment}, str(Path.cwd()))
        return [sys.executable, "-m", f"lightkit.launch.{plan.engine}", job.to_json()]
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
            *("--log-dir", str(folder / f"torchrun-{environment.get(SUPERVISOR, '')}")),
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
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        stdout: IO[bytes] | int | None = None,
        stderr: IO[bytes] | int | None = None,
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
        tree = ProcessTree(command, environment=os.environ)
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
    """

    plan: Plan
    words: list[str]
    environment: dict[str, str]
    folder: str

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Read the result of `to_json`."""
        fields = json.loads(text)
        settings = LaunchSettings(**fields["plan"].pop("settings"))
        return cls(**{**fields, "plan": Plan(**fields["plan"], settings=settings)})

    def to_json(self) -> str:
        """Write it as one word of a command line."""
        return json.dumps(asdict(self))

    @property
    def launch(self) -> Path:
        """Folder of the launch."""
        return Path(self.environment[LAUNCH])

    @property
    def threads(self) -> int:
        """Threads of each rank."""
        outermost = self.environment["OMP_NUM_THREADS"].partition(",")[0].strip()  # OpenMP takes one number a level
        return int(outermost) if outermost.isdigit() else 1

    def rank_environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Build the variables of one rank from those of the process that starts it."""
        return {**environ, "PATH": search_path(environ), "OMP_NUM_THREADS": str(self.threads), **self.environment}


def run_driver(module: str, drive: Callable[[Job], int], arguments: Sequence[str]) -> int:
    """Run a driver program in a guarded process of its own and return the exit code.

    Args:
        module: Its module.
        drive: Function of the module that runs all ranks and returns the exit code.
        arguments: The job as JSON; `--driver` before it in the guarded process.
    """
    if arguments[:1] != ["--driver"]:
        code = run_guarded([sys.executable, "-m", module, "--driver", *arguments], grace_s=_DRIVER_GRACE_S)
        return code if code in (0, 2) else 1
    try:
        return drive(Job.from_json(arguments[1]))
    except LightkitError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)  # noqa: T201 (this is a program)
        return error.exit_code


@contextmanager
def redirect_output(log: Path) -> Iterator[None]:
    """Send the output of this process and its children to a file within a block."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    with log.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, descriptor in enumerate(kept, start=1):
            os.dup2(descriptor, number)
            os.close(descriptor)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its name if it has none."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


if __name__ == "__main__":
    sys.exit(run_guarded(sys.argv[2:], grace_s=float(sys.argv[1])))
