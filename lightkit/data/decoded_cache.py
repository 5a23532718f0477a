"""Images that are decoded once: one file a split, see `lightkit.data.row_cache`.

A row is the pixels of an image whose shorter side was resized. The file is named by the content of the photos, the size
and the versions of the decoders.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
import PIL
from filelock import FileLock
from PIL import Image, features
from pytorch_lightning import Trainer

from lightkit.data.image_index import Photo
from lightkit.data.image_sources import Decoded, PhotoPixels, Pixels, PixelSource
from lightkit.data.progress import show_progress
from lightkit.data.row_cache import RowCache, open_rows
from lightkit.data.splits import Split
from lightkit.images.image_file import count_threads, format_reason, pillow_warnings, upright_rgb
from lightkit.images.preprocessing import Preprocessing, compute_resized_size, resize_shorter_side

log = logging.getLogger("lightkit.data")

Cache = Literal["auto", "none", "memory", "disk"]
_DECODING = 3  # raise it with every change that gives other pixels, or another file, for the same photos
_LONGEST = 8  # times as long as wide: a line of pixels, resized, would take the room of thousands of images


def open_sources(
    splits: Mapping[Split, Sequence[Photo]], *, cache: Cache, cache_size: int | None, cache_limit_gb: float | None,
    preprocessing: Preprocessing, batch_size: int, trainer: Trainer | None,
) -> tuple[dict[Split, PixelSource], dict[str, Any]]:  # fmt: skip
    """Open the sources of a fit's images, and decode them where they are cached.

    Every process calls it once a fit: the first on a machine decodes, the others wait for it. The pixels that are
    trained on follow from ``cache`` and ``cache_size`` alone: with `none` they are those of the files; else those of
    the images resized to ``cache_size``, which may be kept in memory, on disk or nowhere.

    Args:
        splits: The photos of training and validation.
        cache: Value of the config.
        cache_size: Shorter side in pixels; ``preprocessing.resize`` if None. With another one, only training reads from
            the cache, so that evaluation stays equal to the last bit.
        cache_limit_gb: Upper limit in GB (1e9 bytes) for all caches together.
        preprocessing: Of evaluation.
        batch_size: Of one process.
        trainer: Knows the number of epochs.

    Returns:
        The sources, and the manifest's entry: where the images are ``kept``, and the ``size`` of their shorter side.
    """
    sources: dict[Split, PixelSource] = {split: PhotoPixels(photos) for split, photos in splits.items()}
    if cache == "none":
        return sources, {"kept": "nowhere", "size": None}
    shorter = cache_size or preprocessing.resize
    train = sources["train"] = ResizedPhotos(splits["train"], shorter)
    announce = log.info if trainer is not None and trainer.is_global_zero else log.debug
    num, num_reads = len(train), 0.0
    if cache == "auto" and (num_reads := planned_reads(trainer, num, batch_size)) <= num:
        announce(
            "data: photos are decoded each time, as this training reads %s of %s; data.init_args.cache: disk keeps "
            "them for later runs", f"{num_reads:,.0f}", f"{num:,}",
        )  # fmt: skip
        return sources, {"kept": "nowhere", "size": shorter}
    # validation's own resizing of a file gives the same pixels
    kept: dict[Split, ResizedPhotos] = {"train": train}
    if splits["val"] and shorter == preprocessing.resize:
        kept["val"] = ResizedPhotos(splits["val"], shorter)
    limit_bytes = None if cache_limit_gb is None else cache_limit_gb * 1e9
    reasons = []
    for place in ("memory", "disk") if cache == "auto" else (cache,):
        try:
            for photos in kept.values():
                photos.open_rows(in_memory=place == "memory", limit_bytes=limit_bytes)
            for photos in kept.values():
                photos.decode(announce)
        except OSError as error:  # noqa: PERF203
            reasons.append(f"{place}: {error.strerror or error}")
        else:
            return {**sources, **kept}, {"kept": place, "size": shorter}
    announce = announce if cache == "auto" else log.warning
    announce(
        "data: photos are decoded in every epoch (%s); make room, raise data.init_args.cache_limit_gb, or set "
        "data.init_args.cache to auto", "; ".join(reasons),
    )  # fmt: skip
    return {**sources, "train": ResizedPhotos(splits["train"], shorter)}, {"kept": "nowhere", "size": shorter}


def planned_reads(trainer: Trainer | None, num_images: int, batch_size: int) -> float:
    """Compute how many training images a fit will read, counting each time; 0 where that is not known.

    Args:
        trainer: Knows epochs, steps and limits.
        num_images: In an epoch.
        batch_size: Of one process.
    """
    # Lightning (2.6.6) sets these from another module, where types are not seen
    if trainer is None or getattr(trainer, "fast_dev_run", False) or getattr(trainer, "overfit_batches", 0) > 0:
        return 0
    limit, num_of_batch = trainer.limit_train_batches, batch_size * trainer.world_size
    an_epoch = min(num_images, limit * num_of_batch) if isinstance(limit, int) else num_images * limit
    epochs = math.inf if trainer.max_epochs in (None, -1) else trainer.max_epochs
    steps = math.inf if trainer.max_steps == -1 else trainer.max_steps
    return min(epochs * an_epoch, steps * trainer.accumulate_grad_batches * num_of_batch)


class ResizedPhotos(PhotoPixels):
    """Photos resized to a shorter side: decoded before, else each time they are read; extreme shapes as they are.

    Args:
        photos: The split.
        shorter: Shorter side in pixels.
    """

    def __init__(self, photos: Sequence[Photo], shorter: int) -> None:
        super().__init__(photos)
        self.shorter = shorter
        self.rows: RowCache | None = None

    def pixels(self, index: int, /) -> Pixels:
        """Return an image.

        Raises:
            UnreadableImageError: If it was not decoded before, and its file cannot be read.
        """
        row = None if self.rows is None else self.rows[index]
        if row is not None:
            return Decoded(row.reshape(*self._size(index), 3))
        pixels = super().pixels(index)
        return Decoded(np.array(resize_shorter_side(pixels.whole(), self.shorter))) if self._size(index)[0] else pixels

    def _size(self, index: int) -> tuple[int, int]:
        """Height and width after resizing; 0 for a shape that is too extreme."""
        height, width = self.photos[index].height, self.photos[index].width
        is_kept = 0 < max(height, width) <= _LONGEST * min(height, width)
        return compute_resized_size(height, width, self.shorter) if is_kept else (0, 0)

    def open_rows(self, *, in_memory: bool, limit_bytes: float | None) -> None:
        """Open the file of these images.

        Raises:
            OSError: If there is no room for it.
        """
        decided_by = {
            "decoding": _DECODING,
            "pillow": PIL.__version__,
            "jpeg": features.version_feature("libjpeg_turbo") or features.version_codec("jpg"),
            "interpolation": Preprocessing.__dataclass_fields__["interpolation"].default,
            "shorter": self.shorter,
            "photos": self.digest(),
        }
        key = hashlib.sha256(json.dumps(decided_by, sort_keys=True).encode()).hexdigest()
        sizes = np.array([self._size(index) for index in range(len(self))], np.int64).prod(axis=1) * 3
        self.rows = open_rows("decoded", key, sizes, in_memory=in_memory, limit_bytes=limit_bytes)

    def decode(self, announce: Any) -> None:
        """Decode the images that are not in the file yet, in threads; one that has changed since the scan is left out.

        Args:
            announce: Logs a line of what other processes log as well.
        """
        rows = self.rows
        assert rows is not None

        def decode(index: int) -> None:
            photo = self.photos[index]
            try:
                content = photo.path.read_bytes()
                if hashlib.sha256(content).hexdigest() == photo.digest:
                    with Image.open(io.BytesIO(content)) as image:
                        pixels = np.array(resize_shorter_side(upright_rgb(image), self.shorter))
                    rows[index] = pixels.reshape(-1)
            except Exception as error:  # noqa: BLE001 (decoders raise what they like)
                format_reason(error, photo.path)  # raises where this machine lacks descriptors or memory

        with FileLock(rows.path.with_suffix(".lock")) as lock:
            began_s, missing = time.monotonic(), rows.find_missing()
            with pillow_warnings(), ThreadPoolExecutor(count_threads()) as pool:
                try:
                    for _ in show_progress(pool.map(decode, missing), len(missing), "photos decoded"):
                        pass
                finally:
                    pool.shutdown(cancel_futures=True)
        Path(lock.lock_file).unlink(missing_ok=True)
        (log.info if missing else announce)(
            "data: photos, shorter side %d px: %d found decoded, %d decoded once (%.1f s), %.1f MB in %s",
            self.shorter, len(rows) - len(missing), len(missing), time.monotonic() - began_s, rows.sizes.sum() / 1e6,
            rows.path.parent,
        )  # fmt: skip
