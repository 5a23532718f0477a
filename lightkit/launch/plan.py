"""What is to be started: engine, number of processes, threads of each."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from socket import gethostname

from lightkit.config import Origin, mistake
from lightkit.launch.settings import LaunchSettings

__all__ = ["CHOSEN_THREADS", "THREADS", "Plan", "plan_launch"]

THREADS = "OMP_NUM_THREADS"
CHOSEN_THREADS = "_LIGHTKIT_THREADS"
"""Says which number of threads no user has set: lightkit has, beside `OMP_NUM_THREADS`."""


@dataclass(frozen=True)
class Plan:
    """A launch that is about to begin.

    Args:
        engine: What starts the processes: `local`, `horovod`, `torchrun`, `spark`, `ray`.
        processes: Number of all processes; of the fewest nodes where their number may change; negative for so many
            on Spark's driver.
        local_processes: Number of them on this machine, where that is known, else 1.
        strategy: `horovod` or `ddp`.
        uses_gpus: Whether each has a GPU.
        settings: The config's `launch` block.
    """

    engine: str
    processes: int
    local_processes: int
    strategy: str
    uses_gpus: bool
    settings: LaunchSettings

    def threads(self, num_cores: int) -> int:
        """Threads of each process: more processes than cores would fight for them.

        Args:
            num_cores: Cores of this machine.
        """
        if self.settings.threads is not None:
            return self.settings.threads
        return max(1, num_cores // max(1, self.local_processes)) if self._is_here else 1

    @property
    def _is_here(self) -> bool:
        """Whether this machine has ranks: of a cluster of Spark or Ray nobody knows how many share a machine."""
        master = self.settings.master or os.environ.get({"spark": "MASTER", "ray": "RAY_ADDRESS"}.get(self.engine, ""))
        is_local = master is None or master == "local" or master.startswith(("local[", "local-cluster["))
        return self.engine not in ("spark", "ray") or self.processes < 0 or is_local

    def environment(self, num_cores: int, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Variables of the engine's own that all processes need."""
        is_set = self.settings.threads is None and environ.get(THREADS)
        given = {} if is_set else dict.fromkeys((THREADS, CHOSEN_THREADS), str(self.threads(num_cores)))
        if self.settings.network_interface:
            given |= dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), self.settings.network_interface)
        if self.engine == "torchrun" or (self.engine == "spark" and self.strategy == "ddp"):
            # torch 2.9 and 2.15: after a restart the ranks read each other's old addresses, and hang
            given["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        return given


def plan_launch(
    settings: LaunchSettings,
    *,
    strategy: str | None,
    processes: int | None,
    uses_gpus: bool = False,
    origin: Origin | None = None,
) -> Plan | None:
    """Decide what has to be started; None where one process, this one, is all.

    Args:
        settings: The config's `launch` block.
        strategy: Name of the strategy, None where Lightning chooses it.
        processes: Number of processes on this machine that the hardware keys ask for, as far as it is known.
        uses_gpus: Whether each has a GPU.
        origin: Place that names the engine or the number of processes, for errors.

    Raises:
        ConfigError: If the engine and the strategy do not go together, or the number of processes is not known.
    """
    engine = settings.engine or ("horovod" if strategy == "horovod" or settings.hosts else "local")
    _check_strategy(engine, strategy, origin)
    wanted = settings.processes
    if wanted is None:
        wanted = sum(settings.slots.values()) if settings.hosts else processes
    if engine in ("local", "slurm") or (engine == "horovod" and settings.engine is None and (wanted or 1) == 1):
        is_many = engine == "local" and (wanted or 1) > 1 and _starts_itself(strategy or "ddp")
        return _plan("local", wanted or 1, wanted or 1, settings, strategy, uses_gpus=uses_gpus) if is_many else None
    if wanted is None:
        raise mistake(f"launch.processes: the engine {engine!r} must know how many; say launch.processes", origin)
    if wanted < 0 and engine != "spark":
        raise mistake(f"launch.processes: {wanted} has a meaning for the engine spark only; expected 1 or more", origin)
    if settings.hosts and (there := sum(settings.slots.values())) < wanted:
        raise mistake(
            f"launch.processes: {wanted} processes, but the hosts {settings.hosts} have {there} slots", origin
        )
    fewest, most = settings.num_nodes
    if engine == "torchrun" and most > 1 and settings.rendezvous is None:
        raise mistake("launch.nodes: several machines need launch.rendezvous, the HOST:PORT of one of them", origin)
    here = _processes_here(settings) if settings.hosts else abs(wanted)
    everywhere = wanted * (fewest if engine == "torchrun" else 1)
    return _plan(engine, everywhere, here, settings, strategy, uses_gpus=uses_gpus)


def _starts_itself(strategy: str) -> bool:
    """Whether Lightning starts this command again for each rank, as it does unless it forks or a class decides."""
    return strategy.startswith(("ddp", "fsdp", "deepspeed", "model_parallel")) and not strategy.startswith(
        ("ddp_spawn", "ddp_fork", "ddp_notebook")
    )


def _processes_here(settings: LaunchSettings) -> int:
    """Processes on the fullest machine, where all names of this one are one machine."""
    own = sum(slots for host, slots in settings.slots.items() if host in ("localhost", "127.0.0.1", gethostname()))
    return max(own, *settings.slots.values())


def _plan(
    engine: str, processes: int, here: int, settings: LaunchSettings, strategy: str | None, *, uses_gpus: bool
) -> Plan:
    return Plan(engine, processes, here, strategy or "ddp", uses_gpus, settings)


def _check_strategy(engine: str, strategy: str | None, origin: Origin | None) -> None:
    if engine == "horovod" and strategy != "horovod":
        said = "no strategy" if strategy is None else f"the strategy {strategy!r}"
        raise mistake(
            f"launch.engine: horovodrun starts ranks for the strategy horovod, but there is {said}; "
            f"say accelerator.strategy: horovod, or take the engine torchrun",
            origin,
        )
    if strategy == "horovod" and engine in ("local", "torchrun", "ray", "slurm"):
        raise mistake(
            f"launch.engine: the engine {engine!r} starts ranks for ddp; the strategy horovod takes the engine "
            f"horovod or spark",
            origin,
        )
    if (
        engine in ("torchrun", "ray", "spark")
        and strategy not in (None, "ddp", "horovod")
        and not strategy.startswith("ddp")
    ):
        if engine == "torchrun" and strategy.startswith(("fsdp", "deepspeed", "model_parallel")):
            return
        raise mistake(f"launch.engine: the engine {engine!r} trains with the strategy ddp, not {strategy!r}", origin)
