"""Data loaders: resumable in training, in plain order elsewhere.

Worker counts fit the machine.

Each draws its workers' seeds from a generator of its own, never from the global one, so that the
number of loaders and workers has no influence on the model's random numbers.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import signal
from collections.abc import Callable, Sized
from contextlib import suppress
from functools import wraps
from typing import Any, Literal, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from pytorch_lightning import Trainer
from pytorch_lightning.trainer.connectors.logger_connector.result import _ResultMetric
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lightkit.data.sampler import (
    EvenBatchSampler,
    EvenDistributedSampler,
    ResumableSampler,
    SampleKey,
    position_of,
    sample_randomness,
)
from lightkit.errors import ConfigError, format_count
from lightkit.hardware.cores import workers_by_rule
from lightkit.hardware.processor import num_cores

log = logging.getLogger("lightkit.data")

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 (where Linux has it; torch's workers hand their batches over in it)
_logged: WeakKeyDictionary[Trainer, set[str]] = WeakKeyDictionary()

Pinning = bool | Literal["auto"]


def choose_num_workers(
    asked: int | Literal["auto"],
    *,
    trainer: Trainer | None,
    is_cached: bool,
    num_samples: int,
    batch_size: int,
) -> int:
    """Choose the number of processes that load for this process, and log it once a trainer.

    Args:
        asked: Value of the config; for `auto` the rule of
            `lightkit.hardware.cores.workers_by_rule`.
        trainer: Knows the device and the processes of this machine; without one this process loads
            by itself.
        is_cached: Whether images come decoded.
        num_samples: Of the largest split.
        batch_size: On one process; more workers than batches would have nothing to do.
    """
    num_batches = math.ceil(num_samples / (trainer.world_size if trainer else 1) / batch_size)
    if asked != "auto":
        chosen = min(asked, num_batches)
        reason = (
            f"num_workers: {asked}" if chosen == asked else f"{asked} set, batches for {chosen}"
        )
    elif trainer is None:
        return 0
    else:
        wanted, reason = _apply_rule(trainer, is_cached=is_cached)
        chosen = min(wanted, num_batches) if num_batches > 1 else 0
    if trainer is not None and trainer.is_global_zero:
        _log_once(
            trainer, logging.INFO, f"data: {_format_workers(chosen)} ({reason})", key="workers"
        )
    return chosen


def _apply_rule(trainer: Trainer, *, is_cached: bool) -> tuple[int, str]:
    """Return the workers of a process by the cores, the device and the cache.

    Return what that was decided by, too.
    """
    device = trainer.strategy.root_device.type
    ranks = local_ranks(trainer)
    cores = num_cores() or 1
    of_job = os.environ.get("SLURM_CPUS_ON_NODE", "")
    if os.environ.get("SLURM_NTASKS", "1") != "1" and of_job.isdigit():
        # Slurm binds each task to cores of its own (--cpu-bind), fewer than those of the job
        cores = max(cores, min(cores * ranks, int(of_job)))
    reasons = [format_count(cores, "core"), device]
    if ranks > 1:
        reasons.append(f"shared by {ranks} training processes")
    if is_cached:
        reasons.append("nothing to decode")
    return workers_by_rule(cores // ranks, device=device, is_cached=is_cached), ", ".join(reasons)


def _format_workers(num_workers: int) -> str:
    if num_workers == 0:
        return "the training process loads"
    return f"{num_workers} worker process{'es load' if num_workers > 1 else ' loads'}"


def _log_once(trainer: Trainer, level: int, message: str, *, key: str) -> None:
    logged = _logged.setdefault(trainer, set())
    if key not in logged:
        logged.add(key)
        log.log(level, "%s", message)


def local_ranks(trainer: Trainer) -> int:
    """Count the processes that train on this machine, whoever has started them."""
    environment = getattr(trainer.strategy, "cluster_environment", None)
    # Horovod's: its processes have one device each
    counted = getattr(environment, "local_size", None)
    if callable(counted):
        return int(counted())
    started = os.environ.get("LOCAL_WORLD_SIZE", "")  # by torchrun, or Ray
    if trainer.world_size > 1 and started.isdigit():
        return max(1, int(started))
    return max(1, min(trainer.num_devices, trainer.world_size))


def worker_options(
    num_workers: int,
    prefetch_factor: int,
    *,
    keep: bool,
    batch_bytes: int | None = None,
    trainer: Trainer | None = None,
) -> dict[str, Any]:
    """Return the arguments of a `DataLoader` for its workers.

    No more is prepared ahead than the shared memory holds, of which containers often have 64 MB; a
    warning says what was lowered. Without this a worker dies of a bus error in the middle of an
    epoch.

    Args:
        num_workers: Processes that load.
        prefetch_factor: Batches that each has ready at most.
        keep: From epoch to epoch.
        batch_bytes: Size of one batch, if it is known.
        trainer: Knows the processes of this machine, which do the same.
    """
    num_ready = num_workers * prefetch_factor
    with suppress(OSError):  # not Linux
        if num_workers and batch_bytes is not None:
            free_bytes = shutil.disk_usage(_SHARED_MEMORY).free
            ranks = 1 if trainer is None else local_ranks(trainer)
            # all that are ready or in work and one that is trained on; twice, as validation may
            # begin in between
            most = max(0, free_bytes // (2 * batch_bytes * ranks) - 1)
            if num_ready > most:
                num_workers, prefetch_factor = min(num_workers, most), max(1, most // num_workers)
                log.warning(
                    "data: %s has %.0f MB free, batches ready at a time would take up to %.0f MB; "
                    "%s, %d ahead, instead. Give the container more (docker run --shm-size=2g), or "
                    "lower data.init_args.batch_size, num_workers or prefetch_factor.",
                    _SHARED_MEMORY, free_bytes / 1e6,
                    2 * (num_ready + 1) * batch_bytes * ranks / 1e6,
                    _format_workers(num_workers), prefetch_factor,
                )  # fmt: skip
    if num_workers == 0:
        return {"num_workers": 0}
    return {
        "num_workers": num_workers,
        "prefetch_factor": prefetch_factor,
        "persistent_workers": keep,
        "worker_init_fn": _ignore_interrupts,
    }


def _ignore_interrupts(worker: int) -> None:  # noqa: ARG001 (torch's signature)
    """Leave Ctrl-C, which reaches every process of a terminal, to the training process.

    The training process ends its workers.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def pins(asked: Pinning, trainer: Trainer | None) -> bool:
    """Decide whether batches are put into memory that a GPU reads by itself.

    `auto` is where a GPU trains.
    """
    if trainer is None:
        return False
    device = trainer.strategy.root_device.type
    if asked is True and device != "cuda":
        message = f"data.init_args.pin_memory: no effect where no GPU trains, but {device}"
        _log_once(trainer, logging.WARNING, message, key="pinning")
    return device == "cuda" and asked is not False


