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
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lightkit.errors import ConfigError
from lightkit.launch import spark_tasks
from lightkit.launch.driver import Job, LaunchError, first_line, redirect_output, run_driver

__all__ = ["check_installed", "check_slots", "drive", "driver_command", "most_slots"]

_POLL_S = 0.2
_OLDEST_JAVA = {3: 8, 4: 17}


def drive(job: Job) -> int:
    """Run all ranks and return 0 if all of them ended well."""
    if job.processes < 0:
        environment = {**job.rank_environment(os.environ), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        return subprocess.run(driver_command(job), cwd=job.folder, env=environment, check=False).returncode
    check_installed(job)
    check_slots(job.master or os.environ.get("MASTER", ""), job.processes)
    log = job.launch / "spark.log"
    with redirect_output(log):
        context = _context(job, log)
        try:
            _wait_for_slots(context, job)
            _run_watched(context, job, log)
        finally:
            context.stop()
    return 0


def _run_watched(context: Any, job: Job, log: Path) -> None:
    watch = _Arrivals(context, job)
    try:
        with watch:
            _run(context, job)
    except Exception as error:
        logging.exception("the launch failed")
        raise LaunchError(_why(job, error, late=watch.late, log=log)) from error


def driver_command(job: Job) -> list[str]:
    """Give the command that runs ``-job.processes`` ranks on this machine."""
    words, processes = ["lightkit", *job.words], str(-job.processes)
    if job.strategy == "horovod":
        return [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", processes, sys.executable, "-m", *words]
    elastic = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", processes]
    return [*elastic, "-m", *words]


def check_installed(job: Job) -> None:
    """See that there is all that a launch on Spark needs, before anything is started.

    Raises:
        ConfigError: If pyspark, Java or Horovod is missing, or the Java is too old.
    """
    try:
        spark = version("pyspark")
    except PackageNotFoundError:
        raise ConfigError("launch.engine: spark needs pyspark: pip install 'lightkit[spark]'") from None
    if job.strategy == "horovod" and not _has("horovod"):
        raise ConfigError(
            "strategy: horovod needs horovod, which is not installed: make horovod builds it for the torch that is here"
        )
    oldest = _OLDEST_JAVA.get(int(spark.partition(".")[0]), 17)
    found = java_version()
    if found is None:
        raise ConfigError(
            f"launch.engine: spark needs Java; pyspark {spark} runs on Java {oldest} or newer, and neither JAVA_HOME "
            f"nor the PATH has one. Install it (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME."
        )
    if found < oldest:
        raise ConfigError(
            f"launch.engine: pyspark {spark} runs on Java {oldest} or newer, but {_java()} is Java {found}. "
            f"Set JAVA_HOME to a newer one (Debian: apt-get install openjdk-17-jre-headless)."
        )


def java_version() -> int | None:
    """Give the major version of the Java that pyspark would start; None where there is none."""
    java = _java()
    if java is None:
        return None
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60).stderr
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(match[1]) if match else None


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return shutil.which(str(Path(home) / "bin" / "java")) if home else shutil.which("java")


def _has(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _context(job: Job, log: Path) -> Any:
    """Give the Spark that is there, or start one."""
    from pyspark.sql import SparkSession  # an extra, and slow to load

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PATH"] = job.rank_environment(os.environ)["PATH"]
    if "local-cluster" in (job.master or "") and "SPARK_HOME" not in os.environ:
        import pyspark

        os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)  # its workers ask for it
    settings: dict[str, bool | float | int | str | None] = {
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.task.maxFailures": "1",  # a rank that has failed must not come back without the others
        "spark.stage.maxConsecutiveAttempts": "1",
        "spark.python.worker.reuse": "false",
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


def most_slots(master: str) -> int | None:
    """Give the number of tasks that a master on this machine can ever run at a time; None for a cluster."""
    if match := re.fullmatch(r"local(?:\[\s*(\d+|\*)\s*(?:,\s*\d+\s*)?\])?", master):
        cores = match[1] or "1"
        return (os.cpu_count() or 1) if cores == "*" else int(cores)
    if match := re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]", master):
        return int(match[1]) * int(match[2])
    return None


def check_slots(master: str, processes: int, *, cores_each: int = 1) -> None:
    """See that a master on this machine can run all ranks at a time, where its address tells it.

    Raises:
        ConfigError: If it cannot.
    """
    limit = most_slots(master)
    if limit is not None and limit // cores_each < processes:
        raise _too_few(master, processes, slots=limit // cores_each)


def _too_few(master: str, processes: int, *, slots: int) -> ConfigError:
    return ConfigError(
        f"launch.processes: {processes} processes need {processes} slots of Spark at a time, but {master} has {slots}. "
        f"Give the cluster more cores, or ask for fewer processes."
    )


def _wait_for_slots(context: Any, job: Job) -> None:
    """Wait until Spark can run all ranks at a time.

    Raises:
        ConfigError: If it never can, or does not within the job's time.
    """
    conf = context.getConf()
    if conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        return  # executors come with the tasks
    check_slots(context.master, job.processes, cores_each=int(conf.get("spark.task.cpus", "1")))
    deadline = time.monotonic() + job.timeout_s
    while (slots := _slots(context)) < job.processes:
        if time.monotonic() > deadline:
            raise _too_few(context.master, job.processes, slots=slots)
        time.sleep(_POLL_S)


def _slots(context: Any) -> int:
    java = context._jsc.sc()
    return int(java.maxNumConcurrentTasks(java.resourceProfileManager().defaultResourceProfile()))


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


_GROUP = "lightkit"


class _Arrivals:
    """Ends a launch whose ranks do not all get a task in time.

    Args:
        context: Spark.
        job: What runs.
    """

    def __init__(self, context: Any, job: Job) -> None:
        self.late: list[int] = []
        self._context = context
        self._job = job
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="arrivals", daemon=True)

    def __enter__(self) -> _Arrivals:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        if self._ended.wait(self._job.timeout_s):
            return
        ranks = range(self._job.processes)
        self.late = [rank for rank in ranks if not spark_tasks.written_path(self._job, rank).exists()]
        if self.late:
            self._context.cancelJobGroup(_GROUP)


def _why(job: Job, error: Exception, *, late: list[int], log: Path) -> str:
    """Say in words why a launch failed."""
    if late:
        names = ", ".join(map(str, late))
        return f"rank {names} was not started by Spark within launch.timeout_s, {job.timeout_s:g} s. Its log is {log}"
    failed = [rank for rank in range(job.processes) if _code(job, rank) not in ("", "0")]
    if not failed:
        return f"Spark could not run the ranks: {first_line(error)}\nIts log is {log}"
    rank = min(failed, key=lambda rank: spark_tasks.code_path(job, rank).stat().st_mtime_ns)
    wrote = spark_tasks.written_path(job, rank).read_text(encoding="utf-8", errors="replace").rstrip()
    says = f"rank {rank} ended with code {_code(job, rank)}; the log of Spark is {log}"
    return f"{says}\n{wrote}" if wrote else says


def _code(job: Job, rank: int) -> str:
    path = spark_tasks.code_path(job, rank)
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(run_driver("lightkit.launch.spark", drive, sys.argv[1:]))
