"""The driver program of Ray: `python -m lightkit.launch.ray JOB`, with a `Job` as JSON.

Ray Train's workers run lightkit in their own process, and start all of them again when one is lost.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

from lightkit.errors import ConfigError
from lightkit.launch.driver import Job, LaunchError, first_line, redirect_output, run_driver
from lightkit.launch.ranks import ATTEMPT, ENGINE

__all__ = ["drive", "lightning_parts", "run_rank"]

_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",  # it repeats on standard error what a rank prints
}
_AGAIN_S = 5.0
_TEMPORARY = "_LIGHTKIT_RAY_FOLDER"
_OBJECT_STORE_BYTES = 200 * 2**20  # ranks exchange gradients through gloo or NCCL, not through Ray


class RankFailed(Exception):
    """A rank has ended with another code than 0; Ray counts a failure."""


def drive(job: Job) -> int:
    """Run all ranks, again after a failure if the job says so, and return 0 if all of them ended well."""
    check_installed()
    log = job.launch / "ray.log"
    os.environ |= _SETTINGS
    with redirect_output(log), _cluster(job, log) as ray, _in_time(job, ray.cluster_resources()) as late:
        try:
            _trainer(job).fit()
        except (Late, Exception) as error:
            logging.exception("the launch failed")
            raise LaunchError(late[0] if late else _why(error, log)) from error
    return 0


def check_installed() -> None:
    """See that Ray can run Lightning here.

    Raises:
        ConfigError: If ray is missing, or there is a package that it would take for Lightning.
    """
    try:
        version("ray")
    except PackageNotFoundError:
        raise ConfigError("launch.engine: ray needs ray: pip install 'lightkit[ray]'") from None
    if find_spec("lightning") is not None:
        raise ConfigError(
            "launch.engine: ray takes the package lightning where there is one, and its strategy does not fit the "
            "Trainer of pytorch-lightning, which lightkit uses: pip uninstall lightning"
        )


def lightning_parts() -> tuple[Any, list[Any], list[Any]]:
    """Give the strategy, the plugins and the callbacks of a Trainer that is to run in one of Ray Train's workers.

    The Trainer must have one device: Ray gives each worker its own.
    """
    check_installed()
    parts = _of_ray("ray.train.lightning")
    return parts.RayDDPStrategy(), [parts.RayLightningEnvironment()], [_report(parts)]


def run_rank(settings: dict[str, str]) -> None:
    """Run one rank in one of Ray Train's workers.

    Args:
        settings: The job as JSON, under `job`.

    Raises:
        RankFailed: If it ends with another code than 0.
    """
    job = Job.from_json(settings["job"])
    context = _of_ray("ray.train").get_context()
    os.environ |= {
        ENGINE: "ray",
        ATTEMPT: str(_attempt(job, context.get_world_rank())),
        "RANK": str(context.get_world_rank()),
        "WORLD_SIZE": str(context.get_world_size()),
        "LOCAL_RANK": str(context.get_local_rank()),
        "LOCAL_WORLD_SIZE": str(context.get_local_world_size()),
    }
    os.chdir(job.folder)
    _hush()
    _arrived(job, context.get_world_rank()).touch()
    code = importlib.import_module(f"{job.program}.__main__").main(job.words)
    if code != 0:
        raise RankFailed(f"rank {context.get_world_rank()} ended with code {code}")


def _hush() -> None:
    """Keep Ray's notes out of what ranks write: some of its loggers (2.60) are named after their files.

    Another one shows with a traceback how the function of `run_rank` has ended, which the rank itself has told.
    """
    logging.getLogger("ray.train.v2._internal.util").setLevel(logging.CRITICAL)
    folder = str(Path(_of_ray("ray").__file__).parent)
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(folder):
            logging.getLogger(name).setLevel(logging.WARNING)


def _attempt(job: Job, rank: int) -> int:
    """Count on rank 0 how often the ranks were started before, and tell all."""
    number = 0
    if rank == 0:
        number = len(list(job.launch.glob("ray-attempt-*")))
        (job.launch / f"ray-attempt-{number}").touch()
    return int(_of_ray("ray.train.collective").broadcast_from_rank_zero(number))


def _arrived(job: Job, rank: int) -> Path:
    return job.launch / f"ray-arrived-{rank}"


@contextmanager
def _cluster(job: Job, log: Path) -> Iterator[Any]:
    """Connect to the cluster that is named, or have one on this machine for as long as it is needed."""
    ray = _of_ray("ray")
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    address = job.master or os.environ.get("RAY_ADDRESS")
    try:
        if address is not None:
            ray.init(address=address, **quiet)
        else:
            temporary = os.environ[_TEMPORARY]
            _start(ray, job, temporary, quiet)
    except ConfigError:
        ray.shutdown()
        raise
    except Exception as error:
        logging.exception("Ray did not start")
        where = f"at {address}" if address else "on this machine"
        raise LaunchError(f"Ray {where} did not start: {first_line(error)}\nIts log is {log}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _start(ray: Any, job: Job, temporary: str, quiet: dict[str, Any]) -> None:
    cores = max(os.cpu_count() or 1, job.processes * job.threads)  # more processes than cores are slow, not wrong
    ray.init(
        address="local",
        num_cpus=cores,
        include_dashboard=False,
        object_store_memory=_OBJECT_STORE_BYTES,
        _temp_dir=temporary,
        **quiet,
    )
    there = int(ray.cluster_resources().get("GPU", 0))
    if job.gpus and there < job.processes:
        raise ConfigError(
            f"launch.processes: {job.processes} processes need a GPU each, but Ray finds {there} on this machine"
        )


def _trainer(job: Job) -> Any:
    train = _of_ray("ray.train")
    return _of_ray("ray.train.torch").TorchTrainer(
        run_rank,
        train_loop_config={"job": job.to_json()},
        scaling_config=train.ScalingConfig(
            num_workers=job.processes,
            use_gpu=job.gpus,
            resources_per_worker={"CPU": job.threads, **({"GPU": 1} if job.gpus else {})},
        ),
        run_config=train.RunConfig(
            name="lightkit",
            storage_path=job.storage,
            logging_config=train.LoggingConfig(log_level="ERROR"),
            failure_config=train.FailureConfig(max_failures=job.max_failures),
            worker_runtime_env={"env_vars": {"OMP_NUM_THREADS": str(job.threads), **_SETTINGS, **job.environment}},
        ),
    )


def _report(parts: Any) -> Any:
    """Ray's own callback, without its checkpoints: the run's folder has them, and ranks resume from there."""
    base: Any = parts.RayTrainReportCallback

    class Report(base):  # type: ignore[misc]
        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            parts.prepare_trainer(trainer)

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}
            metrics |= {"epoch": trainer.current_epoch, "step": trainer.global_step}
            _of_ray("ray.train").report(metrics=metrics)

    return Report()


def _of_ray(module: str) -> Any:
    """Import a module of Ray, late: it is an extra, and most of them load torch."""
    return importlib.import_module(module)


@contextmanager
def _in_time(job: Job, resources: dict[str, float]) -> Iterator[list[str]]:
    """End a launch whose ranks have not all been started in time: Ray itself would wait for ever.

    Gives a list that holds, from then on, what is to be said.
    """
    told: list[str] = []

    def look(_signum: int, _frame: FrameType | None) -> None:
        late = [rank for rank in range(job.processes) if not _arrived(job, rank).exists()]
        if late:
            told.append(_told_late(job, late, resources))
            raise Late  # again after a while: Ray's native code may make another error of it, or lose it

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, job.timeout_s, _AGAIN_S)
    try:
        yield told
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Late(BaseException):
    """Not all ranks were started in time. Not an `Exception`, so that Ray does not take it for one of a rank's."""


