"""What a config may say of loading and augmentation, for every data module; checked before anything is read."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any

from lightkit.errors import ConfigError

__all__ = ["check_arguments", "warn_unaugmented"]

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
