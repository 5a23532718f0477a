"""How many processes load images, how far ahead, and what each of them does before it begins."""

from __future__ import annotations

import logging
import math
import os
import shutil
import signal
from typing import Any, Literal, NamedTuple
from weakref import WeakSet

from pytorch_lightning import Trainer

from lightkit.errors import ConfigError
from lightkit.hardware.cores import workers_by_rule
from lightkit.hardware.processor import num_cores

__all__ = [
    "Ahead",
    "Pinning",
    "ahead_that_fits",
    "chosen_num_workers",
    "local_ranks",
    "num_batches_of",
    "num_workers_for",
    "pins",
    "worker_options",
]

log = logging.getLogger("lightkit.data")

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 (where Linux has it; torch's workers hand their batches over in it)
_told: WeakSet[Trainer] = WeakSet()
_told_of_pinning: WeakSet[Trainer] = WeakSet()

Pinning = bool | Literal["auto"]


class Ahead(NamedTuple):
    """How many processes load, and how many batches each has ready at most."""

    num_workers: int
    prefetch_factor: int


def chosen_num_workers(
    asked: int | Literal["auto"], *, trainer: Trainer | None, is_cached: bool, num_batches: int | None = None
) -> int:
    """Give the number of processes that load for this process, and say it once a trainer.

    Args:
        asked: What the config says.
        trainer: Tells the device and the processes of this machine; without one nothing is known of them, and the
            process that asks loads itself.
        is_cached: Whether images come decoded.
        num_batches: Of the largest split, on one process, where that is known; more workers would have nothing to do.

    Raises:
        ConfigError: If a negative number is asked for.
    """
    if asked != "auto":
        if asked < 0:
            raise ConfigError(f"data.init_args.num_workers: expected 0 or more, or auto, got {asked}")
        chosen = asked if num_batches is None else min(asked, num_batches)
        _tell(trainer, chosen, f"num_workers: {asked}" if chosen == asked else f"{asked} set, batches for {chosen}")
        return chosen
    if trainer is None:
        return 0
    device, ranks = trainer.strategy.root_device.type, local_ranks(trainer)
    cores = _cores_of_all(ranks)
    chosen = num_workers_for(cores=cores, ranks=ranks, device=device, is_cached=is_cached, num_batches=num_batches)
    _tell(trainer, chosen, _reasons(cores, ranks, device, is_cached=is_cached))
    return chosen


def num_workers_for(*, cores: int, ranks: int, device: str, is_cached: bool, num_batches: int | None = None) -> int:
    """Choose the number of processes that load for each process that trains.

    The rule is that of `lightkit.hardware.cores.workers_by_rule`.

    Args:
        cores: That this machine lets us use.
        ranks: Processes that train on this machine, and share the cores.
        device: Type of the device that trains, such as ``cuda``.
        is_cached: Whether images come decoded.
        num_batches: Of an epoch on one process; more workers than batches would have nothing to do.
    """
    share = cores // max(1, ranks)
    wanted = workers_by_rule(share, device=device, is_cached=is_cached)
    if num_batches is not None:
        wanted = 0 if num_batches < 2 else min(wanted, num_batches)
    return wanted


def num_batches_of(num_samples: int, batch_size: int, trainer: Trainer | None) -> int:
    """Give the batches of an epoch on one process, the last one included."""
    return math.ceil(num_samples / (trainer.world_size if trainer else 1) / max(1, batch_size))


def local_ranks(trainer: Trainer) -> int:
    """Count the processes that train on this machine, whoever has started them."""
    environment = getattr(trainer.strategy, "cluster_environment", None)
    counted = getattr(environment, "local_size", None)  # Horovod's: its processes have one device each
    if callable(counted):
        return int(counted())
    started = os.environ.get("LOCAL_WORLD_SIZE", "")  # by torchrun, or Ray
    if trainer.world_size > 1 and started.isdigit():
        return max(1, int(started))
    return max(1, min(trainer.num_devices, trainer.world_size))


def ahead_that_fits(asked: Ahead, *, batch_bytes: int, ranks: int = 1, free_bytes: int | None = None) -> Ahead:
    """Lower what is prepared ahead to what the shared memory holds, with a warning; containers often have 64 MB of it.

    Without this a worker dies of a bus error in the middle of an epoch.

    Args:
        asked: What would be without the limit.
        batch_bytes: Size of one batch.
        ranks: Processes of this machine that do the same.
        free_bytes: What is free; default is to ask the machine.
    """
    free = _free_shared_bytes() if free_bytes is None else free_bytes
    if free is None or _needed_bytes(asked, batch_bytes) * ranks <= free:
        return asked
    fewer = [Ahead(asked.num_workers, ahead) for ahead in range(asked.prefetch_factor - 1, 0, -1)]
    fewer += [Ahead(number, 1) for number in range(asked.num_workers - 1, 0, -1)]
    fits = next((each for each in fewer if _needed_bytes(each, batch_bytes) * ranks <= free), Ahead(0, 1))
    log.warning(
        "data: %s has %.0f MB free, %s ready at a time would take up to %.0f MB; %s instead. Give the container more "
        "(docker run --shm-size=2g), or lower data.init_args.batch_size, num_workers or prefetch_factor.",
        _SHARED_MEMORY,
        free / 1e6,
        "batches" if ranks == 1 else f"batches of {ranks} processes",
        _needed_bytes(asked, batch_bytes) * ranks / 1e6,
        _words_for(fits.num_workers) + (f", {fits.prefetch_factor} ahead" if fits.num_workers else ""),
    )
    return fits


def worker_options(ahead: Ahead, *, keep: bool) -> dict[str, Any]:
    """Give what a `DataLoader` is told of its workers.

    Args:
        ahead: How many, and how far.
        keep: Keep them from epoch to epoch.
    """
    if ahead.num_workers == 0:
        return {"num_workers": 0}
    return {
        "num_workers": ahead.num_workers,
        "prefetch_factor": ahead.prefetch_factor,
        "persistent_workers": keep,
        "worker_init_fn": _begin,
    }


def pins(asked: Pinning, trainer: Trainer | None) -> bool:
    """Tell whether batches are put into memory that a GPU reads by itself.

    Args:
        asked: What the config says; `auto` is where a GPU trains.
        trainer: Knows the device; without one there is none.
    """
    is_gpu = trainer is not None and trainer.strategy.root_device.type == "cuda"
    if asked is True and trainer is not None and not is_gpu and trainer not in _told_of_pinning:
        _told_of_pinning.add(trainer)
        device = trainer.strategy.root_device.type
        log.warning("data.init_args.pin_memory: no effect where no GPU trains, but %s", device)
    return is_gpu and asked is not False


def _cores_of_all(ranks: int) -> int:
    """Count the cores of this machine that the processes which train have together.

    Slurm binds each of its tasks to cores of its own (``--cpu-bind``), which then are fewer than those of the job.
    """
    own, of_job = num_cores() or 1, os.environ.get("SLURM_CPUS_ON_NODE", "")
    is_task = os.environ.get("SLURM_NTASKS", "1") != "1"
    return max(own, min(own * ranks, int(of_job))) if is_task and of_job.isdigit() else own


def _begin(worker: int) -> None:  # noqa: ARG001 (torch tells it)
    """Leave Ctrl-C, which reaches every process of a terminal, to the process that trains: it ends its workers.

    torch lets a worker compute with one thread (``_worker_loop``), and ends it when its parent is gone.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _needed_bytes(ahead: Ahead, batch_bytes: int) -> int:
    """Count all that are ready or in work and one that is trained on; twice, as validation may begin in between."""
    return 2 * (ahead.num_workers * ahead.prefetch_factor + 1) * batch_bytes if ahead.num_workers else 0


def _free_shared_bytes() -> int | None:
    try:
        return shutil.disk_usage(_SHARED_MEMORY).free
    except OSError:  # not Linux
        return None


def _tell(trainer: Trainer | None, num_workers: int, why: str) -> None:
    if trainer is not None and trainer.is_global_zero and trainer not in _told:
        _told.add(trainer)
        log.info("data: %s (%s)", _words_for(num_workers), why)


def _words_for(num_workers: int) -> str:
    if num_workers == 0:
        return "the training process loads"
    return f"{num_workers} worker process{'es load' if num_workers > 1 else ' loads'}"


def _reasons(cores: int, ranks: int, device: str, *, is_cached: bool) -> str:
    parts = [f"{cores} core{'s' if cores > 1 else ''}", device]
    parts += [f"shared by {ranks} training processes"] * (ranks > 1) + ["decoded before"] * is_cached
    return ", ".join(parts)
