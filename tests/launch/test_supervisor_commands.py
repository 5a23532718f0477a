"""The command lines that start all ranks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from lightkit.launch.plan import LaunchSettings, Plan, plan_launch
from lightkit.launch.supervisor import launcher_command

ENVIRONMENT = {"OMP_NUM_THREADS": "3"}


def command(
    settings: LaunchSettings, strategy: str | None, processes: int | None = None
) -> list[str]:
    plan = plan_launch(settings, strategy=strategy, processes=processes)
    assert isinstance(plan, Plan)
    return launcher_command(
        plan,
        ["fit", "-c", "a b.yaml"],
        folder=Path("/launch"),
        environment={"OMP_NUM_THREADS": "3"},
    )


def test_horovodrun_has_hosts_controller_and_interface() -> None:
    words = command(
        LaunchSettings(hosts="a:4,b:2", controller="mpi", network_interface="eth1"), "horovod", 1
    )
    assert words[:3] == [sys.executable, "-m", "horovod.runner.launch"]
    assert "--mpi" in words
    assert words[words.index("--num-proc") + 1] == "6"
    assert words[words.index("--hosts") + 1] == "a:4,b:2"
    assert words[words.index("--network-interfaces") + 1] == "eth1"
    assert words[-5:] == ["-m", "lightkit", "fit", "-c", "a b.yaml"]


def test_torchrun_is_elastic_over_machines() -> None:
    settings = LaunchSettings(
        engine="torchrun",
        processes=4,
        nodes="1:4",
        rendezvous="a:29500",
        max_restarts=3,
        timeout_s=60,
    )
    words = command(settings, "ddp")
    assert words[words.index("--nnodes") + 1] == "1:4"
    assert words[words.index("--nproc-per-node") + 1] == "4"
    assert words[words.index("--max-restarts") + 1] == "3"
    assert words[words.index("--rdzv-endpoint") + 1] == "a:29500"
    assert words[words.index("--rdzv-conf") + 1] == "join_timeout=60"


def test_a_driver_gets_the_job_as_json() -> None:
    words = command(LaunchSettings(engine="spark", processes=4, master="local[4]"), "horovod")
    assert words[1:3] == ["-m", "lightkit.launch.spark"]
    job = json.loads(words[3])
    plan = job["plan"]
    assert (plan["processes"], plan["strategy"], plan["settings"]["master"]) == (
        4,
        "horovod",
        "local[4]",
    )
    assert job["environment"]["OMP_NUM_THREADS"] == "3"


@pytest.mark.parametrize(
    ("settings", "strategy", "processes", "threads"),
    [
        (LaunchSettings(processes=2), "horovod", None, 4),
        (LaunchSettings(hosts="a:8"), "horovod", 1, 1),
        (LaunchSettings(threads=5), "ddp", 2, 5),
        (LaunchSettings(), "ddp_find_unused_parameters_true", 4, 2),
    ],
    ids=["two", "as many as cores", "said", "a kind of ddp"],
)
def test_ranks_share_the_cores(
    settings: LaunchSettings, strategy: str, processes: int | None, threads: int
) -> None:
    plan = plan_launch(settings, strategy=strategy, processes=processes)
    assert plan is not None
    assert plan.environment(8, {})["OMP_NUM_THREADS"] == str(threads)
    assert ("OMP_NUM_THREADS" in plan.environment(8, {"OMP_NUM_THREADS": "1"})) == (
        settings.threads is not None
    )


@pytest.mark.parametrize("strategy", ["ddp_spawn", "ddp_fork", "auto_of_mine"])
def test_what_lightning_does_not_start_by_command_has_no_supervisor(strategy: str) -> None:
    assert plan_launch(LaunchSettings(), strategy=strategy, processes=2) is None
    assert plan_launch(LaunchSettings(), strategy="ddp", processes=1) is None
