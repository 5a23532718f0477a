"""Nodes that a cluster describes by torchrun's own variables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lightkit.errors import ConfigError
from lightkit.launch.plan import LaunchSettings, plan_launch
from lightkit.launch.ranks import complete_torch_variables, this_rank
from lightkit.launch.torchrun import agent_command, complete_settings

TRAIN_JOB = {
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "4",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "flowers-node-0-0.flowers",
    "PET_MASTER_PORT": "29500",
}
"""Of the second node of a TrainJob of Kubeflow Trainer 2."""
TWO_NODES = LaunchSettings(
    engine="torchrun", processes=4, nodes="2", rendezvous="flowers-node-0-0.flowers:29500"
)
ELASTIC = {
    "PET_NNODES": "1:3",
    "PET_NPROC_PER_NODE": "2",
    "PET_RDZV_ENDPOINT": "flowers-worker-0:23456",
    "PET_MAX_RESTARTS": "5",
}
"""Of a PyTorchJob with an elastic policy."""


@pytest.mark.parametrize(
    ("settings", "environ", "expected"),
    [
        (LaunchSettings(), TRAIN_JOB, TWO_NODES),
        (LaunchSettings(threads=2), TRAIN_JOB, replace(TWO_NODES, threads=2)),
        (
            LaunchSettings(engine="torchrun", processes=2, nodes="1:2", rendezvous="a:5"),
            TRAIN_JOB,
            LaunchSettings(engine="torchrun", processes=2, nodes="1:2", rendezvous="a:5"),
        ),
        (
            LaunchSettings(),
            {**TRAIN_JOB, "PET_NPROC_PER_NODE": "auto"},
            replace(TWO_NODES, processes=8),
        ),
        (
            LaunchSettings(),
            {**TRAIN_JOB, "PET_NNODES": "1"},
            LaunchSettings("torchrun", 4, nodes="1"),
        ),
        (
            LaunchSettings(),
            ELASTIC,
            LaunchSettings(
                "torchrun", 2, nodes="1:3", rendezvous="flowers-worker-0:23456", max_restarts=5
            ),
        ),
        (
            LaunchSettings(),
            {**TRAIN_JOB, "PET_NNODES": "1", "PET_NPROC_PER_NODE": "1"},
            LaunchSettings(),
        ),
        (LaunchSettings(engine="ray"), TRAIN_JOB, LaunchSettings(engine="ray")),
        (LaunchSettings(engine="local"), TRAIN_JOB, LaunchSettings(engine="local")),
        (LaunchSettings(hosts="a:1,b:1"), TRAIN_JOB, LaunchSettings(hosts="a:1,b:1")),
        (LaunchSettings(), {}, LaunchSettings()),
    ],
    ids=[
        "train_job",
        "threads",
        "config_wins",
        "auto",
        "one_node",
        "elastic",
        "alone",
        "ray",
        "local",
        "hosts",
        "none",
    ],
)
def test_a_node_takes_the_variables_that_the_config_leaves_out(
    settings: LaunchSettings, environ: dict[str, str], expected: LaunchSettings
) -> None:
    assert complete_settings(settings, environ, num_devices=8) == expected


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"PET_NNODES": "two"}, "PET_NNODES='two'; expected a number of machines"),
        (
            {"PET_NPROC_PER_NODE": "all"},
            "PET_NPROC_PER_NODE='all'; expected a number of processes, or auto",
        ),
        ({"PET_MAX_RESTARTS": "-1"}, "PET_MAX_RESTARTS='-1'; expected a number of restarts"),
        ({"PET_NODE_RANK": ""}, "PET_NODE_RANK=''; expected the number of this machine"),
        (
            {"PET_MASTER_ADDR": ""},
            "PET_NNODES=2, but neither PET_MASTER_ADDR, .* nor launch.rendezvous",
        ),
    ],
    ids=["nodes", "processes", "restarts", "rank", "address"],
)
def test_a_variable_that_torchrun_would_not_take_is_named(
    changes: dict[str, str], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        complete_settings(LaunchSettings(), {**TRAIN_JOB, **changes})


@pytest.mark.parametrize(("rank", "is_host"), [("0", "true"), ("1", "false")])
def test_the_first_node_is_the_meeting_point_also_while_its_name_has_no_address(
    rank: str, is_host: str
) -> None:
    environ = {**TRAIN_JOB, "PET_NODE_RANK": rank}
    plan = plan_launch(complete_settings(LaunchSettings(), environ), strategy=None, processes=None)
    assert plan is not None
    words = agent_command(plan, ["fit"], folder=Path("/launch"), environ=environ)
    assert words[words.index("--rdzv-conf") + 1] == f"join_timeout=300,is_host={is_host}"
    assert words[words.index("--rdzv-endpoint") + 1] == "flowers-node-0-0.flowers:29500"


def test_a_meeting_point_of_the_config_is_not_that_of_the_variables() -> None:
    settings = complete_settings(LaunchSettings(rendezvous="a:5"), TRAIN_JOB)
    plan = plan_launch(settings, strategy=None, processes=None)
    assert plan is not None
    words = agent_command(plan, ["fit"], folder=Path("/launch"), environ=TRAIN_JOB)
    assert words[words.index("--rdzv-conf") + 1] == "join_timeout=300"


def test_a_node_of_a_pytorch_job_is_no_rank() -> None:
    """Its `RANK` is the number of the pod, its `WORLD_SIZE` that of all processes."""
    environ = {
        **TRAIN_JOB,
        "RANK": "1",
        "WORLD_SIZE": "8",
        "MASTER_ADDR": "flowers-master-0",
        "MASTER_PORT": "23456",
    }
    completed = dict(environ)
    complete_torch_variables(completed)
    assert completed == environ
    assert this_rank(completed) is None
