"""Where a folder's photos come from in a fit: from what is kept of them, or from their files, decoded each time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lightkit.data.decoded_cache import CacheChoice, choose_sources
from lightkit.data.features import Features, may_be_kept
from lightkit.data.photos import Photo
from lightkit.data.pixels import PhotoPixels, PixelSource
from lightkit.data.splits import Split

if TYPE_CHECKING:
    from lightkit.data.image_folder import ImageFolder

__all__ = ["PhotoSources"]


class PhotoSources:
    """What a data module knows of where its photos come from. In a fit the choice may have to wait for the model.

    Args:
        features: The data module's; they tell whether the model gives features, for which each image is needed once.
    """

    def __init__(self, features: Features) -> None:
        self._features = features
        self._choice: CacheChoice | None = None

    def begin(self, data: ImageFolder) -> None:
        """Decode the images where they are cached, at the start of a fit; later where the model has a say in it."""
        self._choice = None if _waits_for_model(data) else _chosen(data, is_read_once=False)

    def settle(self, data: ImageFolder) -> None:
        """Decode the images where they are cached, now that the model can tell whether it gives features instead."""
        if self._choice is None and _waits_for_model(data):
            size, num_images = data.preprocessing.crop, data.catalogue.num_in_fit
            is_read_once = self._features.are_there(data, size, num_images=num_images)
            self._choice = _chosen(data, is_read_once=is_read_once)

    def of(self, split: Split, photos: Sequence[Photo]) -> PixelSource:
        """Give what reads a split's images.

        Args:
            split: The split.
            photos: Its photos.
        """
        chosen = {} if self._choice is None else self._choice.sources
        return chosen.get(split) or PhotoPixels(photos)

    @property
    def are_final(self) -> bool:
        """Whether a later fit has them from there too."""
        return self._choice is not None and self._choice.is_final

    @property
    def are_cached(self) -> bool:
        """Whether images are kept decoded."""
        return self._choice is not None and self._choice.kept != "nowhere"

    @property
    def described(self) -> dict[str, Any]:
        """What a manifest says of them; nothing where nothing is chosen."""
        return {} if self._choice is None else {"cache": self._choice.describe()}


def _waits_for_model(data: ImageFolder) -> bool:
    return not data.augment and data.cache == "auto" and may_be_kept(data)


def _chosen(data: ImageFolder, *, is_read_once: bool) -> CacheChoice:
    photos = data.catalogue.of_fit
    return choose_sources(
        photos,
        {split: PhotoPixels(listed) for split, listed in photos.items()},
        cache=data.cache,
        cache_size=data.cache_size if data.augment else None,
        cache_limit_gb=data.cache_limit_gb,
        preprocessing=data.preprocessing,
        batch_size=data.batch_size,
        trainer=data.trainer,
        is_read_once=is_read_once,
    )
