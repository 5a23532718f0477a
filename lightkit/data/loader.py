"""Data loaders: resumable in training, in plain order elsewhere, with worker counts that fit the machine.

Each draws its workers' seeds from a generator of its own, never from the global one, so that the number of loaders and
workers has no influence on the model's random numbers.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence, Sized
from functools import wraps
from typing import Any, Literal, NamedTuple, Protocol
from weakref import WeakSet

import torch
from pytorch_lightning import Trainer
from pytorch_lightning.trainer.connectors.logger_connector.result import _ResultMetric
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lightkit.data.image_dataset import num_read
from lightkit.data.sampler import (
    EvenBatchSampler,
    EvenDistributedSampler,
    ResumableSampler,
    SampleKey,
    position_of,
    sample_randomness,
    tell_of_changes,
)
from lightkit.errors import ConfigError, DataError
from lightkit.hardware.cores import workers_by_rule
from lightkit.hardware.processor import num_cores

__all__ = [
    "Ahead",
    "Counted",
    "CountedBatches",
    "CountingLoader",
    "LabelledSource",
    "Pinning",
    "ResumableLoader",
    "Transformed",
    "ahead_that_fits",
    "chosen_num_workers",
    "count_in_fractions",
    "eval_loader",
    "local_ranks",
    "num_batches_of",
    "num_workers_for",
    "pins",
    "predict_loader",
    "refuse_left_out",
    "train_loader",
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


def count_in_fractions() -> None:
    """Let ``self.log(..., sync_dist=True)`` divide by the mean number of samples a rank, not by its whole part.

    Lightning (2.6.6, its issue 21859) counts in integers, so that of 27 samples on two ranks it divides the mean of the
    sums by 13 instead of by 13.5. It holds for metrics made from now on, in this process.
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


class Counted(Protocol):
    """A loader that counts what it gives."""

    num_seen: int
    num_left_out: int

    def forget_counts(self) -> None:
        """Count from 0 again."""


class CountingLoader(DataLoader[Any]):
    """A loader that counts where its dataset, with ``defects``, leaves samples out of its batches, see `make_batch`."""

    num_seen = 0
    """Samples of all batches that were given since `forget_counts`, those that were left out counted."""
    num_left_out = 0
    """Those of them that could not be read."""

    def __iter__(self) -> Any:
        batches, sampler = super().__iter__(), self.sampler
        if (begin := getattr(self.dataset, "begin", None)) is not None:  # of features, which are computed ahead
            begin(self.batch_sampler)
        if not hasattr(self.dataset, "defects"):
            return batches
        first = sampler.first_batch if isinstance(sampler, ResumableSampler) else 0
        return CountedBatches(batches, self.count, first=first)

    def forget_counts(self) -> None:
        """Count from 0 again."""
        self.num_seen = self.num_left_out = 0

    def count(self, number: int, batch: Any) -> None:
        """Count the samples of a batch that was given."""
        size = self._size(number)
        self.num_seen += size
        self.num_left_out += size - num_read(batch)

    def _size(self, number: int) -> int:
        """Samples that a batch was to have."""
        batches: Any = self.batch_sampler
        num: int = len(batches.sampler)
        if isinstance(batches, EvenBatchSampler) and isinstance(batches.sampler, EvenDistributedSampler):
            return len(range(number, num, len(batches)))
        return min(int(batches.batch_size), num - number * int(batches.batch_size))


def refuse_left_out(loaders: Sequence[Counted], *, what: str, max_fraction: float, trainer: Trainer | None) -> None:
    """Refuse to go on after an epoch that lacked too much, all ranks together, and count from 0 again.

    Args:
        loaders: Have counted; equally many on each rank.
        what: Is counted, such as images.
        max_fraction: Share of all that may be lacking; of none of the loaders may everything be.
        trainer: Knows the ranks.

    Raises:
        DataError: If more is.
    """
    counts = torch.tensor([[loader.num_seen, loader.num_left_out] for loader in loaders], dtype=torch.float64)
    for loader in loaders:
        loader.forget_counts()
    if trainer is not None and trainer.world_size > 1:
        counts = trainer.strategy.reduce(counts.to(trainer.strategy.root_device), reduce_op="sum")
    by_loader = [(int(seen), int(left_out)) for seen, left_out in counts.tolist()]
    seen, left_out = (sum(column) for column in zip(*by_loader, strict=True))
    of_these = f"of the {seen} {what} of an epoch could not be read"
    if left_out > max_fraction * seen:
        told = f"{left_out} {of_these}, more than data.init_args.max_bad_fraction ({max_fraction:g}) allows."
    elif any(lacking and lacking == num for num, lacking in by_loader):
        told = f"{left_out} {of_these}, among them all of a split."
    else:
        return
    raise DataError(f"{told} Repair or replace them; bad_images.csv in the run folder lists them.")


class CountedBatches:
    """The batches of an epoch on their way, counted.

    Args:
        batches: Of the epoch.
        count: Takes the number of each batch, and the batch.
        first: Number of the first of them.
    """

    def __init__(self, batches: Iterator[Any], count: Callable[[int, Any], None], *, first: int) -> None:
        self._batches, self._count, self._number = batches, count, first

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = next(self._batches)
        self._count(self._number, batch)
        self._number += 1
        return batch


