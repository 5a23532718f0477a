"""Which of several processes this one is, read from what its launcher left in the environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
"""Variable that tells how often all ranks have been started again; it counts before the launcher's own variables."""


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
    for engine, is_there in _SIGNS.items():
        if is_there(environ):
            return _rank_of(engine, environ)
    if {"LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"} <= environ.keys():  # Lightning's, whose rank 0 starts the others
        size, local_rank = _number(environ, "WORLD_SIZE", 1), _number(environ, "LOCAL_RANK", 0)
        return Rank(local_rank, size, local_rank, size)
    return None


@dataclass(frozen=True)
class _Variables:
    """Names of the variables in which a launcher tells a process its place.

    Args:
        prefix: Beginning of the names, but for those of the key.
        rank: Number among all.
        size: Number of all.
        local_rank: Number on this machine.
        local_size: Number on this machine of all.
        num_nodes: Number of machines; reckoned from the sizes where the launcher does not tell it.
        attempt: Number of the start.
        key: What tells this launch from others.
    """

    prefix: str = ""
    rank: str = "RANK"
    size: str = "WORLD_SIZE"
    local_rank: str = "LOCAL_RANK"
    local_size: str = "LOCAL_WORLD_SIZE"
    num_nodes: str = ""
    attempt: str = ""
    key: tuple[str, ...] = ()


_SIGNS: dict[str, Callable[[Mapping[str, str]], bool]] = {
    "ray": lambda environ: environ.get(ENGINE) == "ray" and "RANK" in environ,
    "horovod": lambda environ: "HOROVOD_RANK" in environ,
    "torchrun": lambda environ: {"TORCHELASTIC_RUN_ID", "RANK"} <= environ.keys(),
    # Slurm sets most of these for the batch script too; a step number only for what srun starts.
    "slurm": lambda environ: (
        {"SLURM_PROCID", "SLURM_STEP_ID", "SLURM_NTASKS"} <= environ.keys()
        and environ.get("SLURM_JOB_NAME") not in ("bash", "interactive")
    ),
    "mpi": lambda environ: "OMPI_COMM_WORLD_RANK" in environ,
}
"""How the launchers are told apart, in this order: Ray and Horovod may themselves run under another one."""
_VARIABLES = {
    "ray": _Variables(),
    "horovod": _Variables(
        prefix="HOROVOD_",
        size="SIZE",
        local_size="LOCAL_SIZE",
        num_nodes="CROSS_SIZE",
        key=("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
    ),
    "torchrun": _Variables(
        num_nodes="GROUP_WORLD_SIZE",
        attempt="TORCHELASTIC_RESTART_COUNT",
        key=("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"),
    ),
    "slurm": _Variables(
        prefix="SLURM_",
        rank="PROCID",
        size="NTASKS",
        local_rank="LOCALID",
        local_size="NTASKS_PER_NODE",
        num_nodes="NNODES",
        key=("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
    ),
    "mpi": _Variables(prefix="OMPI_COMM_WORLD_", size="SIZE", local_size="LOCAL_SIZE", key=("PMIX_NAMESPACE",)),
}


def _rank_of(engine: str, environ: Mapping[str, str]) -> Rank:
    names = _VARIABLES[engine]

    def number(name: str, default: int) -> int:
        return _number(environ, names.prefix + name, default) if name else default

    size = number(names.size, 1)
    nodes = number(names.num_nodes, 0)
    local_size = number(names.local_size, max(1, size // nodes) if nodes else 1)
    return Rank(
        rank=number(names.rank, 0),
        size=size,
        local_rank=number(names.local_rank, 0),
        local_size=local_size,
        engine=engine,
        attempt=_number(environ, ATTEMPT, number(names.attempt, 0)),
        num_nodes=nodes or max(1, size // local_size),
        key="-".join(environ[name] for name in names.key if environ.get(name)),
    )


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    value = environ.get(name, "")
    return int(value) if value.lstrip("-").isdigit() else default
