"""The driver program of Ray: `python -m lightkit.launch.ray JOB`, with a `Job` as JSON.

Ray Train's workers run lightkit in their own process, and start all of them again when one is lost.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightkit.errors import ConfigError
from lightkit.launch.local import Job, LaunchError, first_line, run_driver
from lightkit.launch.ranks import ENGINE, START

_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",  # it repeats on standard error what a rank prints
}
_OBJECT_STORE_BYTES = 200 * 2**20  # ranks exchange gradients through gloo or NCCL, not through Ray
_SHORT = "/tmp"  # noqa: S108 (the path of a socket must be short)


class RankError(Exception):
    """A rank has ended with another code than 0; Ray counts a failure."""


def drive(job: Job) -> None:
    """Run all ranks, again after a failure if the job allows it."""
    check_installed()
    os.environ |= _SETTINGS
    with (
        tempfile.TemporaryDirectory(prefix="lightkit-ray-", dir=_SHORT, ignore_cleanup_errors=True) as temporary,
        _connect(job, temporary),
    ):
        try:
            _make_trainer(job).fit()
        except Exception as error:
            logging.exception("the launch failed")
            lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
            ended = [line.removeprefix("RankError: ") for line in lines if line.startswith("RankError: ")]
            raise LaunchError(ended[0] if ended else f"Ray could not run the ranks: {lines[-1]}") from error


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


def run_rank(settings: dict[str, Job]) -> None:
    """Run one rank in one of Ray Train's workers.

    Args:
        settings: The job, under `job`.

    Raises:
        RankError: If it ends with another code than 0.
    """
    job = settings["job"]
    context = import_module("ray.train").get_context()
    rank = context.get_world_rank()
    start = import_module("ray.train.collective").broadcast_from_rank_zero(secrets.token_hex(8))
    os.environ |= {
        ENGINE: "ray",
        START: start,
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
    code = import_module("lightkit.__main__").main(job.words)
    if code != 0:
        raise RankError(f"rank {rank} ended with code {code}")


@contextmanager
def _connect(job: Job, temporary: str) -> Iterator[None]:
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
            "_temp_dir": temporary,
        }
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as error:
        logging.exception("Ray did not start")
        where = f"at {address}" if address else "on this machine"
        raise LaunchError(f"Ray {where} did not start: {first_line(error)}") from error
    try:
        num_gpus = int(ray.cluster_resources().get("GPU", 0))
        if address is None and plan.uses_gpus and num_gpus < plan.processes:
            raise ConfigError(
                f"launch.processes: {plan.processes} processes need a GPU each, but Ray finds {num_gpus} on this "
                "machine"
            )
        yield
    finally:
        ray.shutdown()


def _make_trainer(job: Job) -> Any:
    train, plan = import_module("ray.train"), job.plan
    return import_module("ray.train.torch").TorchTrainer(
        run_rank,
        train_loop_config={"job": job},
        scaling_config=train.ScalingConfig(
            num_workers=plan.processes,
            use_gpu=plan.uses_gpus,
            resources_per_worker={"CPU": job.threads, **({"GPU": 1} if plan.uses_gpus else {})},
        ),
        run_config=train.RunConfig(
            name="lightkit",
            storage_path=str(Path(job.launch) / "ray"),
            logging_config=train.LoggingConfig(log_level="ERROR"),
            failure_config=train.FailureConfig(max_failures=plan.settings.max_failures),
            worker_runtime_env={"env_vars": {**_SETTINGS, **job.environment}},
        ),
    )


if __name__ == "__main__":  # Ray's workers import functions from this module, which __main__ is not there
    sys.exit(run_driver(import_module("lightkit.launch.ray").drive, sys.argv[1]))
