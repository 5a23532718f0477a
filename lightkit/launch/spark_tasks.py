"""What runs inside Spark's tasks: each starts one rank and waits for its end.

Apart from the driver program, because Spark's workers import it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lightkit.launch.driver import Job

__all__ = ["RankFailed", "code_path", "ddp_task", "run_horovod_rank", "written_path"]

_RANK_GRACE_S = 5.0  # less than the driver's own


class RankFailed(Exception):
    """A rank has ended with another code than 0; Spark ends the others."""


def written_path(job: Job, rank: int) -> Path:
    """File that takes what a rank writes before it opens files of its own; it is there once the rank has started."""
    return job.launch / f"worker-{rank}.log"


def code_path(job: Job, rank: int) -> Path:
    """File that holds a rank's exit code once it has ended."""
    return job.launch / f"worker-{rank}.code"


def ddp_task(job: Job) -> Callable[[Iterator[Any]], Iterator[int]]:
    """Give the function that each task of a barrier stage runs for `ddp`.

    It sets the variables of torch's elastic agent itself. TorchDistributor runs that agent in each task; its exit
    barrier was seen to wait for 300 s after a run that had gone well, once in 16 runs (torch 2.15, pyspark 4.3).
    """

    def task(_rows: Iterator[Any]) -> Iterator[int]:
        from pyspark import BarrierTaskContext  # an extra

        context = BarrierTaskContext.get()
        hosts = [info.address.rpartition(":")[0] or info.address for info in context.getTaskInfos()]
        rank = context.partitionId()
        address, port, key = context.allGather(_meeting_point(hosts[0]) if rank == 0 else "")[0].split()
        environment = _elastic_variables(rank, len(hosts), address=address, port=port, key=key)
        if job.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = _gpu(context.resources(), hosts, rank)
        run_rank(job, rank, environment)
        yield rank

    return task


def run_horovod_rank(job_json: str) -> int:
    """Run one rank in a task of `horovod.spark.run`, which has set Horovod's variables."""
    rank = int(os.environ["HOROVOD_RANK"])
    run_rank(Job.from_json(job_json), rank, {})
    return rank


def run_rank(job: Job, rank: int, environment: dict[str, str]) -> None:
    """Run one rank under a guard, which ends it when Spark kills this worker.

    Args:
        job: What to run.
        rank: Its number.
        environment: Variables beside the job's own.

    Raises:
        RankFailed: If it ends with another code than 0, or was started before.
    """
    command = [sys.executable, "-m", "lightkit.launch.local", str(_RANK_GRACE_S), *job.rank_command]
    variables = {**job.rank_environment(os.environ), **environment}
    job.launch.mkdir(parents=True, exist_ok=True)
    if written_path(job, rank).exists():  # a cluster's own settings may repeat a stage
        raise RankFailed(f"rank {rank} has been started before; a launch is not begun again by Spark")
    with written_path(job, rank).open("ab") as log:
        ended = subprocess.run(
            command, cwd=job.folder, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False
        )
    code_path(job, rank).write_text(str(ended.returncode), encoding="utf-8")
    if ended.returncode != 0:
        raise RankFailed(f"rank {rank} ended with code {ended.returncode}")


def _meeting_point(host: str) -> str:
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    return f"{host} {port} {os.urandom(8).hex()}"


def _elastic_variables(rank: int, size: int, *, address: str, port: str, key: str) -> dict[str, str]:
    """Each rank is a node with one process, as TorchDistributor has it."""
    return {
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(rank),
        "GROUP_WORLD_SIZE": str(size),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(size),
        "TORCHELASTIC_RUN_ID": f"spark-{key}",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }


def _gpu(resources: dict[str, Any], hosts: Sequence[str], rank: int) -> str:
    """The GPU that Spark has given to this task; where Spark knows of none, the next one of the machine."""
    if "gpu" in resources:
        return str(resources["gpu"].addresses[0])
    return str(list(hosts[:rank]).count(hosts[rank]))
