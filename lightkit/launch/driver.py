"""The job of a driver program of Spark or Ray, and the process in which such a program runs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from lightkit.errors import LightkitError
from lightkit.launch.local import run_guarded, search_path
from lightkit.launch.plan import Plan
from lightkit.launch.ranks import LAUNCH

__all__ = ["Job", "LaunchError", "driver_command", "first_line", "redirect_output", "run_driver"]

_DRIVER_GRACE_S = 6.0  # less than the supervisor gives


class LaunchError(LightkitError):
    """The cluster could not run all ranks to a good end."""


@dataclass(frozen=True)
class Job:
    """A command of lightkit that several processes run together.

    Args:
        words: Command line after `lightkit`.
        processes: Number of ranks; for Spark a negative number means that many on the driver.
        strategy: `horovod` or `ddp`.
        environment: Variables that every rank must have.
        folder: Working directory.
        gpus: Whether each rank has a GPU.
        threads: Threads of each rank.
        master: Address of the cluster; None for that of the environment, or this machine.
        max_failures: Ray: how often all ranks begin again once one is lost.
        timeout_s: Seconds in which all ranks must have been started.
        storage: Ray: folder for its files.
        program: Package that each rank runs, as `python -m` does; on Ray, the `main` in its `__main__`.
    """

    words: list[str]
    processes: int
    strategy: str
    environment: dict[str, str]
    folder: str
    gpus: bool = False
    threads: int = 1
    master: str | None = None
    max_failures: int = 0
    timeout_s: float = 300.0
    storage: str = ""
    program: str = "lightkit"

    @classmethod
    def of(cls, plan: Plan, words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Job:
        """Make the job of a plan. The arguments are those of `local.launcher_command`."""
        threads = environment.get("OMP_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS") or "1"
        outermost = threads.partition(",")[0].strip()  # OpenMP takes a list of numbers, one a level
        return cls(
            words=list(words),
            processes=plan.processes,
            strategy="horovod" if plan.strategy == "horovod" else "ddp",
            gpus=plan.uses_gpus,
            threads=int(outermost) if outermost.isdigit() else 1,
            environment=dict(environment),
            folder=str(Path.cwd()),
            master=plan.settings.master,
            max_failures=plan.settings.max_failures,
            timeout_s=plan.settings.timeout_s,
            storage=str(folder / "ray"),
        )

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Read the result of `to_json`."""
        return cls(**json.loads(text))

    def to_json(self) -> str:
        """Write it as one word of a command line."""
        return json.dumps(asdict(self))

    @property
    def launch(self) -> Path:
        """Folder of the launch."""
        return Path(self.environment[LAUNCH])

    @property
    def rank_command(self) -> list[str]:
        """Command of one rank."""
        return [sys.executable, "-m", self.program, *self.words]

    def rank_environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Build the variables of one rank from those of the process that starts it."""
        return {**environ, "PATH": search_path(environ), "OMP_NUM_THREADS": str(self.threads), **self.environment}


def driver_command(plan: Plan, words: Sequence[str], *, folder: Path, environment: Mapping[str, str]) -> list[str]:
    """Return the command of the driver program. The arguments are those of `local.launcher_command`."""
    job = Job.of(plan, words, folder, environment)
    return [sys.executable, "-m", f"lightkit.launch.{plan.engine}", job.to_json()]


def run_driver(module: str, drive: Callable[[Job], int], arguments: Sequence[str]) -> int:
    """Run a driver program in a guarded process of its own and return the exit code.

    Args:
        module: Its module.
        drive: Function of the module that returns 0 if all ranks ended well.
        arguments: The job as JSON; `--driver` before it in the guarded process.
    """
    if arguments[:1] != ["--driver"]:
        command = [sys.executable, "-m", module, "--driver", *arguments]
        code = run_guarded(command, grace_s=_DRIVER_GRACE_S)
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
