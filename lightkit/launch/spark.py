"""The driver program of Spark: `python -m lightkit.launch.spark JOB`, with a `Job` as JSON.

One task of Spark is one rank: with Horovod through `horovod.spark.run`, with `ddp` in a barrier stage.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightkit.errors import ConfigError
from lightkit.launch.local import Job, LaunchError, ProcessTree, first_line, run_driver


def drive(job: Job) -> None:
    """Run all ranks."""
    plan, settings = job.plan, job.plan.settings
    check_installed(plan.strategy)
    master = settings.master or os.environ.get("MASTER", "")
    if (slots := count_slots(master)) is not None and slots < plan.processes:
        raise ConfigError(
            f"launch.processes: {plan.processes} processes need {plan.processes} slots of Spark at a time, but "
            f"{master} has {slots}. Give the cluster more cores, or ask for fewer processes."
        )
    context = _make_context(job)
    try:
        if plan.strategy == "horovod":
            import horovod.spark  # an extra

            horovod.spark.run(
                _run_horovod_rank,
                args=(job,),
                num_proc=plan.processes,
                start_timeout=int(settings.timeout_s),
                use_gloo=True,
                use_mpi=False,
                verbose=0,
            )
        else:
            ranks = context.parallelize(range(plan.processes), plan.processes).barrier()
            ranks.mapPartitions(_make_ddp_task(job)).collect()
    except Exception as error:
        logging.exception("the launch failed")
        if failed := re.search(r"RankFailed: (rank (\d+) .*)", str(error)):
            output = _output_path(job, int(failed[2])).read_text(encoding="utf-8", errors="replace").rstrip()
            raise LaunchError(f"{failed[1]}\n{output}".rstrip()) from error
        raise LaunchError(f"Spark could not run the ranks: {first_line(error)}") from error
    finally:
        context.stop()


def check_installed(strategy: str) -> None:
    """Check that pyspark, Java and Horovod are installed, before anything is started.

    Raises:
        ConfigError: If one is missing.
    """
    if find_spec("pyspark") is None:
        raise ConfigError("launch.engine: spark needs pyspark: pip install 'lightkit[spark]'")
    if strategy == "horovod" and find_spec("horovod") is None:
        raise ConfigError(
            "strategy: horovod needs horovod, which is not installed: make horovod builds it for the torch that is here"
        )
    home = os.environ.get("JAVA_HOME")
    if shutil.which(str(Path(home) / "bin" / "java") if home else "java") is None:
        raise ConfigError(
            "launch.engine: spark needs Java, 17 or newer for pyspark 4, and neither JAVA_HOME nor the PATH has one. "
            "Install it (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME."
        )


def count_slots(master: str) -> int | None:
    """Count the tasks that a master on this machine can run at a time; None for a cluster."""
    if match := re.fullmatch(r"local(?:\[\s*(\d+|\*)\s*(?:,\s*\d+\s*)?\])?", master):
        cores = match[1] or "1"
        return (os.cpu_count() or 1) if cores == "*" else int(cores)
    if match := re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]", master):
        return int(match[1]) * int(match[2])
    return None


def _make_context(job: Job) -> Any:
    """Return the running Spark, or start one."""
    import pyspark  # an extra, and slow to load
    from pyspark.sql import SparkSession

    master = job.plan.settings.master
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PATH"] = job.rank_environment(os.environ)["PATH"]
    if "local-cluster" in (master or ""):  # its workers ask for it
        os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    settings: dict[str, bool | float | int | str | None] = {
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.task.maxFailures": "1",  # a rank that has failed must not come back without the others
        "spark.stage.maxConsecutiveAttempts": "1",
        "spark.python.worker.reuse": "false",
        # Spark looks once a second whether it can run all ranks at a time.
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": str(max(1, round(job.plan.settings.timeout_s))),
    }
    builder = SparkSession.builder.appName("lightkit").config(map=settings)
    if master is not None:
        builder = builder.master(master)
    try:
        return builder.getOrCreate().sparkContext
    except Exception as error:
        logging.exception("Spark did not start")
        where = master or "the master that SPARK_HOME or MASTER names"
        raise LaunchError(f"launch.master: Spark at {where} did not start: {first_line(error)}") from error


# -- inside Spark's tasks, each of which starts one rank and waits for its end --------------------------------------


class RankFailed(Exception):
    """A rank has ended with another code than 0; Spark ends the others."""


def _output_path(job: Job, rank: int) -> Path:
    """File that takes what a rank writes before it opens files of its own."""
    return Path(job.launch) / f"worker-{rank}.log"


def _make_ddp_task(job: Job) -> Callable[[Iterator[Any]], Iterator[int]]:
    """Make the function that each task of a barrier stage runs for `ddp`: each rank is a node with one process.

    It sets the variables of torch's elastic agent itself. TorchDistributor runs that agent in each task; its exit
    barrier was seen to wait for 300 s after a run that had gone well, once in 16 runs (torch 2.15, pyspark 4.3).
    """

    def task(_rows: Iterator[Any]) -> Iterator[int]:
        from pyspark import BarrierTaskContext  # an extra

        context = BarrierTaskContext.get()
        hosts = [info.address.rpartition(":")[0] or info.address for info in context.getTaskInfos()]
        rank, size = context.partitionId(), str(len(hosts))
        meeting = ""
        if rank == 0:
            with socket.socket() as free:
                free.bind(("", 0))
                meeting = f"{hosts[0]} {free.getsockname()[1]} {os.urandom(8).hex()}"
        address, port, key = context.allGather(meeting)[0].split()
        environment = {
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
            **dict.fromkeys(("RANK", "GROUP_RANK", "ROLE_RANK"), str(rank)),
            **dict.fromkeys(("WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"), size),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "TORCHELASTIC_RUN_ID": f"spark-{key}",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
        }
        if job.plan.uses_gpus:
            environment["CUDA_VISIBLE_DEVICES"] = _choose_gpu(context.resources(), hosts, rank)
        _run_rank(job, rank, environment)
        yield rank

    return task


def _choose_gpu(resources: dict[str, Any], hosts: Sequence[str], rank: int) -> str:
    """Return the GPU that Spark has given to this task; where Spark knows of none, the next one of the machine."""
    return str(resources["gpu"].addresses[0] if "gpu" in resources else list(hosts[:rank]).count(hosts[rank]))


def _run_horovod_rank(job: Job) -> int:
    """Run one rank in a task of `horovod.spark.run`, which has set Horovod's variables."""
    rank = int(os.environ["HOROVOD_RANK"])
    _run_rank(job, rank, {})
    return rank


def _run_rank(job: Job, rank: int, environment: dict[str, str]) -> None:
    """Run one rank, which gets SIGTERM when Spark kills this worker.

    Args:
        job: What to run.
        rank: Its number.
        environment: Variables in addition to the job's own.

    Raises:
        RankFailed: If it ends with another code than 0, or was started before.
    """
    path = _output_path(job, rank)
    if path.exists():  # a cluster's own settings may repeat a stage
        raise RankFailed(f"rank {rank} has been started before; a launch is not begun again by Spark")
    command = [sys.executable, "-m", "lightkit", *job.words]
    variables = {**job.rank_environment(os.environ), **environment}
    with path.open("ab") as log:
        tree = ProcessTree(command, environment=variables, stdout=log, stderr=log, folder=job.folder)
    if (code := tree.program.wait()) != 0:
        raise RankFailed(f"rank {rank} ended with code {code}")


if __name__ == "__main__":  # Spark's workers import functions from this module, which __main__ is not there
    sys.exit(run_driver(import_module("lightkit.launch.spark").drive, sys.argv[1]))
