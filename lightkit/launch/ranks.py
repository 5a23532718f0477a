"""Which of several processes this one is, read from what its launcher left in the environment."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from lightkit.errors import ConfigError

LAUNCH = "_LIGHTKIT_LAUNCH"
"""Variable that holds the folder in which the processes of a launch write their status."""
PREEMPTED = "_LIGHTKIT_PREEMPTED"
"""Variable that names the file by which a batch script puts a job that was preempted back into the
queue."""


@dataclass(frozen=True)
class Rank:
    """One of several processes that train one model.

    Args:
        rank: Its number among all, from 0.
        size: Number of all.
        local_rank: Its number on its machine.
        local_size: Number of them on its machine.
        engine: Launcher that has started it.
        attempt: How often all of them have been started again.
        num_nodes: Number of machines.
        key: Distinguishes this launch from others of the same engine.
    """

    rank: int
    size: int
    local_rank: int = 0
    local_size: int = 1
    engine: str = "local"
    attempt: int = 0
    num_nodes: int = 1
    key: str = ""


_LAUNCHERS: dict[str, tuple[set[str], tuple[str, ...], tuple[str, ...]]] = {
    "horovod": (
        {"HOROVOD_RANK"},
        (
            "HOROVOD_RANK",
            "HOROVOD_SIZE",
            "HOROVOD_LOCAL_RANK",
            "HOROVOD_LOCAL_SIZE",
            "HOROVOD_CROSS_SIZE",
        ),
        ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
    ),
    "torchrun": (
        {"TORCHELASTIC_RUN_ID", "RANK"},
        (
            "RANK",
            "WORLD_SIZE",
            "LOCAL_RANK",
            "LOCAL_WORLD_SIZE",
            "GROUP_WORLD_SIZE",
            "TORCHELASTIC_RESTART_COUNT",
        ),
        ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"),
    ),
    "slurm": (
        # Slurm sets most of these for the batch script too; a step number only for what srun
        # starts.
        {"SLURM_PROCID", "SLURM_STEP_ID", "SLURM_NTASKS"},
        ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE", "SLURM_NNODES"),
        ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
    ),
    "mpi": (
        {"OMPI_COMM_WORLD_RANK"},
        tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
        ("PMIX_NAMESPACE",),
    ),
}
"""By launcher: variables that show it; those of rank, size, local rank, local size, number of
machines and attempt; those that distinguish its launches. In this order, for Horovod may itself run
under another one."""


_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def complete_torch_variables(environ: MutableMapping[str, str]) -> None:
    """Complete the variables of a rank that has torch's alone to those of torchrun.

    Lightning and lightkit read these.

    `RANK`, `WORLD_SIZE` and `MASTER_ADDR` are what `torch.distributed` needs, and all that
    Kubeflow's PyTorchJob, Ray's TorchTrainer and others set. Lightning 2.6 recognises torchrun by
    `TORCHELASTIC_RUN_ID` alone, and would take the first rank of each machine for rank 0. Other
    launchers' ranks stay as they are, and so does a node whose ranks are still to be started:
    beside torchrun's variables for its agent (`PET_NNODES`) Kubeflow's PyTorchJob sets `RANK` too,
    to the number of the node.

    Args:
        environ: Environment variables. Where `LOCAL_WORLD_SIZE` is not set, all ranks are on this
            machine if they meet on it, and on one machine each otherwise.

    Raises:
        ConfigError: If the number of processes on this machine is needed and not known.
    """
    has_torchs = {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= environ.keys()
    is_node = "PET_NNODES" in environ and "LOCAL_RANK" not in environ
    if (
        not has_torchs
        or is_node
        or any(signs <= environ.keys() for signs, _, _ in _LAUNCHERS.values())
    ):
        return
    rank = int(environ["RANK"])
    size = int(environ["WORLD_SIZE"])

    # how many there are on this machine, and which of them this is
    is_one_machine = environ["MASTER_ADDR"] in _LOOPBACK
    local_size = int(environ.get("LOCAL_WORLD_SIZE", size if is_one_machine else 1))
    local_rank = int(environ.get("LOCAL_RANK", rank % local_size))
    if local_rank >= local_size:
        raise ConfigError(
            f"the environment has RANK={rank}, WORLD_SIZE={size} and LOCAL_RANK={local_rank}, but"
            " no LOCAL_WORLD_SIZE. Set it to the number of processes on each machine."
        )

    environ["LOCAL_RANK"] = str(local_rank)
    environ["LOCAL_WORLD_SIZE"] = str(local_size)
    environ.setdefault("GROUP_RANK", environ.get("NODE_RANK", str(rank // local_size)))
    environ.setdefault("GROUP_WORLD_SIZE", str(size // local_size))
    environ["TORCHELASTIC_RUN_ID"] = "torch"


def this_rank(environ: Mapping[str, str]) -> Rank | None:
    """Read which rank this process is; None if no launcher has started it.

    Args:
        environ: Environment variables.
    """

    def number(name: str, default: int) -> int:
        value = environ.get(name, "")
        return int(value) if value.lstrip("-").isdigit() else default

    for engine, (signs, names, key) in _LAUNCHERS.items():
        if not signs <= environ.keys():
            continue
        if engine == "slurm" and environ.get("SLURM_JOB_NAME") in ("bash", "interactive"):
            continue
        rank, size, local_rank, local_size, nodes, attempt = (*names, "", "")[:6]
        num_ranks = number(size, 1)
        num_nodes = number(nodes, 0)
        num_local = number(local_size, max(1, num_ranks // num_nodes) if num_nodes else 1)
        return Rank(
            rank=number(rank, 0),
            size=num_ranks,
            local_rank=number(local_rank, 0),
            local_size=num_local,
            engine=engine,
            attempt=number(attempt, 0),
            num_nodes=num_nodes or max(1, num_ranks // num_local),
            key="-".join(environ[name] for name in key if environ.get(name)),
        )
    # Lightning's, whose rank 0 starts the others
    if {"LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"} <= environ.keys():
        here = number("LOCAL_RANK", 0)
        everywhere = number("WORLD_SIZE", 1)
        return Rank(here, everywhere, here, everywhere, key=environ.get("MASTER_PORT", ""))
    return None


def set_devices(trainer: Any, rank: Rank | None) -> None:
    """Set the trainer's devices, nodes and strategy as the launcher counts them.

    The saved config keeps the user's.

    Args:
        trainer: Arguments of the trainer, a namespace of jsonargparse.
        rank: This process; None where there is no launcher.
    """
    if rank is None or rank.engine not in ("torchrun", "slurm"):
        return
    if not isinstance(trainer.get("devices"), list):
        trainer["devices"] = rank.local_size
    trainer["num_nodes"] = rank.num_nodes
    if rank.size > 1 and trainer.get("strategy") in (None, "auto"):
        trainer["strategy"] = "ddp"
