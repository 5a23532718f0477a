"""The driver program of Spark: `python -m lightkit.launch.spark JOB`, with a `Job` as JSON.

One task of Spark is one rank: with Horovod through `horovod.spark.run`, with `ddp` in a barrier
stage.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightkit.errors import ConfigError
from lightkit.launch.cluster import (
    Job,
    RankFailed,
    choose_meeting_point,
    run_driver,
    torch_environment,
)
from lightkit.launch.process_tree import ProcessTree


def drive(job: Job) -> None:
    """Run all ranks.

    Raises:
        ConfigError: If pyspark, Java or Horovod is missing, or the master here cannot run all ranks
            at a time.
    """
    plan = job.plan
    settings = job.plan.settings
    check_installed(plan.strategy)
    master = settings.master or os.environ.get("MASTER", "")
    if (slots := count_slots(master)) is not None and slots < plan.processes:
        raise ConfigError(
            f"launch.processes: {plan.processes} processes need {plan.processes} slots of Spark at"
            f" a time, but {master} has {slots}. Give the cluster more"
            " cores, or ask for fewer processes."
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
    finally:
        context.stop()


def check_installed(strategy: str) -> None:
    """Check that pyspark, Java and Horovod are installed, before anything is started.

    Raises:
        ConfigError: If one is missing.
    """
    if find_spec("pyspark") is None:
        raise ConfigError("launch.engine: spark needs pyspark: pip install 'lightkit-train[spark]'")
    if strategy == "horovod" and find_spec("horovod") is None:
        raise ConfigError(
            "strategy: horovod needs horovod, which is not installed: make horovod builds it for"
            " the torch that is here"
        )
    home = os.environ.get("JAVA_HOME")
    if shutil.which(str(Path(home) / "bin" / "java") if home else "java") is None:
        raise ConfigError(
            "launch.engine: spark needs Java, 17 or newer for pyspark 4, and neither JAVA_HOME nor"
            " the PATH has one. Install it (Debian: apt-get install openjdk-17-jre-headless), or"
            " set JAVA_HOME."
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
        # a rank that has failed must not come back without the others
        "spark.task.maxFailures": "1",
        "spark.stage.maxConsecutiveAttempts": "1",
        "spark.python.worker.reuse": "false",
        # Spark looks once a second whether it can run all ranks at a time.
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": str(
            max(1, round(job.plan.settings.timeout_s))
        ),
    }
    builder = SparkSession.builder.appName("lightkit").config(map=settings)
    if master is not None:
        builder = builder.master(master)
    return builder.getOrCreate().sparkContext


# -- inside Spark's tasks, each of which starts one rank and waits for its end
# --------------------------------------


def _make_ddp_task(job: Job) -> Callable[[Iterator[Any]], Iterator[int]]:
    """Make the function that each task of a barrier stage runs for `ddp`."""

    def task(_rows: Iterator[Any]) -> Iterator[int]:
        from pyspark import BarrierTaskContext  # an extra

        context = BarrierTaskContext.get()
        hosts = [info.address.rpartition(":")[0] or info.address for info in context.getTaskInfos()]
        rank = context.partitionId()
        meeting_point = context.allGather(choose_meeting_point(hosts[0]) if rank == 0 else "")[0]
        # Each rank counts as a machine, for Spark may show it one GPU only.
        environment = torch_environment(
            rank, [str(each) for each in range(len(hosts))], meeting_point
        )
        if job.plan.uses_gpus:
            environment["CUDA_VISIBLE_DEVICES"] = _choose_gpu(context.resources(), hosts, rank)
        _run_rank(job, rank, environment)
        yield rank

    return task


def _choose_gpu(resources: dict[str, Any], hosts: Sequence[str], rank: int) -> str:
    """Return the GPU that Spark has given to this task.

    Where Spark knows of none, the next one of the machine.
    """
    return str(
        resources["gpu"].addresses[0]
        if "gpu" in resources
        else list(hosts[:rank]).count(hosts[rank])
    )


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
    path = job.output_path(rank)
    if path.exists():  # a cluster's own settings may repeat a stage
        raise RankFailed(
            f"rank {rank} has been started before; a launch is not begun again by Spark"
        )
    command = [sys.executable, "-m", "lightkit", *job.words]
    variables = {**job.rank_environment(os.environ), **environment}
    with path.open("ab") as log:
        tree = ProcessTree(
            command, environment=variables, stdout=log, stderr=log, folder=job.folder
        )
    if (code := tree.program.wait()) != 0:
        raise RankFailed(f"rank {rank} ended with code {code}")


# Spark's workers import functions from this module, which __main__ is not there
if __name__ == "__main__":
    sys.exit(run_driver(import_module("lightkit.launch.spark").drive, sys.argv[1]))
