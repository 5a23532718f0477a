"""The `launch` block of a config, and the launch that it results in.

Engine, number of processes, threads of each.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from lightkit.config import KeyPath, Origin, Resolved, error_at, read_scalar
from lightkit.config.bounds import MAX_FLOAT, Bounds, Form, NonNegativeInt, PositiveInt
from lightkit.errors import ConfigError
from lightkit.hardware.cores import CHOSEN_THREADS

Engine = Literal["local", "horovod", "torchrun", "spark", "ray", "slurm"]
THREADS = "OMP_NUM_THREADS"
_COUNT = r"0*[1-9]\d*"
_HOSTS = Form(
    rf"[^,]+:{_COUNT}(?:,[^,]+:{_COUNT})*",
    "each host with its number of processes, such as 'a:4,b:4'",
)
_NODES = Form(rf"{_COUNT}(?::{_COUNT})?", "the fewest and the most machines, such as 1:4")


@dataclass(frozen=True)
class LaunchSettings:
    """From one process to many.

    Args:
        engine: What starts the processes: `horovod` (horovodrun), `torchrun`, `spark`, `ray`,
            `slurm` (through `lightkit submit`), or `local`, Lightning's own launcher on this
            machine. `null`: `horovod` where the strategy is Horovod's, else `local`.
        processes: Number of processes, each with one device; on each node for `torchrun`. For
            `spark` a negative number means that many on the driver, a positive one on the workers.
        hosts: `horovod` only: hosts and the processes that each may have, as in `a:4,b:4`.
        nodes: `torchrun` and `slurm`: number of machines; for `torchrun` also the fewest and the
            most, as in `1:4`.
        rendezvous: `torchrun` with several nodes: `HOST:PORT` at which they find each other.
        max_restarts: `torchrun` only: how often all processes begin again from the last checkpoint
            once one is lost.
        max_failures: `ray` only: the same.
        master: `spark`: URL of the cluster, such as `spark://host:7077`; `ray`: address of the
            cluster. `null`: the session that is there, or this machine.
        controller: `horovod` only: `gloo` or `mpi`.
        network_interface: Interface by which machines reach each other, such as `eth0`, where the
            launcher takes the wrong one.
        timeout_s: Seconds in which all processes must have arrived.
        stall_timeout_s: With several processes the most that `watchdog` lets one of them wait
            without a finished batch, in seconds, however long its steps are; 0 waits for ever.
        all_ranks: Show what the other processes write too, each line after its rank.
        threads: Threads of each process. `null`: the cores of a machine shared out among its
            processes; one on a cluster of Spark or Ray, where the number of ranks on a machine is
            unknown.
        slurm: Options of `sbatch`, such as `{partition: gpu, time: "2:00:00"}`.
    """

    engine: Engine | None = None
    processes: int | None = None
    hosts: Annotated[str, _HOSTS] | None = None
    # text first: YAML 1.1 reads 1:4 as 64
    nodes: Annotated[str, _NODES] | Annotated[int, Bounds(ge=1, expected="a number above 0")] = 1
    rendezvous: Annotated[str, Form(r".+:\d{1,5}", "HOST:PORT")] | None = None
    max_restarts: NonNegativeInt = 0
    max_failures: NonNegativeInt = 0
    master: Annotated[str, Form(r"\D.*", "the address of a cluster")] | None = None
    controller: Literal["gloo", "mpi"] = "gloo"
    network_interface: (
        Annotated[str, Form(r"\D.*", "the name of an interface, such as eth0")] | None
    ) = None
    timeout_s: Annotated[float, Bounds(gt=0, le=MAX_FLOAT, expected="seconds above 0")] = 300.0
    stall_timeout_s: Annotated[
        float, Bounds(ge=0, le=MAX_FLOAT, expected="seconds, or 0 to wait for ever")
    ] = 600.0
    all_ranks: bool = False
    threads: PositiveInt | None = None
    slurm: dict[str, str | bool | int | float | None] | None = None

    def choose_engine(self, strategy: str | None) -> str:
        """Return what starts the processes.

        Args:
            strategy: Name of the strategy, None if Lightning chooses it.
        """
        return self.engine or ("horovod" if strategy == "horovod" or self.hosts else "local")

    @property
    def num_nodes(self) -> tuple[int, int]:
        """The fewest and the most machines."""
        fewest, _, most = str(self.nodes).partition(":")
        return int(fewest), int(most or fewest)

    @property
    def slots(self) -> dict[str, int]:
        """Processes that each host may have."""
        pairs = (
            host.strip().rpartition(":") for host in (self.hosts or "").split(",") if host.strip()
        )
        return {host: int(slots) for host, _, slots in pairs}


# -- the block -------------------------------------------------------------------------------------


_ENGINES_OF = {
    "hosts": ("horovod",),
    "controller": ("horovod",),
    "nodes": ("torchrun", "slurm"),
    "rendezvous": ("torchrun",),
    "max_restarts": ("torchrun",),
    "max_failures": ("ray",),
    "master": ("spark", "ray"),
    "network_interface": ("horovod", "torchrun", "spark", "ray"),
    "slurm": ("slurm",),
}


def read_settings(resolved: Resolved) -> LaunchSettings:
    """Read the `launch` block of a config, whose keys and types are checked with all others.

    Raises:
        ConfigError: If two values in it contradict each other, or a key is for another engine than
            the one in it.
    """
    settings = resolved.read_section("launch", LaunchSettings)

    def refuse(key: str, expected: str) -> ConfigError:
        text = f"launch.{key}: expected {expected}, got {getattr(settings, key)!r}"
        return error_at(text, resolved.origin_of(("launch", key)))

    if settings.processes == 0:
        raise refuse("processes", "a number of processes, such as 2 (spark: -2 on the driver)")
    if settings.num_nodes[0] > settings.num_nodes[1]:
        raise refuse("nodes", "the fewest machines, then the most, such as 1:4")
    if settings.engine is not None:
        _check_keys(settings, resolved, settings.engine)
    return settings


def check_engine(settings: LaunchSettings, resolved: Resolved, *, strategy: str | None) -> None:
    """Check that the engine which starts the processes uses all keys of the config about them.

    Args:
        settings: The config's `launch` block.
        resolved: The config, with today's trainer keys.
        strategy: Name of the strategy, None if Lightning chooses it.

    Raises:
        ConfigError: If a key is for other engines only.
    """
    engine = settings.choose_engine(strategy)
    _check_keys(settings, resolved, engine)
    path = ("trainer", "num_nodes")
    num_nodes = read_scalar(resolved.section("trainer").get("num_nodes"))
    if not isinstance(num_nodes, int) or num_nodes == 1:
        return
    if engine not in ("torchrun", "slurm"):
        raise error_at(
            f"trainer.num_nodes: {num_nodes} machines whose processes are started by hand are not"
            f" joined to one run, and the engine here is {engine!r}; set launch.engine: torchrun,"
            f" launch.nodes: {num_nodes} and launch.rendezvous",
            resolved.origin_of(path),
        )
    fewest, most = settings.num_nodes
    is_asked = engine == "slurm" and most == 1  # `lightkit submit` takes the trainer's number then
    if (
        not is_asked
        and not fewest <= num_nodes <= most
        and not _is_overruled(resolved, path, ("launch", "nodes"))
    ):
        raise error_at(
            f"trainer.num_nodes: {num_nodes} contradicts launch.nodes: {settings.nodes}; set"
            " launch.nodes only",
            resolved.origin_of(path),
            resolved.origins.get(("launch", "nodes")),
        )


def _check_keys(settings: LaunchSettings, resolved: Resolved, engine: str) -> None:
    for key, engines in _ENGINES_OF.items():
        # as text, which a flag has for the number of nodes
        is_default = str(getattr(settings, key)) in ("None", str(getattr(LaunchSettings, key)))
        if (
            is_default
            or engine in engines
            or _is_overruled(resolved, ("launch", key), ("launch", "engine"))
        ):
            continue
        here = (
            "launch.engine is"
            if settings.engine is not None
            else "launch.engine is not said, which comes to"
        )
        raise error_at(
            f"launch.{key}: is for the engine {' or '.join(engines)} only, but {here} {engine!r}",
            resolved.origin_of(("launch", key)),
            resolved.origins.get(("launch", "engine")),
        )


def _is_overruled(resolved: Resolved, path: KeyPath, by: KeyPath) -> bool:
    """Return whether a higher layer sets the other key: a lower one is of another engine."""
    lower = resolved.origins.get(path)
    higher = resolved.origins.get(by)
    return (
        lower is not None
        and higher is not None
        and resolved.rank_of(lower) < resolved.rank_of(higher)
    )


_STRATEGIES_OF = {
    "horovod": ("horovod",),
    "spark": ("ddp", "horovod"),
    "ray": ("ddp",),
    "torchrun": ("ddp", "fsdp", "deepspeed", "model_parallel"),
}


# -- the launch ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """A launch that is about to begin.

    Args:
        engine: What starts the processes: `local`, `horovod`, `torchrun`, `spark`, `ray`.
        processes: Number of all processes; of the fewest nodes if their number may change.
        local_processes: Number of them on this machine, if that is known, else 1.
        strategy: `horovod` or `ddp`.
        uses_gpus: Whether each has a GPU.
        settings: The config's `launch` block.
        forks: Whether they are forked from one process that has imported torch; of the engine
            `local` alone.
    """

    engine: str
    processes: int
    local_processes: int
    strategy: str
    uses_gpus: bool
    settings: LaunchSettings
    forks: bool = False

    def threads(self, num_cores: int) -> int:
        """Compute the threads of each process, so that there are not more threads than cores.

        Args:
            num_cores: Cores of this machine.
        """
        if self.settings.threads is not None:
            return self.settings.threads
        if self.engine in ("spark", "ray"):
            master = self.settings.master or os.environ.get(
                {"spark": "MASTER", "ray": "RAY_ADDRESS"}[self.engine]
            )
            if master is not None and not re.match(r"local$|local\[|local-cluster\[", master):
                return 1  # it is unknown how many processes share a machine of a cluster
        return max(1, num_cores // max(1, self.local_processes))

    def environment(
        self, num_cores: int, environ: Mapping[str, str] = os.environ
    ) -> dict[str, str]:
        """Build the environment variables that all processes need for this engine."""
        is_set = self.settings.threads is None and environ.get(THREADS)
        variables = (
            {} if is_set else dict.fromkeys((THREADS, CHOSEN_THREADS), str(self.threads(num_cores)))
        )
        if self.settings.network_interface:
            names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
            variables |= dict.fromkeys(names, self.settings.network_interface)
        if self.engine == "torchrun":
            # torch 2.9 and 2.15: after a restart the ranks read each other's old addresses, and
            # hang
            variables["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        return variables


def plan_launch(
    settings: LaunchSettings,
    *,
    strategy: str | None,
    processes: int | None,
    uses_gpus: bool = False,
    can_fork: bool = False,
    origin: Origin | None = None,
) -> Plan | None:
    """Decide which processes are to be started; None if this process is the only one.

    Args:
        settings: The config's `launch` block.
        strategy: Name of the strategy, None if Lightning chooses it.
        processes: Number of processes on this machine by the hardware keys, as far as it is known.
        uses_gpus: Whether each has a GPU.
        can_fork: Whether processes of this machine can be forked, as they compute on its CPUs.
        origin: Place that sets the engine or the number of processes, for errors.

    Raises:
        ConfigError: If the engine and the strategy do not fit, or the number of processes is not
            known.
    """
    engine = settings.choose_engine(strategy)
    name = strategy or "ddp"
    _check_strategy(engine, strategy, origin)
    slots = settings.slots.values()
    wanted = settings.processes or sum(slots) or processes

    # Lightning starts this command again for each rank, unless it forks or a class decides.
    num_local = wanted or 1
    if engine == "slurm" or (engine == "horovod" and settings.engine is None and num_local == 1):
        return None
    if engine == "local":
        if num_local == 1 or not _is_started_by_script(name):
            return None
        return Plan("local", num_local, num_local, name, uses_gpus, settings, forks=can_fork)

    wanted = _require_num_processes(engine, wanted, settings, origin)
    if wanted < 0:  # on the driver, as HorovodRunner has it, which needs no Spark
        engine = "horovod" if strategy == "horovod" else "torchrun"
        wanted = -wanted
    num_nodes = _require_num_nodes(settings, origin) if engine == "torchrun" else 1
    return Plan(engine, wanted * num_nodes, max(slots, default=wanted), name, uses_gpus, settings)


def _check_strategy(engine: str, strategy: str | None, origin: Origin | None) -> None:
    """Refuse a strategy that the engine does not start ranks for."""
    strategies = _STRATEGIES_OF.get(engine)
    if strategies is not None and not (strategy or "ddp").startswith(strategies):
        takes = f"takes the strategy {' or '.join(strategies)}"
    elif strategies is None and strategy == "horovod":
        takes = "starts no ranks for Horovod"
    else:
        return
    raise error_at(
        f"launch.engine: the engine {engine!r} {takes}; accelerator.strategy is {strategy!r}",
        origin,
    )


def _is_started_by_script(strategy: str) -> bool:
    """Return whether Lightning starts the command again for each further rank of this strategy."""
    is_fork = strategy.startswith(("ddp_spawn", "ddp_fork", "ddp_notebook"))
    return strategy.startswith(_STRATEGIES_OF["torchrun"]) and not is_fork


def _require_num_nodes(settings: LaunchSettings, origin: Origin | None) -> int:
    """Return the fewest machines; several that do not know how to find each other are an error."""
    fewest, most = settings.num_nodes
    if most > 1 and settings.rendezvous is None:
        raise error_at(
            "launch.nodes: several machines need launch.rendezvous, the HOST:PORT of one of them",
            origin,
        )
    return fewest


def _require_num_processes(
    engine: str, wanted: int | None, settings: LaunchSettings, origin: Origin | None
) -> int:
    """Return the number of processes.

    An unknown one, and one that the engine cannot take, are errors.
    """
    if wanted is None:
        raise error_at(
            f"launch.processes: the engine {engine!r} must know how many; set launch.processes",
            origin,
        )
    if wanted < 0 and engine != "spark":
        raise error_at(
            f"launch.processes: {wanted} is for the engine spark only; expected 1 or more", origin
        )
    num_slots = sum(settings.slots.values())
    if 0 < num_slots < wanted:
        raise error_at(
            f"launch.processes: {wanted} processes, but the hosts"
            f" {settings.hosts} have {num_slots} slots",
            origin,
        )
    return wanted
