"""What the settings that data modules have in common come to."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from pytorch_lightning import Trainer

from lightkit.data.sampling import global_seed
from lightkit.data.views import EvalView, TrainView, training_view
from lightkit.data.workers import Pinning, chosen_num_workers, num_batches_of
from lightkit.images.preprocessing import Preprocessing

__all__ = ["ImageSettings", "Seeded", "loading_of", "seed_of", "training_view_of"]


class Seeded(Protocol):
    """A data module with a seed of its own, or none."""

    seed: int | None


class ImageSettings(Seeded, Protocol):
    """A data module with these settings."""

    batch_size: int
    num_workers: int | Literal["auto"]
    augment: bool
    crop_scale: tuple[float, float]
    color_jitter: float
    rand_augment: bool
    prefetch_factor: int
    persistent_workers: bool
    pin_memory: Pinning

    @property
    def trainer(self) -> Trainer | None:
        """The trainer, once there is one."""


def seed_of(data: Seeded) -> int:
    """Give the seed of order and augmentation: the data module's own, else the run's."""
    return global_seed() if data.seed is None else data.seed


def training_view_of(data: ImageSettings, preprocessing: Preprocessing) -> TrainView | EvalView:
    """Give what training sees of an image.

    Args:
        data: The data module.
        preprocessing: What is done to an image outside training.
    """
    return training_view(
        preprocessing,
        augment=data.augment,
        crop_scale=data.crop_scale,
        color_jitter=data.color_jitter,
        rand_augment=data.rand_augment,
    )


def loading_of(data: ImageSettings, *, num_samples: int, is_cached: bool) -> dict[str, Any]:
    """Give how batches are loaded, as `train_loader`, its like and the streams of tables take it.

    Args:
        data: The data module.
        num_samples: Samples of the largest split.
        is_cached: Whether a sample needs no decoding.
    """
    num_workers = chosen_num_workers(
        data.num_workers,
        trainer=data.trainer,
        is_cached=is_cached,
        num_batches=num_batches_of(num_samples, data.batch_size, data.trainer),
    )
    return {
        "batch_size": data.batch_size,
        "num_workers": num_workers,
        "prefetch_factor": data.prefetch_factor,
        "persistent_workers": data.persistent_workers,
        "pin_memory": data.pin_memory,
        "seed": seed_of(data),
        "trainer": data.trainer,
    }
