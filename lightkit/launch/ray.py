"""The driver program of Ray: `python -m lightkit.launch.ray JOB`, with a `Job` as JSON.

One actor of Ray is one rank. All of them begin again when one is lost, as often as the job allows.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from lightkit.errors import ConfigError
from lightkit.launch.cluster import (
    Job,
    RankFailed,
    choose_meeting_point,
    run_driver,
    torch_environment,
)

_OBJECT_STORE_BYTES = 200 * 2**20  # ranks exchange gradients through gloo or NCCL, not through Ray
_SHORT = "/tmp"  # noqa: S108 (the path of a socket must be short)


def drive(job: Job) -> None:
    """Run all ranks in the cluster that the job names.

    Without a name, run them in one on this machine for as long as it is needed.

    Raises:
        ConfigError: If Ray is not installed, or this machine has too few GPUs.
    """
    if find_spec("ray") is None:
        raise ConfigError("launch.engine: ray needs ray: pip install 'lightkit-train[ray]'")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray = import_module("ray")
    plan = job.plan
    address = plan.settings.master or os.environ.get("RAY_ADDRESS")
    with tempfile.TemporaryDirectory(
        prefix="lightkit-ray-", dir=_SHORT, ignore_cleanup_errors=True
    ) as temporary:
        options: dict[str, Any] = {"address": address}
        if address is None:
            options = {
                "address": "local",
                # more than cores are slow
                "num_cpus": max(os.cpu_count() or 1, plan.processes * job.threads),
                "include_dashboard": False,
                "object_store_memory": _OBJECT_STORE_BYTES,
                "_temp_dir": temporary,
            }
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
        try:
            num_gpus = int(ray.cluster_resources().get("GPU", 0))
            if address is None and plan.uses_gpus and num_gpus < plan.processes:
                raise ConfigError(
                    f"launch.processes: {plan.processes} processes need a GPU each, but Ray finds"
                    f" {num_gpus} on this machine"
                )
            _run_ranks(job)
        finally:
            ray.shutdown()


def _run_ranks(job: Job) -> None:
    """Run all ranks, again after a failure if the job allows it."""
    ray = import_module("ray")
    strategies = import_module("ray.util.scheduling_strategies")
    size = job.plan.processes
    num_gpus = int(job.plan.uses_gpus)
    group = ray.util.placement_group([{"CPU": job.threads, "GPU": num_gpus}] * size)
    actor = ray.remote(Worker).options(
        num_cpus=job.threads,
        num_gpus=num_gpus,
        scheduling_strategy=strategies.PlacementGroupSchedulingStrategy(group),
        runtime_env={"env_vars": job.environment},
    )
    for num_left in range(job.plan.settings.max_failures, -1, -1):
        workers = [actor.remote() for _ in range(size)]
        try:
            places = ray.get([worker.find_place.remote() for worker in workers])
            meeting_point = ray.get(workers[0].choose_meeting_point.remote())
            environments = [rank_environment(rank, places, meeting_point) for rank in range(size)]
            running = [
                worker.run.remote(job, *each)
                for worker, each in zip(workers, enumerate(environments), strict=True)
            ]
            while running:
                ended, running = ray.wait(running)
                ray.get(ended)
        except ray.exceptions.RayError:
            logging.exception("a rank has failed, and may %d times more", num_left)
            if num_left == 0:
                raise
        else:
            return
        finally:
            for worker in workers:
                ray.kill(worker)


def rank_environment(
    rank: int, places: Sequence[tuple[str, list[str]]], meeting_point: str
) -> dict[str, str]:
    """Build the variables of one rank.

    As under torchrun, each rank sees the GPUs of all ranks of its machine.

    Args:
        rank: Which rank it is.
        places: The machine of each rank, and its GPUs there.
        meeting_point: Where the ranks meet.
    """
    hosts = [host for host, _ in places]
    # Lightning wants as many on each: each rank counts as a machine
    if len({hosts.count(host) for host in hosts}) > 1:
        hosts = [str(each) for each in range(len(hosts))]
    gpus = [
        gpu
        for host, (_, own) in zip(hosts, places, strict=True)
        if host == hosts[rank]
        for gpu in own
    ]
    variables = torch_environment(rank, hosts, meeting_point)
    return {**variables, "CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else variables


class Worker:
    """One rank, in a process of Ray's."""

    def find_place(self) -> tuple[str, list[str]]:
        """Return the machine that it is on, and the GPUs there that Ray has given to it."""
        context = import_module("ray").get_runtime_context()
        return context.get_node_id(), context.get_accelerator_ids()["GPU"]

    def choose_meeting_point(self) -> str:
        """Choose where the ranks meet."""
        return choose_meeting_point(import_module("ray").util.get_node_ip_address())

    def run(self, job: Job, rank: int, environment: dict[str, str]) -> None:
        """Run the rank to its end.

        Raises:
            RankFailed: If it ends with another code than 0.
        """
        # which Ray keeps from its processes
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        os.environ |= environment
        os.chdir(job.folder)
        code = import_module("lightkit.__main__").main(job.words)
        if code != 0:
            raise RankFailed(f"rank {rank} ended with code {code}")


# Ray's workers import functions from this module, which __main__ is not there
if __name__ == "__main__":
    sys.exit(run_driver(import_module("lightkit.launch.ray").drive, sys.argv[1]))
