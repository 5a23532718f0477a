"""Cache of values that are computed of images once for all epochs.

Files of rows, and decoded photos in them.

A file has the CRC-32 of each row, 0 for one that is not there yet, and then the rows; all processes
of a machine map it into memory. It is named by all that decides the rows. A row that a killed
process has half written, or that was damaged, differs from its CRC-32 and is computed again.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import logging
import math
import os
import secrets
import shutil
import sys
import tempfile
import time
import weakref
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import PIL
from filelock import FileLock
from PIL import Image, features
from pytorch_lightning import Trainer

from lightkit.data.image_dataset import Decoded, ImageSource, PhotoPixels, Pixels
from lightkit.hardware.cache_folder import cache_folder, private_folder
from lightkit.hardware.processor import available_memory_bytes
from lightkit.images.image_file import (
    count_threads,
    format_reason,
    map_in_order,
    pillow_warnings,
    upright_rgb,
)
from lightkit.images.image_index import Photo
from lightkit.images.preprocessing import Preprocessing, compute_resized_size, resize_shorter_side
from lightkit.images.progress import show_progress
from lightkit.images.splits import Split

log = logging.getLogger("lightkit.data")

Bytes = npt.NDArray[np.uint8]
Cache = Literal["auto", "none", "memory", "disk"]
_PLACES: Mapping[Cache, tuple[str, ...]] = {
    "auto": ("memory", "disk"),
    "memory": ("memory",),
    "disk": ("disk",),
}
"""Where images are kept decoded, the first place that has room."""
_CRC_BYTES = 4
_SHARE_OF_MEMORY = 0.25
_SHARE_OF_DISK = 0.5
_KEPT_FREE_BYTES = 16 << 20
# a training of a week may still need a file
_RECENT_S = 7 * 24 * 3600.0
_UNUSED_S = 60 * 24 * 3600.0
# raise it with every change that gives other pixels, or another file, for the same photos
_DECODING = 4
_AHEAD = 256  # photos
# times as long as wide: a line of pixels, resized, would take the room of thousands of images
_LONGEST = 8
_HELD: set[int] = set()
"""Descriptors of the files in memory that this process has made, each with a lock for as long as it
runs."""


class RowCache:
    """A file of rows.

    Args:
        path: The file, of the right length.
        sizes: Bytes of each row; a row of 0 bytes is never there.
    """

    def __init__(self, path: Path, sizes: npt.NDArray[np.int64]) -> None:
        self.path = path
        self.sizes = sizes
        self._starts = np.cumsum([0, *sizes])
        self._descriptor = os.open(path, os.O_RDWR)
        weakref.finalize(self, os.close, self._descriptor)
        content = np.asarray(np.memmap(path, np.uint8, "r+"))
        self._crcs = content[: _CRC_BYTES * len(sizes)].view(np.uint32)
        self._content = content[_CRC_BYTES * len(sizes) :]

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> Bytes | None:
        """Return a row without a copy; None where it is not there."""
        return self._row(index) if self._crcs[index] else None

    def __setitem__(self, index: int, row: Bytes | None) -> None:
        """Set a row that was computed; None where it cannot be."""
        if row is not None:
            self._row(index)[:] = row
        self._crcs[index] = 0 if row is None else zlib.crc32(row.data) or 1

    def __reduce__(self) -> tuple[Any, ...]:
        # The process that made a file in memory may have ended, and the file is gone then, but for
        # those who have it.
        return _open_pickled, (
            self.path,
            Path(f"/proc/{os.getpid()}/fd/{self._descriptor}"),
            self.sizes,
        )

    def _row(self, index: int) -> Bytes:
        return self._content[self._starts[index] : self._starts[index + 1]]

    def find_missing(self) -> list[int]:
        """List the rows that have to be computed, in order.

        Each other one is read, about 0.7 s a GB of one core.

        Nothing is changed, so that a process which computes a damaged row takes it from no other
        one that has done so.
        """

        def is_missing(index: int) -> bool:
            crc = int(self._crcs[index])
            return bool(self.sizes[index]) and (
                not crc or crc != (zlib.crc32(self._row(index).data) or 1)
            )

        with ThreadPoolExecutor(count_threads()) as pool:
            return np.flatnonzero(list(pool.map(is_missing, range(len(self))))).tolist()


def _open_pickled(path: Path, opened: Path, sizes: npt.NDArray[np.int64]) -> RowCache:
    """Open the file of another process's rows.

    By that process's descriptor where it has no name any more.
    """
    try:
        return RowCache(path, sizes)
    except FileNotFoundError:
        return RowCache(opened, sizes)


def open_rows(
    kind: str,
    key: str,
    sizes: npt.NDArray[np.int64],
    *,
    limit_bytes: float | None = None,
    in_memory: bool = False,
) -> RowCache:
    """Open the file of these rows, or make it with all of its room.

    Every process of a machine may call it.

    Args:
        kind: Folder of the cache, such as ``decoded``.
        key: Hexadecimal digest of all that decides the rows.
        sizes: Bytes of each row.
        limit_bytes: Upper limit for all files of the folder; None is a share of what is free.
        in_memory: Keep the file in the machine's memory. It goes with the process that made it,
            others keep what they have mapped; those of killed processes go with the next call. The
            maker holds a lock on it, which the kernel releases at its end: process numbers mean
            nothing in another container that shares the folder.

    Raises:
        OSError: If there is no room, or no folder that this user can write to.
    """
    home = cache_folder()
    num_bytes = int(sizes.sum()) + _CRC_BYTES * len(sizes)
    folder = None if home is None else home / kind
    if in_memory:
        shared_memory = "/dev/shm" if sys.platform == "linux" else tempfile.gettempdir()  # noqa: S108
        folder = private_folder(Path(shared_memory))
    if folder is None:
        raise FileNotFoundError(errno.ENOENT, "no folder for it can be written")
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        if in_memory:
            _remove_abandoned(folder)
        found = [
            other for other in folder.glob(f"{key[:40]}*.rows") if other.stat().st_size == num_bytes
        ]
        # no maker removes another's
        name = f"{key[:40]}-{secrets.token_hex(8)}" if in_memory else key[:40]
        path = found[0] if found else folder / f"{name}.rows"
        if not found:
            path.unlink(missing_ok=True)
            _make_room(folder, num_bytes, limit_bytes, in_memory=in_memory)
            _allocate(path, num_bytes)
        os.utime(path)  # those unused longest are removed first
        rows = RowCache(path, sizes)
        if in_memory and not found:
            # Not `weakref.finalize`: processes of multiprocessing, such as a stage of a retrain,
            # end without `atexit`.
            Finalize(rows, _remove_own, args=(path, _hold(path)), exitpriority=0)
        return rows


def _allocate(path: Path, num_bytes: int) -> None:
    """Make a file with all of its room.

    A full disk is an error now, and no crash of a mapped page later.
    """
    try:
        with path.open("wb") as file:
            if sys.platform == "linux":
                os.posix_fallocate(file.fileno(), 0, num_bytes)
            else:
                file.truncate(num_bytes)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _make_room(folder: Path, num_bytes: int, limit_bytes: float | None, *, in_memory: bool) -> None:
    """Remove files that were unused for 60 days.

    Then those unused longest as far as is needed, of the last week none.

    Raises:
        OSError: If there is still no room.
    """
    files = sorted(
        (file.stat().st_mtime, file.stat().st_size, file) for file in folder.glob("*.rows")
    )
    taken = sum(size for _, size, _ in files)
    free = shutil.disk_usage(folder).free - _KEPT_FREE_BYTES
    if in_memory:
        free = min(free, available_memory_bytes())
    share = _SHARE_OF_MEMORY if in_memory else _SHARE_OF_DISK
    most = (free + taken) * share if limit_bytes is None else limit_bytes
    for used_s, size, file in files:
        unused_s = time.time() - used_s
        is_needed = taken + num_bytes > most or num_bytes > free
        if unused_s > _UNUSED_S or (is_needed and unused_s > _RECENT_S):
            file.unlink(missing_ok=True)
            taken = taken - size
            free = free + size
    if taken + num_bytes > most or num_bytes > free:
        raise OSError(errno.ENOSPC, f"there is no room for {num_bytes / 1e6:.1f} MB")


def _hold(file: Path) -> int:
    """Lock a file in memory for as long as this process runs.

    Return the descriptor that holds the lock.
    """
    descriptor = os.open(file, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    _HELD.add(descriptor)
    return descriptor


def _remove_abandoned(folder: Path) -> None:
    """Remove the files in memory that killed processes have made."""
    for file in filter(_is_abandoned, folder.glob("*.rows")):
        file.unlink(missing_ok=True)


def _is_abandoned(file: Path) -> bool:
    """Return whether the process that made a file in memory, in whichever container, has ended."""
    with suppress(OSError), file.open("r+b") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _remove_own(file: Path, descriptor: int) -> None:
    """Remove a file in memory that this process has made.

    `Finalize` calls it in no process that was forked.
    """
    file.unlink(missing_ok=True)
    _HELD.discard(descriptor)
    os.close(descriptor)


def _close_held() -> None:
    """Leave the locks to the process that made the files: a worker may outlive it by seconds."""
    while _HELD:
        os.close(_HELD.pop())


os.register_at_fork(after_in_child=_close_held)


def open_sources(
    splits: Mapping[Split, Sequence[Photo]], *, cache: Cache, cache_size: int | None,
    cache_limit_gb: float | None, preprocessing: Preprocessing, batch_size: int,
    trainer: Trainer | None,
) -> tuple[dict[Split, ImageSource], dict[str, Any]]:  # fmt: skip
    """Open the sources of a fit's images, and decode them where they are cached.

    Every process calls it once a fit: the first on a machine decodes, the others wait for it. The
    pixels that are trained on follow from ``cache`` and ``cache_size`` alone: with `none` they are
    those of the files; else those of the images resized to ``cache_size``, which may be kept in
    memory, on disk or nowhere.

    Args:
        splits: The photos of training and validation.
        cache: Value of the config.
        cache_size: Shorter side in pixels; ``preprocessing.resize`` if None. With another one, only
            training reads from the cache, so that evaluation stays equal to the last bit.
        cache_limit_gb: Upper limit in GB (1e9 bytes) for all caches together.
        preprocessing: Of evaluation.
        batch_size: Of one process.
        trainer: Knows the number of epochs.

    Returns:
        The sources, and the manifest's entry: where the images are ``kept``, and the ``size`` of
        their shorter side.
    """
    sources: dict[Split, ImageSource] = {
        split: PhotoPixels(photos) for split, photos in splits.items()
    }
    if cache == "none":
        return sources, {"kept": "nowhere", "size": None}
    shorter = cache_size or preprocessing.resize
    num = len(splits["train"])
    train = sources["train"] = ResizedPhotos(splits["train"], shorter)
    announce = log.info if trainer is not None and trainer.is_global_zero else log.debug
    if cache == "auto" and (num_reads := count_planned_reads(trainer, num, batch_size)) <= num:
        announce(
            "data: photos are decoded each time, as this training reads %s of %s; "
            "data.init_args.cache: disk keeps them for later runs", f"{num_reads:,.0f}", f"{num:,}",
        )  # fmt: skip
        return sources, {"kept": "nowhere", "size": shorter}
    # validation's own resizing of a file gives the same pixels
    kept: dict[Split, ResizedPhotos] = {"train": train}
    if splits["val"] and shorter == preprocessing.resize:
        kept["val"] = ResizedPhotos(splits["val"], shorter)
    limit_bytes = None if cache_limit_gb is None else cache_limit_gb * 1e9
    reasons = []
    for place in _PLACES[cache]:
        try:
            _decode_into(
                kept.values(), announce, in_memory=place == "memory", limit_bytes=limit_bytes
            )
        except OSError as error:
            reasons.append(f"{place}: {error.strerror or error}")
        else:
            return {**sources, **kept}, {"kept": place, "size": shorter}
    announce = announce if cache == "auto" else log.warning
    announce(
        "data: photos are decoded in every epoch (%s); make room, raise "
        "data.init_args.cache_limit_gb, or set data.init_args.cache to auto", "; ".join(reasons),
    )  # fmt: skip
    return sources, {"kept": "nowhere", "size": shorter}


def _decode_into(
    kept: Collection[ResizedPhotos],
    announce: Callable[..., None],
    *,
    in_memory: bool,
    limit_bytes: float | None,
) -> None:
    """Decode photos into memory or onto disk.

    Raises:
        OSError: If there is no room for all of them; none of them is kept then.
    """
    try:
        for photos in kept:
            photos.open_rows(in_memory=in_memory, limit_bytes=limit_bytes)
        for photos in kept:
            photos.decode(announce)
    except OSError:
        for photos in kept:
            photos.rows = None
        raise


def count_planned_reads(trainer: Trainer | None, num_images: int, batch_size: int) -> float:
    """Compute how many training images a fit will read, counting each time.

    0 where that is not known.

    Args:
        trainer: Knows epochs, steps and limits.
        num_images: In an epoch.
        batch_size: Of one process.
    """
    # Lightning (2.6.6) sets these from another module, where types are not seen
    if (
        trainer is None
        or getattr(trainer, "fast_dev_run", False)
        or getattr(trainer, "overfit_batches", 0) > 0
    ):
        return 0
    limit = trainer.limit_train_batches
    num_of_batch = batch_size * trainer.world_size
    an_epoch = (
        min(num_images, limit * num_of_batch) if isinstance(limit, int) else num_images * limit
    )
    epochs = math.inf if trainer.max_epochs in (None, -1) else trainer.max_epochs
    steps = math.inf if trainer.max_steps == -1 else trainer.max_steps
    return min(epochs * an_epoch, steps * trainer.accumulate_grad_batches * num_of_batch)


class ResizedPhotos(PhotoPixels):
    """Photos resized to a shorter side: decoded before, else each time they are read.

    Extreme shapes as they are.

    Args:
        photos: The split.
        shorter: Shorter side in pixels.
    """

    def __init__(self, photos: Sequence[Photo], shorter: int) -> None:
        super().__init__(photos)
        self.shorter = shorter
        self.rows: RowCache | None = None

    def pixels(self, index: int) -> Pixels:
        """Return an image.

        Raises:
            UnreadableImageError: If it was not decoded before, and its file cannot be read.
        """
        row = None if self.rows is None else self.rows[index]
        if row is not None:
            return Decoded(row.reshape(*self._size(index), 3))
        pixels = super().pixels(index)
        return (
            Decoded(np.array(resize_shorter_side(pixels.whole(), self.shorter)))
            if self._size(index)[0]
            else pixels
        )

    def _size(self, index: int) -> tuple[int, int]:
        """Height and width after resizing; 0 for a shape that is too extreme."""
        height = self.photos[index].height
        width = self.photos[index].width
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
        sizes = (
            np.array([self._size(index) for index in range(len(self))], np.int64).prod(axis=1) * 3
        )
        self.rows = open_rows("decoded", key, sizes, in_memory=in_memory, limit_bytes=limit_bytes)

    def decode(self, announce: Callable[..., None]) -> None:
        """Decode the images that are not in the file yet, in threads.

        One that has changed since the scan is left out.

        Args:
            announce: Logs a line of what other processes log as well.
        """
        rows = self.rows
        assert rows is not None

        def decode(index: int) -> None:
            photo = self.photos[index]
            rows[index] = None
            try:
                content = photo.path.read_bytes()
                if hashlib.sha256(content).hexdigest() == photo.digest:
                    with Image.open(io.BytesIO(content)) as image:
                        rows[index] = np.array(
                            resize_shorter_side(upright_rgb(image), self.shorter)
                        ).reshape(-1)
            except Exception as error:  # noqa: BLE001 (decoders raise what they like)
                # raises where this machine lacks descriptors or memory
                format_reason(error, photo.path)

        with FileLock(rows.path.with_suffix(".lock")) as lock:
            began_s = time.monotonic()
            missing = rows.find_missing()
            with pillow_warnings(), ThreadPoolExecutor(count_threads()) as pool:
                decoded = map_in_order(pool, decode, missing, ahead=_AHEAD)
                for _ in show_progress(decoded, len(missing), "photos decoded"):
                    pass
        Path(lock.lock_file).unlink(missing_ok=True)
        (log.info if missing else announce)(
            "data: photos, shorter side %d px: %d found decoded, %d"
            " decoded once (%.1f s), %.1f MB in %s",
            self.shorter, len(rows) - len(missing), len(missing), time.monotonic() - began_s,
            rows.sizes.sum() / 1e6,
            rows.path.parent,
        )  # fmt: skip
