"""Features by index in one tensor, and how rows of it are put together into batches as images are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightkit.data.sampling import SampleKey
from lightkit.images.reading import UnreadableImageError

__all__ = ["FeatureRows", "Place", "RowView"]


class Place(NamedTuple):
    """Stands for an image where rows of a table are put together."""

    at: int


class RowView:
    """Gives a sample's features where other views make an image, for `make_batch`.

    Args:
        rows: The features.
        have: Computes what is missing of some.
        for_training: As of the view of the images.
    """

    size = (1, 1)

    def __init__(self, rows: FeatureRows, have: Callable[[Sequence[int]], None], *, for_training: bool) -> None:
        self._rows, self._have, self.for_training = rows, have, for_training

    def empty(self, num: int) -> Tensor:
        """Give a tensor for ``num`` rows."""
        return self._rows.empty(num)

    def __call__(self, pixels: Any, seed: int, key: SampleKey) -> Tensor:
        """Give the features of a `Place`.

        Raises:
            UnreadableImageError: If its image could not be read.
        """
        self._have([pixels.at])
        return self._rows.row(pixels.at)


class FeatureRows:
    """Features by index, those that are known.

    Args:
        num: Of samples.
        like: Features ``(1, ...)`` of any image.
    """

    def __init__(self, num: int, like: Tensor) -> None:
        self._shape, self._dtype = (num, *like.shape[1:]), like.dtype
        self._key: bytes | None = None
        self.clear()

    def clear(self) -> None:
        """Forget all, and give the memory back."""
        with torch.inference_mode(mode=False):  # training could not take a tensor that is made within a validation
            self._rows = torch.empty(self._shape, dtype=self._dtype)  # memory is taken as it is filled
        self._missing = set(range(len(self._rows)))
        self._reasons: dict[int, str] = {}
        self.unreadable: set[int] = set()

    def keep_for(self, key: bytes) -> None:
        """Forget all that was computed for another key."""
        if self._key not in (None, key):
            self.clear()
        self._key = key

    def missing(self, indices: Iterable[int]) -> list[int]:
        """Give those of which nothing is known yet."""
        return [index for index in indices if index in self._missing] if self._missing else []

    def put(self, indices: Sequence[int], features: Tensor) -> None:
        """Keep features ``(len(indices), ...)``."""
        self._rows[list(indices)] = features.to(self._rows)
        self._missing.difference_update(indices)

    def put_unreadable(self, index: int, reason: str) -> None:
        """Keep why there are no features."""
        self.unreadable.add(index)
        self._reasons[index] = reason
        self._missing.discard(index)

    def empty(self, num: int) -> Tensor:
        """Give a tensor for ``num`` rows, not filled yet."""
        return torch.empty(num, *self._rows.shape[1:], dtype=self._rows.dtype)

    def rows(self, indices: Sequence[int]) -> Tensor:
        """Give some of them."""
        return self._rows[list(indices)]

    def row(self, index: int) -> Tensor:
        """Give one of them.

        Raises:
            UnreadableImageError: If its image could not be read.
        """
        if index in self._reasons:
            reason = self._reasons[index]
            raise UnreadableImageError(f"sample {index}: this image cannot be decoded ({reason}).", reason=reason)
        return self._rows[index]
