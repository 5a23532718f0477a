"""The data module of image files that are all found and checked before anything is trained."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lightkit.data.bad_samples import Defects, check_bad_samples
from lightkit.data.image_module import (
    SPLIT_OF_STAGE,
    ImageModule,
    IndexedSplits,
    warn_idle_fractions,
)
from lightkit.errors import DataError
from lightkit.images.image_index import ImageIndex
from lightkit.images.mask_index import MaskIndex

IndexT = TypeVar("IndexT", ImageIndex, MaskIndex)


if TYPE_CHECKING:
    _Module = ImageModule
else:
    _Module = object  # it is no data module by itself, so that no config can name it


class CheckedImages(IndexedSplits, Generic[IndexT], _Module):
    """Image files by split; a subclass finds and checks them."""

    source: str
    root: Path
    max_bad_fraction: float
    _index: IndexT | None = None

    def prepare_data(self) -> None:
        """Check all images on one process of each machine.

        The others then find what it found, and need not decode.
        """
        with suppress(DataError):  # which every process is to meet in `setup`
            self.setup()

    def setup(self, stage: str | None = None) -> None:
        """Find and check all images, once.

        Raises:
            DataError: If the folder or a file in it is unusable, or ``stage`` needs a split that
                there is none of.
        """
        index = self._index
        if index is None:
            index = self._index = self._find_images()
            self.defects = Defects(index.defects)
        super().setup(stage)
        if stage == "fit":
            warn_idle_fractions(self, index.given, self._given_as)
        if stage in ("validate", "test"):
            self._refuse_missing(SPLIT_OF_STAGE[stage])

    def _find_images(self) -> IndexT:
        """Find and check all images."""
        raise NotImplementedError

    @property
    def _given_as(self) -> str:
        """Describe where splits are given."""
        return f"folders, as in {self.root}"

    @property
    def index(self) -> IndexT:
        """All images by split; known after `setup`."""
        if self._index is None:
            self.setup()
        assert self._index is not None
        return self._index

    def describe(self) -> dict[str, Any]:
        """Return the data's entry in a run's manifest."""
        return {
            "source": self.source,
            "root": str(self.root),
            "fingerprint": self.index.fingerprint,
            "counts": self.index.counts,
            "bad_images": len(self.index.defects),
            "class_names": self.class_names,
        }

    def _check_bad(self) -> None:
        if self._index is not None:
            check_bad_samples(
                self.defects, sum(self.counts.values()), what="images",
                max_fraction=self.max_bad_fraction,
                trainer=self.trainer,
            )  # fmt: skip
