"""The loaders that every data module here builds its own from: resumable for training, in plain order elsewhere.

Each draws its workers' seeds from a generator of its own, never from the global one, so that the number of loaders and
workers has no influence on the model's random numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sized
from typing import Any, Protocol

import torch
from pytorch_lightning import Trainer
from torch.utils.data import DataLoader, Dataset

from lightkit.data.means import count_in_fractions
from lightkit.data.sampling import ResumableSampler, SampleKey, position_of, sample_randomness
from lightkit.data.shares import EvenBatches, Share

__all__ = ["LabelledSource", "ResumableLoader", "Transformed", "eval_loader", "predict_loader", "train_loader"]

log = logging.getLogger("lightkit.data")


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


class ResumableLoader(DataLoader[Any]):
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
        changes = [
            f"{name} was {state[name]}, is {value}" for name, value in now.items() if state.get(name, value) != value
        ]
        if changes:
            log.warning(
                "The checkpoint was taken in the middle of an epoch, and the training data has changed since (%s): the "
                "rest of this epoch is not the rest of that one. Later epochs are whole.",
                "; ".join(changes),
            )


def train_loader(
    dataset: Sized,
    *,
    batch_size: int,
    seed: int,
    trainer: Trainer | None = None,
    num_workers: int = 0,
    persistent_workers: bool = True,
) -> ResumableLoader:
    """Shuffled batches that go on where the trainer's restored checkpoint left off.

    Args:
        dataset: Takes a `SampleKey` as its index.
        batch_size: Samples of one batch on one process.
        seed: Of the order.
        trainer: Tells the position, and this process's share. Without one: epoch 0, all samples.
        num_workers: Processes that load; 0 loads in the training process.
        persistent_workers: Keep them from epoch to epoch.
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
        **_common(batch_size, seed, trainer, num_workers, persistent_workers=persistent_workers),
    )


def eval_loader(
    dataset: Sized, *, batch_size: int, seed: int, trainer: Trainer | None = None, num_workers: int = 0
) -> DataLoader[Any]:
    """Batches in the dataset's order; among several processes each sample counts once.

    Each process gets its share in as many batches as the others, so that a model's collectives in a step find all of
    them; batches may have fewer samples than ``batch_size``, and one fewer than another process's. Only with a batch
    size of 1, or fewer samples than processes, some samples are there twice where they do not share evenly.
    """
    common = _common(batch_size, seed, trainer, num_workers, persistent_workers=True)
    if trainer is None or trainer.world_size == 1:
        return DataLoader(dataset, **common)  # type: ignore[arg-type]
    count_in_fractions()
    share = Share(dataset, batch_size=batch_size, num_replicas=trainer.world_size, rank=trainer.global_rank)
    batches = EvenBatches(share, common.pop("batch_size"))
    loader: DataLoader[Any] = DataLoader(dataset, batch_sampler=batches, **common)  # type: ignore[arg-type]
    # Lightning (2.6.6, `_requires_distributed_sampler`) leaves a loader alone whose `sampler` is a DistributedSampler.
    # torch does not let one be given beside a batch sampler, and does not read it there.
    vars(loader)["sampler"] = share
    return loader


def predict_loader(
    dataset: Sized, *, batch_size: int, seed: int, trainer: Trainer | None = None, num_workers: int = 0
) -> DataLoader[Any]:
    """Batches in the dataset's order. Lightning itself shares them out to several processes, without repeats."""
    common = _common(batch_size, seed, trainer, num_workers, persistent_workers=False)
    return DataLoader(dataset, **common)  # type: ignore[arg-type]


def _common(
    batch_size: int, seed: int, trainer: Trainer | None, num_workers: int, *, persistent_workers: bool
) -> dict[str, Any]:
    return {
        "batch_size": batch_size,
        "num_workers": num_workers,
        "persistent_workers": persistent_workers and num_workers > 0,
        "pin_memory": trainer is not None and trainer.strategy.root_device.type == "cuda",
        "generator": torch.Generator().manual_seed(seed),
    }