def count_in_fractions() -> None:
    """Make ``self.log(..., sync_dist=True)`` divide by the mean number of samples a rank.

    Not by its whole part.

    Lightning (2.6.6, its issue 21859) counts in integers, so that of 27 samples on two ranks it
    divides the mean of the sums by 13 instead of by 13.5. It holds for metrics made from now on, in
    this process.
    """
    before = _ResultMetric.compute
    if getattr(before, "counts_in_fractions", False):
        return

    @wraps(before)
    def compute(metric: _ResultMetric) -> Tensor:
        if metric.is_tensor and metric.meta.is_mean_reduction:
            metric.cumulated_batch_size = metric.cumulated_batch_size.float()
        return before(metric)

    compute.counts_in_fractions = True  # type: ignore[attr-defined]
    _ResultMetric.compute = compute  # type: ignore[assignment, method-assign]


class LabelledSource(Protocol):
    """Images and their labels, before any transform."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> tuple[Any, int]: ...


class Transformed(Dataset[tuple[torch.Tensor, int]]):
    """Applies a transform to a source's images, with randomness from (seed, epoch, index) alone.

    Args:
        source: Images and labels.
        transform: From one image to a tensor.
        seed: Of the transform's randomness.
    """

    def __init__(
        self, source: LabelledSource, transform: Callable[[Any], torch.Tensor], *, seed: int
    ) -> None:
        self.source = source
        self.transform = transform
        self.seed = seed

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, key: SampleKey | int) -> tuple[torch.Tensor, int]:
        key = key if isinstance(key, SampleKey) else SampleKey(key, epoch=0)
        image, label = self.source[key.index]
        with sample_randomness(self.seed, key):
            return self.transform(image), label


class ResumableLoader(DataLoader[Any]):
    """A loader over a `ResumableSampler`.

    Lightning asks a loader for these two methods before it believes that a training can go on in
    the middle of an epoch. The position itself is Lightning's own count, see `position_of`; the
    state here shows whether it still means the same samples.
    """

    sampler: Any

    def state_dict(self) -> dict[str, int]:
        """Return what decides the order of the samples and the size of a batch."""
        sampler = self.sampler  # Lightning's overfit_batches puts another in its place
        return sampler.state_dict() if isinstance(sampler, ResumableSampler) else {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Warn where the rest of the epoch will not be what it would have been."""
        if isinstance(self.sampler, ResumableSampler) and state:
            self.sampler.load_state_dict(state)


