"""What a driver program of Spark or Ray is told to start, and how such a program ends."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from lightkit.errors import LightkitError
from lightkit.launch.commands import search_path
from lightkit.launch.guard import guarded
from lightkit.launch.ranks import LAUNCH

__all__ = ["Job", "LaunchFailed", "chatter_to", "first_line", "run_driver"]

DRIVER_GRACE_S = 6.0  # less than the supervisor gives


class LaunchFailed(LightkitError):
    """The cluster could not run all ranks to a good end."""


@dataclass(frozen=True)
class Job:
    """A command of lightkit that several processes run together.

    Args:
        words: Command line after `lightkit`.
        processes: Number of ranks; for Spark a negative number means that many on the driver.
        strategy: `horovod` or `ddp`.
        gpus: Whether each rank has a GPU.
        threads: Threads of each rank.
        environment: Variables that every rank must have.
        folder: Working directory.
        master: Address of the cluster; None for the one that the surroundings name, or this machine.
        max_failures: Ray: how often all ranks begin again once one is lost.
        timeout_s: Seconds in which all ranks must have been started.
        storage: Ray: folder for what it keeps.
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
    def from_json(cls, text: str) -> Job:
        """Read what `to_json` has written."""
        return cls(**json.loads(text))

    def to_json(self) -> str:
        """Write it as one word of a command line."""
        return json.dumps(asdict(self))

    @property
    def launch(self) -> Path:
        """Folder of the launch."""
        return Path(self.environment[LAUNCH])

    def rank_command(self) -> list[str]:
        """Give the command of one rank."""
        return [sys.executable, "-m", self.program, *self.words]

    def rank_environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Give the variables of one rank.

        Args:
            environ: Those of the process that starts it.
        """
        return {**environ, "PATH": search_path(environ), "OMP_NUM_THREADS": str(self.threads), **self.environment}


def run_driver(module: str, drive: Callable[[Job], int], arguments: Sequence[str]) -> int:
    """Run a driver program in a guarded process of its own and return the exit code.

    Args:
        module: Its module.
        drive: What the module does; returns 0 if all ranks ended well.
        arguments: The job as JSON; `--driver` before it in the guarded process.
    """
    if arguments[:1] != ["--driver"]:
        command = [sys.executable, "-m", module, "--driver", *arguments]
        code = guarded(command, grace_s=DRIVER_GRACE_S)
        return code if code in (0, 2) else 1
    try:
        return drive(Job.from_json(arguments[1]))
    except LightkitError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)  # noqa: T201 (this is a program)
        return error.exit_code


@contextmanager
def chatter_to(log: Path) -> Iterator[None]:
    """Send what this process and its children write to a file.

    Args:
        log: The file.
    """
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
    """Give the first line of what an error says, or its name where it says nothing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