class LabelledSource(Protocol):
    """Where images and their labels come from, before any transform."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> tuple[Any, int]: ...


class Transformed(Dataset[tuple[torch.Tensor, int]]):
    """Applies a transform to a source's images, with randomness from (seed, epoch, index) alone.

    Args:
        source: Images and labels.
        transform: From one image to a tensor.
        seed: Of the transform's randomness.
    """

    def __init__(self, source: LabelledSource, transform: Callable[[Any], torch.Tensor], *, seed: int) -> None:
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


class ResumableLoader(CountingLoader):
    """A loader over a `ResumableSampler`.

    Lightning asks a loader for these two methods before it believes that a training can go on in the middle of an
    epoch. The position itself is Lightning's own count, see `position_of`; what is kept here tells whether it still
    means the same samples.
    """

    def state_dict(self) -> dict[str, int]:
        """What decides the order of the samples and the size of a batch."""
        sampler = self.sampler
        if not isinstance(sampler, ResumableSampler):  # Lightning's overfit_batches puts another in its place
            return {}
        return {
            "num_samples": len(sampler.dataset),  # type: ignore[arg-type]
            "batch_size": sampler.batch_size,
            "num_processes": sampler.num_replicas,
            "seed": sampler.seed,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Say so where the rest of the epoch will not be what it would have been."""
        now = self.state_dict()
        tell_of_changes(state, now)


def train_loader(
    dataset: Sized,
    *,
    batch_size: int,
    seed: int,
    trainer: Trainer | None = None,
    num_workers: int = 0,
    prefetch_factor: int = 2,
    persistent_workers: bool = True,
    pin_memory: Pinning = "auto",
) -> ResumableLoader:
    """Shuffled batches that go on where the trainer's restored checkpoint left off.

    Args:
        dataset: Takes a `SampleKey` as its index. Where it has a method ``collate``, that makes the batches; where it
            has ``sample_bytes``, the size of a sample in a batch, no more is loaded ahead than shared memory holds.
        batch_size: Samples of one batch on one process.
        seed: Of the order.
        trainer: Tells the position, and this process's share. Without one: epoch 0, all samples.
        num_workers: Processes that load; 0 loads in the training process.
        prefetch_factor: Batches that each of them prepares ahead.
        persistent_workers: Keep them from epoch to epoch.
        pin_memory: See `pins`.

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
    epoch, batches = position_of(trainer)
    sampler.resume(epoch=epoch, batches=batches)
    return ResumableLoader(
        dataset,  # type: ignore[arg-type]
        sampler=sampler,
        **_common(
            dataset, batch_size, seed, trainer, Ahead(num_workers, prefetch_factor), persistent_workers, pin_memory
        ),
    )


def eval_loader(
    dataset: Sized,
    *,
    batch_size: int,
    seed: int,
    trainer: Trainer | None = None,
    num_workers: int = 0,
    prefetch_factor: int = 2,
    persistent_workers: bool = True,
    pin_memory: Pinning = "auto",
) -> CountingLoader:
    """Batches in the dataset's order; among several processes each sample counts once.

    Each process gets its share in as many batches as the others, so that a model's collectives in a step find all of
    them; batches may have fewer samples than ``batch_size``, and one fewer than another process's. Only with a batch
    size of 1, or fewer samples than processes, some samples are there twice where they do not share evenly.
    """
    ahead = Ahead(num_workers, prefetch_factor)
    common = _common(dataset, batch_size, seed, trainer, ahead, persistent_workers, pin_memory)
    if trainer is None or trainer.world_size == 1:
        return CountingLoader(dataset, **common)  # type: ignore[arg-type]
    count_in_fractions()
    share = EvenDistributedSampler(
        dataset, batch_size=batch_size, num_replicas=trainer.world_size, rank=trainer.global_rank
    )
    batches = EvenBatchSampler(share, common.pop("batch_size"))
    loader = CountingLoader(dataset, batch_sampler=batches, **common)  # type: ignore[arg-type]
    # Lightning (2.6.6, `_requires_distributed_sampler`) leaves a loader alone whose `sampler` is a DistributedSampler.
    # torch does not let one be given beside a batch sampler, and does not read it there.
    vars(loader)["sampler"] = share
    return loader


def predict_loader(
    dataset: Sized,
    *,
    batch_size: int,
    seed: int,
    trainer: Trainer | None = None,
    num_workers: int = 0,
    prefetch_factor: int = 2,
    persistent_workers: bool = False,  # noqa: ARG001 (the data are gone through once)
    pin_memory: Pinning = "auto",
) -> DataLoader[Any]:
    """Batches in the dataset's order. Lightning itself shares them out to several processes, without repeats."""
    ahead = Ahead(num_workers, prefetch_factor)
    common = _common(dataset, batch_size, seed, trainer, ahead, False, pin_memory)
    return DataLoader(dataset, **common)  # type: ignore[arg-type]


def _common(
    dataset: Sized, batch_size: int, seed: int, trainer: Trainer | None, asked: Ahead, keep: bool, pin: Pinning
) -> dict[str, Any]:
    if asked.prefetch_factor < 1:
        raise ConfigError(f"data.init_args.prefetch_factor: expected 1 or more, got {asked.prefetch_factor}")
    # a worker more than there are batches would never have one
    num_batches = num_batches_of(len(dataset), batch_size, trainer)
    ahead = asked._replace(num_workers=min(asked.num_workers, num_batches))
    sample_bytes = getattr(dataset, "sample_bytes", None)
    if ahead.num_workers and sample_bytes is not None:
        ranks = 1 if trainer is None else local_ranks(trainer)
        ahead = ahead_that_fits(ahead, batch_bytes=batch_size * sample_bytes, ranks=ranks)
    return {
        "batch_size": batch_size,
        "collate_fn": getattr(dataset, "collate", None),
        "pin_memory": pins(pin, trainer),
        "generator": torch.Generator().manual_seed(seed),
        **worker_options(ahead, keep=keep),
    }
