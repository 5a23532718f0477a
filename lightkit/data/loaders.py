"""The loaders that every data module here builds its own from: resumable for training, in plain order elsewhere.

Each draws its workers' seeds from a generator of its own, never from the global one, so that the number of loaders and
workers has no influence on the model's random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Any, Protocol

import torch
from pytorch_lightning import Trainer
from torch.utils.data import DataLoader, Dataset

from lightkit.data.left_out import CountingLoader
from lightkit.data.means import count_in_fractions
from lightkit.data.sampling import ResumableSampler, SampleKey, position_of, sample_randomness, tell_of_changes
from lightkit.data.shares import EvenBatches, Share
from lightkit.data.workers import Ahead, Pinning, ahead_that_fits, local_ranks, num_batches_of, pins, worker_options
from lightkit.errors import ConfigError

__all__ = ["LabelledSource", "ResumableLoader", "Transformed", "eval_loader", "predict_loader", "train_loader"]


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
    share = Share(dataset, batch_size=batch_size, num_replicas=trainer.world_size, rank=trainer.global_rank)
    batches = EvenBatches(share, common.pop("batch_size"))
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
