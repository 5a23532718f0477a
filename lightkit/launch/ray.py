"""The driver program of Ray: `python -m lightkit.launch.ray JOB`, with a `Job` as JSON.

Ray Train's workers run lightkit in their own process, and start all of them again when one is lost.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightkit.errors import ConfigError
from lightkit.launch.local import Job, LaunchError, first_line, redirect_output, run_driver
from lightkit.launch.ranks import ATTEMPT, ENGINE

_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",  # it repeats on standard error what a rank prints
}
_AGAIN_S = 5.0
_TEMPORARY = "_LIGHTKIT_RAY_FOLDER"
_OBJECT_STORE_BYTES = 200 * 2**20  # ranks exchange gradients through gloo or NCCL, not through Ray


class RankError(Exception):
    """A rank has ended with another code than 0; Ray counts a failure."""


class LateRanks(BaseException):
    """Not all ranks were started in time. Not an `Exception`, so that Ray does not take it for one of a rank's."""


def drive(job: Job) -> int:
    """Run all ranks, again after a failure if the job allows it, and return 0 if all of them ended well."""
    check_installed()
    log = job.launch / "ray.log"
    os.environ |= _SETTINGS
    with redirect_output(log), _connect(job, log) as ray, _limit_arrival(job, ray.cluster_resources()) as late:
        try:
            _make_trainer(job).fit()
        except (LateRanks, Exception) as error:
            logging.exception("the launch failed")
            lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
            ended = [line.removeprefix("RankError: ") for line in lines if line.startswith("RankError: ")]
            if late:
                raise LaunchError(late[0]) from error
            if ended:
                raise LaunchError(f"{ended[0]}; the log of Ray is {log}") from error
            raise LaunchError(f"Ray could not run the ranks: {lines[-1]}\nIts log is {log}") from error
    return 0


def check_installed() -> None:
    """Check that Ray can run Lightning here.

    Raises:
        ConfigError: If ray is missing, or the package `lightning` is installed.
    """
    if find_spec("ray") is None:
        raise ConfigError("launch.engine: ray needs ray: pip install 'lightkit[ray]'")
    if find_spec("lightning") is not None:
        raise ConfigError(
            "launch.engine: ray takes the package lightning where there is one, and its strategy does not fit the "
            "Trainer of pytorch-lightning, which lightkit uses: pip uninstall lightning"
        )


def lightning_parts() -> tuple[Any, Any]:
    """Return the strategy and the plugin of a Trainer that is to run in one of Ray Train's workers.

    The Trainer must have one device: Ray gives each worker its own.
    """
    check_installed()
    parts = import_module("ray.train.lightning")  # an extra, and it loads torch
    return parts.RayDDPStrategy(), parts.RayLightningEnvironment()


def run_rank(settings: dict[str, str]) -> None:
    """Run one rank in one of Ray Train's workers.

    Args:
        settings: The job as JSON, under `job`.

    Raises:
        RankError: If it ends with another code than 0.
    """
    job = Job.from_json(settings["job"])
    context = import_module("ray.train").get_context()
    rank = context.get_world_rank()
    attempt = 0
    if rank == 0:  # it counts how often the ranks were started before, and tells all
        attempt = len(list(job.launch.glob("ray-attempt-*")))
        (job.launch / f"ray-attempt-{attempt}").touch()
    attempt = int(import_module("ray.train.collective").broadcast_from_rank_zero(attempt))
    os.environ |= {
        ENGINE: "ray",
        ATTEMPT: str(attempt),
        "RANK": str(rank),
        "WORLD_SIZE": str(context.get_world_size()),
        "LOCAL_RANK": str(context.get_local_rank()),
        "LOCAL_WORLD_SIZE": str(context.get_local_world_size()),
    }
    os.chdir(job.folder)
    # Ray shows with a traceback how this function ended, which the rank itself reports, and some of its loggers (2.60)
    # are named after their files.
    logging.getLogger("ray.train.v2._internal.util").setLevel(logging.CRITICAL)
    folder = str(Path(str(import_module("ray").__file__)).parent)
    for name in [name for name in logging.root.manager.loggerDict if name.startswith(folder)]:
        logging.getLogger(name).setLevel(logging.WARNING)
    (job.launch / f"ray-arrived-{rank}").touch()
    code = import_module("lightkit.__main__").main(job.words)
    if code != 0:
        raise RankError(f"rank {rank} ended with code {code}")


