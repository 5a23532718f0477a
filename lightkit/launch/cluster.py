"""Parts that the drivers of Spark and Ray share.

The job, the variables of its ranks, the report of a failure.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightkit.errors import LightkitError
from lightkit.launch.plan import THREADS, LaunchSettings, Plan
from lightkit.launch.process_tree import search_path


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
        # OpenMP takes one number a level
        outermost = self.environment[THREADS].partition(",")[0].strip()
        return int(outermost) if outermost.isdigit() else 1

    def rank_environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Build the variables of one rank from those of the process that starts it."""
        return {
            **environ,
            "PATH": search_path(environ),
            THREADS: str(self.threads),
            **self.environment,
        }

    def output_path(self, rank: int) -> Path:
        """Name the file that takes what a rank writes before it opens files of its own."""
        return Path(self.launch) / f"worker-{rank}.log"


class RankFailed(Exception):
    """A rank has ended with another code than 0; the cluster ends the others."""


def choose_meeting_point(host: str) -> str:
    """Choose a free port of this machine at which the ranks meet.

    Also choose a name for this start of all ranks.
    """
    with socket.socket() as free:
        free.bind(("", 0))
        return f"{host} {free.getsockname()[1]} {os.urandom(8).hex()}"


def torch_environment(rank: int, hosts: Sequence[str], meeting_point: str) -> dict[str, str]:
    """Build the variables that torch's elastic agent would set.

    The agent itself is not used: its exit barrier was seen to wait for 300 s after a run that had
    gone well, once in 16 runs of Spark's TorchDistributor (torch 2.15, pyspark 4.3).

    Args:
        rank: Which rank it is.
        hosts: The machine of each rank, the same number of ranks on each.
        meeting_point: Result of `choose_meeting_point`.
    """
    address, port, key = meeting_point.split()
    machines = list(dict.fromkeys(hosts))
    return {
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        **dict.fromkeys(("RANK", "ROLE_RANK"), str(rank)),
        **dict.fromkeys(("WORLD_SIZE", "ROLE_WORLD_SIZE"), str(len(hosts))),
        "LOCAL_RANK": str(hosts[:rank].count(hosts[rank])),
        "LOCAL_WORLD_SIZE": str(hosts.count(hosts[rank])),
        "GROUP_RANK": str(machines.index(hosts[rank])),
        "GROUP_WORLD_SIZE": str(len(machines)),
        "TORCHELASTIC_RUN_ID": key,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }


def run_driver(drive: Callable[[Job], None], text: str) -> int:
    """Run a driver program and return its exit code.

    Args:
        drive: Function that runs all ranks of a job.
        text: The job as JSON.
    """
    # what it has started ends too
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
    fields = json.loads(text)
    settings = LaunchSettings(**fields["plan"].pop("settings"))
    job = Job(**{**fields, "plan": Plan(**fields["plan"], settings=settings)})
    try:
        drive(job)
    except LightkitError as error:
        message = str(error)
        code = error.exit_code
    except Exception as error:
        logging.exception("the launch failed")
        message = _describe_failure(job, str(error).strip() or type(error).__name__)
        code = 1
    else:
        return 0
    print(f"error: {message}", file=sys.stderr, flush=True)  # noqa: T201 (this is a program)
    return code


def _describe_failure(job: Job, text: str) -> str:
    if failed := re.search(r"RankFailed: (rank (\d+) .*)", text):
        path = job.output_path(int(failed[2]))
        output = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        return f"{failed[1]}\n{output}".rstrip()
    plan = job.plan
    where = f" (launch.master: {plan.settings.master})" if plan.settings.master else ""
    return f"{plan.engine.capitalize()} could not run the ranks{where}: {text.splitlines()[0]}"