def _told_late(job: Job, late: list[int], resources: dict[str, float]) -> str:
    there = ", ".join(f"{resources.get(kind, 0):g} {kind}" for kind in ("CPU", "GPU"))
    return (
        f"rank {', '.join(map(str, late))} was not started by Ray within launch.timeout_s, {job.timeout_s:g} s: "
        f"{job.processes} processes with {job.threads} CPU each{' and a GPU' if job.gpus else ''} are wanted, "
        f"the cluster has {there}"
    )


def _why(error: BaseException, log: Path) -> str:
    """Say in words why a launch failed."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    ended = [line for line in lines if line.startswith("RankFailed: ")]
    if ended:
        return f"{ended[0].removeprefix('RankFailed: ')}; the log of Ray is {log}"
    return f"Ray could not run the ranks: {lines[-1]}\nIts log is {log}"


def main(arguments: list[str]) -> int:
    """Run the driver program; its guard, which ends last, has Ray's folder removed."""
    if arguments[:1] == ["--driver"]:
        return run_driver("lightkit.launch.ray", drive, arguments)
    place = "/tmp"  # noqa: S108 (the path of a socket must be short)
    with tempfile.TemporaryDirectory(prefix="lightkit-ray-", dir=place, ignore_cleanup_errors=True) as temporary:
        os.environ[_TEMPORARY] = temporary
        return run_driver("lightkit.launch.ray", drive, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