@contextmanager
def _connect(job: Job, log: Path) -> Iterator[Any]:
    """Connect to the cluster that the job names, or start one on this machine for as long as it is needed."""
    ray, plan = import_module("ray"), job.plan
    address = plan.settings.master or os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = {"address": address}
    if address is None:
        options = {
            "address": "local",
            "num_cpus": max(os.cpu_count() or 1, plan.processes * job.threads),  # more than cores are slow, not wrong
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE_BYTES,
            "_temp_dir": os.environ[_TEMPORARY],
        }
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as error:
        logging.exception("Ray did not start")
        where = f"at {address}" if address else "on this machine"
        raise LaunchError(f"Ray {where} did not start: {first_line(error)}\nIts log is {log}") from error
    try:
        num_gpus = int(ray.cluster_resources().get("GPU", 0))
        if address is None and plan.uses_gpus and num_gpus < plan.processes:
            raise ConfigError(
                f"launch.processes: {plan.processes} processes need a GPU each, but Ray finds {num_gpus} on this "
                "machine"
            )
        yield ray
    finally:
        ray.shutdown()


def _make_trainer(job: Job) -> Any:
    train, plan = import_module("ray.train"), job.plan
    return import_module("ray.train.torch").TorchTrainer(
        run_rank,
        train_loop_config={"job": job.to_json()},
        scaling_config=train.ScalingConfig(
            num_workers=plan.processes,
            use_gpu=plan.uses_gpus,
            resources_per_worker={"CPU": job.threads, **({"GPU": 1} if plan.uses_gpus else {})},
        ),
        run_config=train.RunConfig(
            name="lightkit",
            storage_path=str(job.launch / "ray"),
            logging_config=train.LoggingConfig(log_level="ERROR"),
            failure_config=train.FailureConfig(max_failures=plan.settings.max_failures),
            worker_runtime_env={"env_vars": {**_SETTINGS, **job.environment}},
        ),
    )


@contextmanager
def _limit_arrival(job: Job, resources: dict[str, float]) -> Iterator[list[str]]:
    """End a launch whose ranks have not all been started in time, since Ray itself would wait for ever.

    Yields:
        List that holds the error message from then on.
    """
    messages: list[str] = []
    processes, limit_s = job.plan.processes, job.plan.settings.timeout_s

    def check(_signum: int, _frame: object) -> None:
        late = [rank for rank in range(processes) if not (job.launch / f"ray-arrived-{rank}").exists()]
        if late:
            available = ", ".join(f"{resources.get(kind, 0):g} {kind}" for kind in ("CPU", "GPU"))
            messages.append(
                f"rank {', '.join(map(str, late))} was not started by Ray within launch.timeout_s, {limit_s:g} s: "
                f"{processes} processes with {job.threads} CPU each{' and a GPU' if job.plan.uses_gpus else ''} are "
                f"wanted, the cluster has {available}"
            )
            raise LateRanks  # again after a while: Ray's native code may make another error of it, or lose it

    before = signal.signal(signal.SIGALRM, check)
    signal.setitimer(signal.ITIMER_REAL, limit_s, _AGAIN_S)
    try:
        yield messages
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def main(arguments: list[str]) -> int:
    """Run the driver program; its guard, which ends last, has Ray's folder removed."""
    if arguments[:1] == ["--driver"]:
        return run_driver("lightkit.launch.ray", drive, arguments)
    parent = "/tmp"  # noqa: S108 (the path of a socket must be short)
    with tempfile.TemporaryDirectory(prefix="lightkit-ray-", dir=parent, ignore_cleanup_errors=True) as temporary:
        os.environ[_TEMPORARY] = temporary
        return run_driver("lightkit.launch.ray", drive, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
