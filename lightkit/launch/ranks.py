"""Which of several processes this one is, read from what its launcher left in the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["ATTEMPT", "ENGINE", "LAUNCH", "PREEMPTED", "SUPERVISOR", "Rank", "this_rank"]

LAUNCH = "_LIGHTKIT_LAUNCH"
"""Variable that holds the folder through which the processes of a launch tell each other how they stand."""
SUPERVISOR = "_LIGHTKIT_SUPERVISOR"
"""Variable that names the supervisor that has started a rank: with several machines each has one."""
PREEMPTED = "_LIGHTKIT_PREEMPTED"
"""Variable that names the file by which rank 0 tells a batch script that it has saved and wants to go on later."""
ENGINE = "_LIGHTKIT_ENGINE"
"""Variable that names the engine where the launcher's own variables do not tell it."""
ATTEMPT = "_LIGHTKIT_ATTEMPT"
"""Variable that tells how often all ranks have been started again where the launcher's own variables do not."""


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
        key: Tells this launch from others of the same engine.
    """

    rank: int
    size: int
    local_rank: int = 0
    local_size: int = 1
    engine: str = "local"
    attempt: int = 0
    num_nodes: int = 1
    key: str = ""


def this_rank(environ: Mapping[str, str]) -> Rank | None:
    """Tell which rank this process is; None if no launcher has started it.

    Args:
        environ: Environment variables.
    """
    for found in (_of_ray, _of_horovod, _of_torchrun, _of_slurm, _of_mpi, _of_lightning):
        rank = found(environ)
        if rank is not None:
            return rank
    return None


def _of_horovod(environ: Mapping[str, str]) -> Rank | None:
    if "HOROVOD_RANK" not in environ:
        return None
    local_size = _number(environ, "HOROVOD_LOCAL_SIZE", 1)
    size = _number(environ, "HOROVOD_SIZE", 1)
    return Rank(
        rank=_number(environ, "HOROVOD_RANK", 0),
        size=size,
        local_rank=_number(environ, "HOROVOD_LOCAL_RANK", 0),
        local_size=local_size,
        engine="horovod",
        num_nodes=_number(environ, "HOROVOD_CROSS_SIZE", max(1, size // local_size)),
        key="-".join(environ.get(f"HOROVOD_GLOO_RENDEZVOUS_{part}", "") for part in ("ADDR", "PORT")),
    )


def _of_torchrun(environ: Mapping[str, str]) -> Rank | None:
    if "TORCHELASTIC_RUN_ID" not in environ or "RANK" not in environ:
        return None
    return Rank(
        rank=_number(environ, "RANK", 0),
        size=_number(environ, "WORLD_SIZE", 1),
        local_rank=_number(environ, "LOCAL_RANK", 0),
        local_size=_number(environ, "LOCAL_WORLD_SIZE", 1),
        engine="torchrun",
        attempt=_number(environ, "TORCHELASTIC_RESTART_COUNT", 0),
        num_nodes=_number(environ, "GROUP_WORLD_SIZE", 1),
        key="-".join(environ.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")),
    )


def _of_slurm(environ: Mapping[str, str]) -> Rank | None:
    # Slurm sets most of these for the batch script too; a step number only for what srun starts.
    interactive = environ.get("SLURM_JOB_NAME") in ("bash", "interactive")
    if interactive or not {"SLURM_PROCID", "SLURM_STEP_ID", "SLURM_NTASKS"} <= environ.keys():
        return None
    size, nodes = _number(environ, "SLURM_NTASKS", 1), _number(environ, "SLURM_NNODES", 1)
    return Rank(
        rank=_number(environ, "SLURM_PROCID", 0),
        size=size,
        local_rank=_number(environ, "SLURM_LOCALID", 0),
        local_size=_number(environ, "SLURM_NTASKS_PER_NODE", max(1, size // nodes)),
        engine="slurm",
        num_nodes=nodes,
        key="-".join(environ.get(name, "0") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")),
    )


def _of_mpi(environ: Mapping[str, str]) -> Rank | None:
    if "OMPI_COMM_WORLD_RANK" not in environ:
        return None
    size, local_size = _number(environ, "OMPI_COMM_WORLD_SIZE", 1), _number(environ, "OMPI_COMM_WORLD_LOCAL_SIZE", 1)
    return Rank(
        rank=_number(environ, "OMPI_COMM_WORLD_RANK", 0),
        size=size,
        local_rank=_number(environ, "OMPI_COMM_WORLD_LOCAL_RANK", 0),
        local_size=local_size,
        engine="mpi",
        num_nodes=max(1, size // local_size),
        key=environ.get("PMIX_NAMESPACE", ""),
    )


def _of_ray(environ: Mapping[str, str]) -> Rank | None:
    if environ.get(ENGINE) != "ray" or "RANK" not in environ:
        return None
    size, local_size = _number(environ, "WORLD_SIZE", 1), _number(environ, "LOCAL_WORLD_SIZE", 1)
    return Rank(
        rank=_number(environ, "RANK", 0),
        size=size,
        local_rank=_number(environ, "LOCAL_RANK", 0),
        local_size=local_size,
        engine="ray",
        attempt=_number(environ, ATTEMPT, 0),
        num_nodes=max(1, size // local_size),
    )


def _of_lightning(environ: Mapping[str, str]) -> Rank | None:
    """A process that Lightning's own launcher has started: rank 0 is the one that starts the others."""
    if not {"LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"} <= environ.keys():
        return None
    size, local_rank = _number(environ, "WORLD_SIZE", 1), _number(environ, "LOCAL_RANK", 0)
    return Rank(local_rank, size, local_rank, size)


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    value = environ.get(name, "")
    return int(value) if value.lstrip("-").isdigit() else default
