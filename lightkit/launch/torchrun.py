"""Torchrun's agent on one node.

The variables by which a cluster describes the node, and the command that starts it.

Kubeflow's controller sets torchrun's own variables, `PET_NNODES` and others, in each pod, and so do
Kubernetes Jobs and SkyPilot tasks that are written for torchrun. lightkit reads them, so that
`lightkit fit` can stand where `torchrun` would: torchrun ends with 1 whatever its ranks end with,
and a cluster that restarts a job on 75 would not see it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lightkit.errors import ConfigError
from lightkit.launch.plan import LaunchSettings, Plan

NUM_NODES = "PET_NNODES"
NODE_RANK = "PET_NODE_RANK"
_NUM_PROCESSES = "PET_NPROC_PER_NODE"
_ADDRESS = "PET_MASTER_ADDR"
_PORT = "PET_MASTER_PORT"
_MAX_RESTARTS = "PET_MAX_RESTARTS"
_ENDPOINT = "PET_RDZV_ENDPOINT"
_DEFAULT_PORT = "29500"  # of torchrun

_COUNT = r"0*[1-9]\d*"
_PATTERNS = {
    NUM_NODES: (
        f"{_COUNT}(?::{_COUNT})?",
        "a number of machines, or the fewest and the most, such as 1:4",
    ),
    _NUM_PROCESSES: (f"{_COUNT}|auto|gpu|cpu", "a number of processes, or auto"),
    NODE_RANK: (r"\d+", "the number of this machine, from 0"),
    _PORT: (r"\d{1,5}", "a port"),
    _MAX_RESTARTS: (r"\d+", "a number of restarts"),
}


def complete_settings(
    settings: LaunchSettings, environ: Mapping[str, str], *, num_devices: int | None = None
) -> LaunchSettings:
    """Complete a `launch` block with the node's variables for torchrun.

    Args:
        settings: The config's `launch` block. Its keys win over the variables; another engine
            ignores them.
        environ: Environment variables. Where they describe one process on one machine there is
            nothing to launch.
        num_devices: Devices of this machine that the hardware keys come to, for
            `PET_NPROC_PER_NODE=auto`; None or 0 counts as one.

    Raises:
        ConfigError: If a variable has no value that torchrun would take, or several machines have
            no address to meet.
    """
    if NUM_NODES not in environ or settings.engine not in (None, "torchrun") or settings.hosts:
        return settings
    _check_variables(environ)
    num_processes = environ.get(_NUM_PROCESSES, "1")
    if environ[NUM_NODES] == num_processes == "1":
        return settings
    processes = settings.processes
    if processes is None:
        processes = int(num_processes) if num_processes.isdigit() else num_devices or 1
    nodes = settings.nodes if settings.num_nodes != (1, 1) else environ[NUM_NODES]
    max_restarts = settings.max_restarts or int(environ.get(_MAX_RESTARTS, "0"))
    completed = replace(
        settings, engine="torchrun", processes=processes, nodes=nodes, max_restarts=max_restarts
    )
    if completed.num_nodes == (1, 1) or settings.rendezvous is not None:
        return completed
    rendezvous = _find_rendezvous(environ)
    if rendezvous is None:
        raise ConfigError(
            f"the environment has {NUM_NODES}={environ[NUM_NODES]}, but neither {_ADDRESS}, the"
            " name of the first machine, nor launch.rendezvous says where they meet"
        )
    return replace(completed, rendezvous=rendezvous)


def _check_variables(environ: Mapping[str, str]) -> None:
    """Check the node's variables.

    Raises:
        ConfigError: If torchrun would not take the value of one.
    """
    for name, (pattern, expected) in _PATTERNS.items():
        if name in environ and re.fullmatch(pattern, environ[name]) is None:
            raise ConfigError(
                f"the environment has {name}={environ[name]!r}; expected {expected}. The cluster"
                " sets it for torchrun; launch.engine: local ignores it"
            )


def _find_rendezvous(environ: Mapping[str, str]) -> str | None:
    """Return HOST:PORT at which the nodes meet; None if no variable says it."""
    if endpoint := environ.get(_ENDPOINT):
        return endpoint
    if address := environ.get(_ADDRESS):
        return f"{address}:{environ.get(_PORT, _DEFAULT_PORT)}"
    return None


def agent_command(
    plan: Plan, words: Sequence[str], *, folder: Path, environ: Mapping[str, str]
) -> list[str]:
    """Build the command of the agent that starts the ranks of this node.

    Args:
        plan: The launch.
        words: The command line after `lightkit`, which each rank gets.
        folder: Folder of the launch.
        environ: Environment variables.
    """
    settings = plan.settings
    config = [f"join_timeout={round(settings.timeout_s)}"]
    if environ.get(NODE_RANK) and settings.rendezvous == _find_rendezvous(environ):
        # Else each node looks the name up, and while it has no address yet none takes it for its
        # own.
        config.append(f"is_host={'true' if int(environ[NODE_RANK]) == 0 else 'false'}")
    meeting = [
        *(
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            str(settings.rendezvous),
            "--rdzv-id",
            "lightkit",
        ),
        *("--rdzv-conf", ",".join(config)),
    ]
    is_alone = settings.num_nodes[1] == 1 and settings.rendezvous is None
    return [
        *(
            sys.executable,
            "-m",
            "torch.distributed.run",
            *(["--standalone"] if is_alone else meeting),
        ),
        *("--nnodes", str(settings.nodes), "--nproc-per-node", str(plan.local_processes)),
        *("--max-restarts", str(settings.max_restarts), "--monitor-interval", "0.5"),
        *("--log-dir", str(folder / "torchrun")),
        *("-m", "lightkit", *words),
    ]
