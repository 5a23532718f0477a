"""The flower photos of TensorFlow's tutorials, with the drawn flowers in their place where nobody has fetched them."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from lightkit.data.archives import unpack
from lightkit.data.drawn import drawn_flowers
from lightkit.data.fetch import Remote, download
from lightkit.data.image_folder import ImageFolder
from lightkit.errors import DataError
from lightkit.images.flower_photos import DEFAULT_ROOT, FOLDER, flower_photos, has_classes

__all__ = ["Flowers"]

log = logging.getLogger("lightkit.data")

_URL = "https://storage.googleapis.com/download.tensorflow.org/example_images/flower_photos.tgz"
# TensorFlow Datasets, url_checksums/tf_flowers.txt
_SHA256 = "4c54ace7911aaffe13a365c34f650e71dd5bf1be0a58b464e5a7183e3e595d9c"
_SIZE_BYTES = 228_813_984


class Flowers(ImageFolder):
    """Five kinds of flowers: 3,670 photos once `lightkit fetch` has brought them, drawn pictures until then.

    Args:
        root: Folder with the photos. Default: the folder that LIGHTKIT_DATA names, or its flower_photos; else
            data/flower_photos; else the drawn flowers.
        url: Where `lightkit fetch` gets flower_photos.tgz from.
        sha256: Digest that the archive must have.
        size_bytes: Length that the archive must have.
        kwargs: As for ImageFolder.
    """

    def __init__(
        self,
        root: str | None = None,
        url: str = _URL,
        sha256: str = _SHA256,
        size_bytes: int | None = _SIZE_BYTES,
        **kwargs: Any,
    ) -> None:
        super().__init__(root=root or "", **kwargs)
        self.archive = Remote(url, digest=sha256, size_bytes=size_bytes)
        self._is_given = root is not None

    def prepare_data(self) -> None:
        """Draw the stand-in, on one process of each machine, where there are no photos."""
        if self._photos() is None:
            drawn_flowers()
        super().prepare_data()

    def setup(self, stage: str | None = None) -> None:
        """Settle on the photos or the drawn flowers, say which, and read them.

        Raises:
            DataError: If a folder was named, by ``root`` or LIGHTKIT_DATA, that does not hold the photos.
        """
        if self._catalogue is None:
            photos = self._photos()
            self.source = "drawn" if photos is None else "photos"
            self.root = photos or drawn_flowers()
            if self.trainer is None or self.trainer.is_global_zero:
                log.info(*self._notice(photos))
        try:
            super().setup(stage)
        except DataError as error:
            if self.root.exists():
                raise
            raise DataError(f"{error} `lightkit fetch` with the same -c FILE puts the photos there.") from error

    def fetch(self) -> None:
        """Download and unpack the photos, unless they are there."""
        target = self._fetch_target()
        if has_classes(target):
            log.info("the flower photos are in %s already", target)
            return
        archive = download(self.archive, target.parent / "flower_photos.tgz")
        unpack(archive, target, member=FOLDER)
        archive.unlink()  # the folder is what is wanted, and 229 MB are worth having back
        log.info("the flower photos are in %s", target)

    def _photos(self) -> Path | None:
        """Folder with the photos; None where there are none and nobody named a folder."""
        if self._is_given:
            return self.root  # what is wrong with it, if anything, ImageFolder tells
        return flower_photos()

    def _fetch_target(self) -> Path:
        if self._is_given:
            return self.root
        if named := os.environ.get("LIGHTKIT_DATA"):
            folder = Path(named).expanduser()
            return folder if has_classes(folder) else folder / FOLDER
        return DEFAULT_ROOT

    def _notice(self, photos: Path | None) -> tuple[str, Path]:
        if photos is not None:
            return "data: the flower photos in %s", photos
        return (
            "data: drawn flowers (in %s), as there are no photos in data/flower_photos. `lightkit fetch` with the same "
            "-c FILE downloads them (229 MB); data.init_args.root or LIGHTKIT_DATA names a folder that has them.",
            self.root,
        )
