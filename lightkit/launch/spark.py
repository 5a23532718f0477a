"""The driver program of Spark: `python -m lightkit.launch.spark JOB`, with a `Job` as JSON.

One task of Spark is one rank: with Horovod through `horovod.spark.run`, with `ddp` in a barrier stage. A negative
number of processes stays on the driver, as HorovodRunner has it, and needs no Spark.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightkit.errors import ConfigError
from lightkit.launch import spark_tasks
from lightkit.launch.driver import Job, LaunchError, first_line, redirect_output, run_driver

__all__ = ["check_installed", "check_slots", "count_slots", "drive", "driver_ranks_command"]

_GROUP = "lightkit"


def drive(job: Job) -> int:
    """Run all ranks and return 0 if all of them ended well."""
    if job.processes < 0:
        environment = {**job.rank_environment(os.environ), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        return subprocess.run(driver_ranks_command(job), cwd=job.folder, env=environment, check=False).returncode
    check_installed(job)
    check_slots(job.master or os.environ.get("MASTER", ""), job.processes)
    log = job.launch / "spark.log"
    with redirect_output(log):
        context = _make_context(job, log)
        late: list[int] = []

        def cancel_if_late() -> None:
            late.extend(r for r in range(job.processes) if not spark_tasks.written_path(job, r).exists())
            if late:
                context.cancelJobGroup(_GROUP)

        timer = threading.Timer(job.timeout_s, cancel_if_late)
        timer.daemon = True
        timer.start()
        try:
            _run(context, job)
        except Exception as error:
            logging.exception("the launch failed")
            raise LaunchError(_describe(job, error, late=late, log=log)) from error
        finally:
            timer.cancel()
            context.stop()
    return 0


def driver_ranks_command(job: Job) -> list[str]:
    """Return the command that runs ``-job.processes`` ranks on this machine."""
    words, processes = ["lightkit", *job.words], str(-job.processes)
    if job.strategy == "horovod":
        return [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", processes, sys.executable, "-m", *words]
    elastic = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", processes]
    return [*elastic, "-m", *words]


def check_installed(job: Job) -> None:
    """Check that pyspark, Java and Horovod are installed, before anything is started.

    Raises:
        ConfigError: If one is missing.
    """
    if find_spec("pyspark") is None:
        raise ConfigError("launch.engine: spark needs pyspark: pip install 'lightkit[spark]'")
    if job.strategy == "horovod" and find_spec("horovod") is None:
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


def check_slots(master: str, processes: int) -> None:
    """Check that a master on this machine can run all ranks at a time.

    Raises:
        ConfigError: If it cannot.
    """
    slots = count_slots(master)
    if slots is not None and slots < processes:
        raise ConfigError(
            f"launch.processes: {processes} processes need {processes} slots of Spark at a time, but {master} has "
            f"{slots}. Give the cluster more cores, or ask for fewer processes."
        )


def _make_context(job: Job, log: Path) -> Any:
    """Return the running Spark, or start one."""
    import pyspark  # an extra, and slow to load
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PATH"] = job.rank_environment(os.environ)["PATH"]
    if "local-cluster" in (job.master or ""):  # its workers ask for it
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
        "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": str(max(1, round(job.timeout_s))),
    }
    builder = SparkSession.builder.appName("lightkit").config(map=settings)
    if job.master is not None:
        builder = builder.master(job.master)
    try:
        return builder.getOrCreate().sparkContext
    except Exception as error:
        logging.exception("Spark did not start")
        where = job.master or "the master that SPARK_HOME or MASTER names"
        raise LaunchError(
            f"launch.master: Spark at {where} did not start: {first_line(error)}\nIts log is {log}"
        ) from error


def _run(context: Any, job: Job) -> None:
    if job.strategy == "horovod":
        import horovod.spark  # an extra

        horovod.spark.run(
            spark_tasks.run_horovod_rank,
            args=(job.to_json(),),
            num_proc=job.processes,
            start_timeout=int(job.timeout_s),
            use_gloo=True,
            use_mpi=False,
            verbose=0,
        )
        return
    context.setJobGroup(_GROUP, "lightkit", interruptOnCancel=True)
    ranks = context.parallelize(range(job.processes), job.processes).barrier()
    ranks.mapPartitions(spark_tasks.ddp_task(job)).collect()


def _describe(job: Job, error: Exception, *, late: list[int], log: Path) -> str:
    """Describe why a launch failed."""
    codes = {}
    for rank in range(job.processes):
        path = spark_tasks.code_path(job, rank)
        if path.exists() and (code := path.read_text(encoding="utf-8")) not in ("", "0"):
            codes[rank] = path.stat().st_mtime_ns, code
    if late:
        names = ", ".join(map(str, late))
        return f"rank {names} was not started by Spark within launch.timeout_s, {job.timeout_s:g} s. Its log is {log}"
    if not codes:
        return f"Spark could not run the ranks: {first_line(error)}\nIts log is {log}"
    rank = min(codes, key=lambda rank: codes[rank])
    output = spark_tasks.written_path(job, rank).read_text(encoding="utf-8", errors="replace").rstrip()
    return f"rank {rank} ended with code {codes[rank][1]}; the log of Spark is {log}\n{output}".rstrip()


if __name__ == "__main__":
    sys.exit(run_driver("lightkit.launch.spark", drive, sys.argv[1:]))
