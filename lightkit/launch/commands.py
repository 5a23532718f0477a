"""The command lines of the launchers that start all ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lightkit.launch.plan import Plan
from lightkit.launch.ranks import SUPERVISOR

__all__ = ["launch_command", "search_path"]


def launch_command(plan: Plan, words: Sequence[str], *, folder: Path, environment: Mapping[str, str]) -> list[str]:
    """Give the command that starts all ranks of a launch.

    Args:
        plan: The launch.
        words: The command line after `lightkit`, which each rank gets.
        folder: Folder of the launch.
        environment: Variables that each rank needs beside those of this process.
    """
    rank = [sys.executable, "-m", "lightkit", *words]
    if plan.engine == "horovod":
        return [*_horovodrun(plan), *rank]
    if plan.engine == "torchrun":
        return [*_torchrun(plan, folder, environment), "-m", "lightkit", *words]
    if plan.engine in ("spark", "ray"):
        return [sys.executable, "-m", f"lightkit.launch.{plan.engine}", _job(plan, words, folder, environment)]
    return rank


def search_path(environ: Mapping[str, str] = os.environ) -> str:
    """Give a PATH on which this environment's programs come first: launchers look up `python` there."""
    own = str(Path(sys.executable).parent)
    others = [part for part in environ.get("PATH", os.defpath).split(os.pathsep) if part != own]
    return os.pathsep.join([own, *others])


def _horovodrun(plan: Plan) -> list[str]:
    settings = plan.settings
    hosts = settings.hosts or f"localhost:{plan.processes}"
    return [
        sys.executable,
        "-m",
        "horovod.runner.launch",
        f"--{settings.controller}",
        "--num-proc",
        str(plan.processes),
        "--hosts",
        hosts,
        "--start-timeout",
        str(max(1, round(settings.timeout_s))),
        *(["--network-interfaces", settings.network_interface] if settings.network_interface else []),
    ]


def _torchrun(plan: Plan, folder: Path, environment: Mapping[str, str]) -> list[str]:
    settings = plan.settings
    where = (
        ["--standalone"]
        if settings.num_nodes[1] == 1 and settings.rendezvous is None
        else [
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", str(settings.rendezvous)),
            *("--rdzv-id", "lightkit", "--rdzv-conf", f"join_timeout={round(settings.timeout_s)}"),
        ]
    )
    return [
        *(sys.executable, "-m", "torch.distributed.run", *where),
        *("--nnodes", str(settings.nodes), "--nproc-per-node", str(plan.local_processes)),
        *("--max-restarts", str(settings.max_restarts), "--monitor-interval", "0.5"),
        *("--log-dir", str(folder / f"torchrun-{environment.get(SUPERVISOR, '')}")),
    ]


def _job(plan: Plan, words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    # Here, not above: the job's module belongs to two engines only.
    from lightkit.launch.job import Job

    job = Job(
        words=list(words),
        processes=plan.processes,
        strategy="horovod" if plan.strategy == "horovod" else "ddp",
        gpus=plan.uses_gpus,
        threads=_number_of(environment.get("OMP_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS") or "1"),
        environment=dict(environment),
        folder=str(Path.cwd()),
        master=plan.settings.master,
        max_failures=plan.settings.max_failures,
        timeout_s=plan.settings.timeout_s,
        storage=str(folder / "ray"),
    )
    return job.to_json()


def _number_of(threads: str) -> int:
    """Threads of the outermost level: OpenMP takes a list of numbers, one a level."""
    first = threads.partition(",")[0].strip()
    return int(first) if first.isdigit() else 1