def train_loader(
    dataset: Sized,
    *,
    batch_size: int,
    seed: int,
    trainer: Trainer | None = None,
    lengths: NDArray[np.int64] | None = None,
    **options: Any,
) -> ResumableLoader:
    """Make a loader of shuffled batches that goes on where the restored checkpoint left off.

    Args:
        dataset: Takes a `SampleKey` as its index, or an index where its attribute ``has_epochs`` is
            False. Where it has a method ``collate``, that makes the batches; where it has
            ``sample_bytes``, the size of a sample in a batch, no more is loaded ahead than shared
            memory holds.
        batch_size: Samples of one batch on one process.
        seed: Of the order.
        trainer: Knows the position, and this process's share. Without one: epoch 0, all samples.
        lengths: Of the samples, for batches of samples of like length; None for batches of any.
        options: ``num_workers``, processes that load (0 loads in the training process, and is the
            default); ``prefetch_factor``, batches that each of them prepares ahead (2);
            ``persistent_workers``, which are kept from epoch to epoch (True); ``pin_memory``, see
            `pins` (`auto`).

    Raises:
        ConfigError: If ``prefetch_factor`` is below 1.
    """
    sampler = ResumableSampler(
        dataset,
        batch_size=batch_size,
        num_replicas=trainer.world_size if trainer else 1,
        rank=trainer.global_rank if trainer else 0,
        seed=seed,
    )
    sampler.lengths = lengths
    sampler.has_keys = getattr(dataset, "has_epochs", True)
    epoch, batches = position_of(trainer)
    sampler.resume(epoch=epoch, batches=batches)
    loader: ResumableLoader = make_loader(
        dataset, batch_size, seed, trainer, kind=ResumableLoader, sampler=sampler, **options
    )
    return loader


def eval_loader(
    dataset: Sized, *, batch_size: int, seed: int, trainer: Trainer | None = None, **options: Any
) -> DataLoader[Any]:
    """Make a loader of batches in the dataset's order.

    Among several processes each sample counts once.

    Each process gets its share in as many batches as the others, so that a model's collectives in a
    step find all of them; batches may have fewer samples than ``batch_size``, and one fewer than
    another process's. Only with a batch size of 1, or fewer samples than processes, some samples
    are there twice where they do not share evenly, with a warning.

    Args:
        dataset: As for `train_loader`, and so are the other arguments.
        batch_size: Most samples of one batch on one process.
        seed: Of the workers' randomness.
        trainer: Knows the processes.
        options: As for `train_loader`.
    """
    loader: DataLoader[Any]
    if trainer is None or trainer.world_size == 1:
        loader = make_loader(dataset, batch_size, seed, trainer, **options)
        return loader
    count_in_fractions()
    share = EvenDistributedSampler(
        dataset, batch_size=batch_size, num_replicas=trainer.world_size, rank=trainer.global_rank
    )
    if share.num_repeated:
        message = (
            f"the metrics count {format_count(share.num_repeated, 'sample')} more than the"
            f" {len(dataset)} that there are, as these do not share evenly among"
            f" {trainer.world_size} processes. Evaluate in one"
            " process, or with data.init_args.batch_size of 2 or more"
        )
        _log_once(trainer, logging.WARNING, message, key="repeats")
    batches = EvenBatchSampler(share, batch_size)
    loader = make_loader(dataset, batch_size, seed, trainer, batch_sampler=batches, **options)
    # Lightning (2.6.6, `_requires_distributed_sampler`) leaves a loader alone whose `sampler` is a
    # DistributedSampler. torch does not let one be given beside a batch sampler, and does not read
    # it there.
    vars(loader)["sampler"] = share
    return loader


def predict_loader(
    dataset: Sized, *, batch_size: int, seed: int, trainer: Trainer | None = None, **options: Any
) -> DataLoader[Any]:
    """Make a loader of batches in the dataset's order.

    Lightning itself divides them among processes, without repeats.

    Args:
        dataset: As for `train_loader`, and so are the other arguments.
        batch_size: Most samples of one batch on one process.
        seed: Of the workers' randomness.
        trainer: Knows the device.
        options: As for `train_loader`.
    """
    loader: DataLoader[Any] = make_loader(
        dataset, batch_size, seed, trainer, **{**options, "persistent_workers": False}
    )
    return loader


def make_loader(
    dataset: Sized,
    batch_size: int | None,
    seed: int,
    trainer: Trainer | None,
    *,
    kind: type[Any] = DataLoader,
    num_workers: int = 0,
    prefetch_factor: int = 2,
    persistent_workers: bool = True,
    pin_memory: Pinning = "auto",
    start_method: str | None = None,
    **order: Any,
) -> Any:
    """Make a loader as `train_loader` does.

    Without ``batch_size`` a sample of the dataset is a batch of this rank.
    """
    if prefetch_factor < 1:
        raise ConfigError(
            f"data.init_args.prefetch_factor: expected 1 or more, got {prefetch_factor}"
        )
    world_size = trainer.world_size if trainer else 1
    num_batches = (
        len(dataset) if batch_size is None else math.ceil(len(dataset) / world_size / batch_size)
    )
    sample_bytes = getattr(dataset, "sample_bytes", None)
    workers = worker_options(
        min(num_workers, num_batches), prefetch_factor, keep=persistent_workers,
        batch_bytes=None if sample_bytes is None else (batch_size or 1) * sample_bytes,
        trainer=trainer,
    )  # fmt: skip
    return kind(
        dataset,
        collate_fn=getattr(dataset, "collate", None),
        pin_memory=pins(pin_memory, trainer),
        generator=torch.Generator().manual_seed(seed),
        multiprocessing_context=start_method if workers["num_workers"] else None,
        **({} if "batch_sampler" in order else {"batch_size": batch_size}),
        **order,
        **workers,
    )
