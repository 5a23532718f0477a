"""Settings that the data modules share: checks, seeds, views and loader arguments."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from pytorch_lightning import Trainer

from lightkit.data.loader import Pinning, chosen_num_workers, num_batches_of
from lightkit.data.sampler import global_seed
from lightkit.data.transforms import EvalView, TrainView, training_view
from lightkit.errors import ConfigError
from lightkit.images.preprocessing import Preprocessing

__all__ = [
    "ImageSettings",
    "Seeded",
    "check_arguments",
    "loading_of",
    "seed_of",
    "training_view_of",
    "warn_unaugmented",
]


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


log = logging.getLogger("lightkit.data")


def check_arguments(**given: Any) -> None:
    """Refuse what cannot be meant.

    Args:
        given: Arguments of a data module by name, those that are known here.

    Raises:
        ConfigError: For the first that is out of its range.
    """
    for name, value in given.items():
        is_right, expected = _RANGES[name]
        if not is_right(value):
            raise ConfigError(f"data.init_args.{name}: expected {expected}, got {value}.")
    _check_cache_size(given.get("cache_size"), given.get("image_size"))


def warn_unaugmented(data: object, *names: str) -> None:
    """Say which settings of a data module have no effect, as it augments nothing.

    Args:
        data: The data module; its attributes bear the names of its arguments.
        names: Of the settings of augmentation.
    """
    constructors = [vars(kind)["__init__"] for kind in reversed(type(data).__mro__) if "__init__" in vars(kind)]
    parameters = [each for constructor in constructors for each in inspect.signature(constructor).parameters.values()]
    defaults = {parameter.name: parameter.default for parameter in parameters}
    idle = [f"data.init_args.{name}" for name in names if _plain(getattr(data, name)) != _plain(defaults[name])]
    if idle:
        log.warning("%s: no effect with data.init_args.augment: false", " and ".join(idle))


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _check_cache_size(cache_size: int | None, image_size: int | None) -> None:
    """Refuse to make images smaller than the model takes them: each would be blown up again, and look blurred."""
    if cache_size is not None and image_size is not None and cache_size < image_size:
        raise ConfigError(
            f"data.init_args.cache_size: expected at least data.init_args.image_size ({image_size} pixels), got "
            f"{cache_size}; every crop would be enlarged. Leave it out, or lower image_size."
        )


def _is_share_of_area(value: Sequence[float]) -> bool:
    return len(value) == 2 and 0 < value[0] <= value[1] <= 1


_COUNT: tuple[Callable[[Any], bool], str] = (lambda value: value >= 1, "1 or more")
_RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "image_size": _COUNT,
    "batch_size": _COUNT,
    "shuffle_buffer": _COUNT,
    "num_workers": (lambda value: value == "auto" or value >= 0, "0 or more, or auto"),
    "prefetch_factor": _COUNT,
    "crop_scale": (_is_share_of_area, "two shares of the area, above 0 up to 1, the lower one first"),
    "color_jitter": (lambda value: 0 <= value <= 1, "a number from 0 to 1"),
    "max_bad_fraction": (lambda value: 0 <= value <= 1, "a number from 0 to 1"),
    "cache_size": (lambda value: value is None or value >= 1, "a length of 1 or more, in pixels"),
    "cache_limit_gb": (lambda value: value is None or value > 0, "more than 0"),
}
