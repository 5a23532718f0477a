"""Images that are decoded once and mapped into memory by all processes of a machine.

One file for training and validation holds an index (`numpy.save`) and then the pixels of each image. It is named by the
content of the photos, the size and the versions of the decoders, written aside and renamed when it is whole. Files on
disk go by age and size; one in memory goes with the process that made it. Other processes keep what they have mapped.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import math
import os
import shutil
import stat
import sys
import tempfile
import time
import weakref
import zlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import PIL
import psutil
from filelock import FileLock
from PIL import Image, features
from pytorch_lightning import Trainer

from lightkit.data.image_index import Photo
from lightkit.data.image_sources import Decoded, PhotoPixels, Pixels, PixelSource
from lightkit.data.progress import show_progress
from lightkit.data.splits import Split
from lightkit.hardware.cache_folder import cache_folder
from lightkit.hardware.processor import available_memory_bytes, num_cores
from lightkit.images.image_file import format_reason, pillow_warnings, upright_rgb
from lightkit.images.preprocessing import Preprocessing, compute_resized_size, resize_shorter_side

log = logging.getLogger("lightkit.data")

Cache = Literal["auto", "none", "memory", "disk"]
_INDEX = np.dtype([("offset", "<u8"), ("height", "<u4"), ("width", "<u4"), ("crc", "<u4")])
"""Of one image: first byte, size in pixels (0: it could not be decoded), and CRC-32 of the pixels."""
_DECODING = 2  # raise it with every change that gives other pixels, or another file, for the same photos
_LONGEST = 8  # times as long as wide: a line of pixels, resized, would take the room of thousands of images
_SHARE_OF_MEMORY, _SHARE_OF_DISK = 0.25, 0.5
_KEPT_FREE_BYTES = 16 << 20
_MAX_THREADS = 16
_SUFFIX = ".pixels"
_RECENT_S, _UNUSED_S = 7 * 24 * 3600.0, 60 * 24 * 3600.0  # a training of a week may still need a file


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
        cache_limit_gb: Upper limit in GB (1e9 bytes); on disk for all caches together.
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
    # validation's own resizing of a file gives the same pixels
    kept: list[Split] = [split for split in splits if split == "train" or shorter == preprocessing.resize]
    announce = log.info if trainer is not None and trainer.is_global_zero else log.debug
    num, num_reads = len(splits["train"]), 0.0
    if cache == "auto" and (num_reads := planned_reads(trainer, len(splits["train"]), batch_size)) <= num:
        announce(
            "data: photos are decoded each time, as this training reads %s of %s; data.init_args.cache: disk keeps "
            "them for later runs", f"{num_reads:,.0f}", f"{num:,}",
        )  # fmt: skip
        images, photos = None, list[Photo]()
    else:
        # one of each content, in the order of their digests: the same however they are split and named
        by_digest = {photo.digest: photo for split in kept for photo in splits[split] if _is_kept(photo)}
        photos = [by_digest[digest] for digest in sorted(by_digest)]
        limit_bytes = None if cache_limit_gb is None else cache_limit_gb * 1e9
        images = _open_or_decode(photos, shorter, cache, limit_bytes, announce) if photos else None
    for split in kept[:1] if images is None else kept:
        sources[split] = ResizedPhotos(splits[split], shorter, images, photos)
    place = "nowhere" if images is None else "memory" if images.in_memory else "disk"
    return sources, {"kept": place, "size": shorter}


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


def _is_kept(photo: Photo) -> bool:
    shorter, longer = sorted((photo.height, photo.width))
    return 0 < longer <= _LONGEST * shorter


class ResizedPhotos(PhotoPixels):
    """Photos resized to a shorter side: decoded before, else each time they are read; extreme shapes as they are.

    Args:
        photos: The split.
        shorter: Shorter side in pixels.
        images: Decoded images; None where there are none.
        decoded: Photos of these images, in their order.
    """

    def __init__(
        self, photos: Sequence[Photo], shorter: int, images: DecodedImages | None, decoded: Sequence[Photo]
    ) -> None:
        super().__init__(photos)
        self.shorter, self.images = shorter, images
        slots = {photo.digest: slot for slot, photo in enumerate(decoded)}
        self._slots = np.array([slots.get(photo.digest, -1) for photo in photos], dtype=np.int64)

    def pixels(self, index: int, /) -> Pixels:
        """Return an image.

        Raises:
            UnreadableImageError: If it was not decoded before, and its file cannot be read.
        """
        slot = int(self._slots[index])
        image = None if self.images is None or slot < 0 else self.images[slot]
        if image is not None:
            return Decoded(image)
        pixels = super().pixels(index)
        if not _is_kept(self.photos[index]):
            return pixels
        return Decoded(np.array(resize_shorter_side(pixels.whole(), self.shorter)))


class DecodedImages:
    """A file of decoded images that is mapped into memory.

    Args:
        path: The file.
        in_memory: Whether it is in the machine's memory.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it is not such a file, or was cut short.
    """

    def __init__(self, path: Path, in_memory: bool) -> None:
        self.path, self.in_memory = path, in_memory
        with path.open("rb") as file:
            self._index = np.load(file, allow_pickle=False)
            # Copy on write: torch warns of memory that cannot be written.
            self._pixels = np.memmap(file, np.uint8, mode="c", offset=file.tell())
        last = self._index[-1]
        if self._index.dtype != _INDEX or len(self._pixels) < last["offset"] + last["height"] * last["width"] * 3:
            raise ValueError("not a whole file of decoded images")
        with suppress(OSError):  # another user's; the time of the last use decides which file is removed first
            os.utime(path)

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, slot: int) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
        """Give uint8 ``(height, width, 3)`` without a copy; None where that image could not be decoded."""
        offset, height, width, _ = (int(value) for value in self._index[slot])
        size = height * width * 3
        return self._pixels[offset : offset + size].reshape(height, width, 3) if size else None

    def verify(self) -> None:
        """Compare each image with its CRC-32; about 0.7 s a GB of one core.

        Raises:
            ValueError: If one differs.
        """

        def is_whole(slot: int) -> bool:
            image = self[slot]
            return image is None or zlib.crc32(image.data, len(image)) == self._index[slot]["crc"]

        with ThreadPoolExecutor(_num_threads()) as pool:
            if not all(pool.map(is_whole, range(len(self)))):
                raise ValueError("images are damaged")

    def __reduce__(self) -> tuple[Any, ...]:
        return DecodedImages, (self.path, self.in_memory)


def _num_threads() -> int:
    return max(1, min(_MAX_THREADS, num_cores() or 1))


def _open_or_decode(
    photos: Sequence[Photo], shorter: int, cache: Cache, limit_bytes: float | None, announce: Any
) -> DecodedImages | None:
    """Open the file of these photos where a folder has it, else decode them; None where no folder has room."""
    key = _key(photos, shorter)[:40]
    sizes = np.array([compute_resized_size(photo.height, photo.width, shorter) for photo in photos], np.uint64)
    num_bytes = int(sizes.prod(axis=1).sum()) * 3 + (len(photos) + 8) * _INDEX.itemsize
    for folder, _ in _folders("memory"):
        for file in folder.glob(f"*{_SUFFIX}*"):  # also the part of a file
            process = file.name.split(".")[1]
            if not (process.isdigit() and psutil.pid_exists(int(process))):  # killed
                file.unlink(missing_ok=True)
    reasons = []
    for folder, in_memory in sorted(_folders(cache), key=lambda place: not [*place[0].glob(f"{key}*{_SUFFIX}")]):
        size = f"{num_bytes / 1e6:.1f} MB {'in memory' if in_memory else f'on disk in {folder}'}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with FileLock(folder / f"{key}.lock") as lock:
                began_s, found = time.monotonic(), _find(folder, key, in_memory=in_memory)
                is_new = found is None
                if found is None and make_room(folder, num_bytes, limit_bytes, in_memory=in_memory) >= num_bytes:
                    file = folder / (f"{key}.{os.getpid()}{_SUFFIX}" if in_memory else f"{key}{_SUFFIX}")
                    _decode(photos, shorter, sizes, file)
                    found = DecodedImages(file, in_memory)
                    if in_memory:
                        weakref.finalize(found, _remove_own, file, os.getpid())
                if in_memory:
                    Path(lock.lock_file).unlink(missing_ok=True)
        except OSError as error:
            reasons.append(f"{folder} cannot be used ({error.strerror or error})")
            continue
        if found is None:
            reasons.append(f"there is no room for {size}")
        elif is_new:
            seconds = time.monotonic() - began_s
            log.info(
                "data: %d photos decoded once, shorter side %d px, %s (%.1f s)", len(photos), shorter, size, seconds
            )
            return found
        else:
            announce("data: %d photos found decoded, shorter side %d px, %s", len(photos), shorter, size)
            return found
    remedy = "make room, raise data.init_args.cache_limit_gb, or set data.init_args.cache to auto"
    announce = announce if cache == "auto" else log.warning
    announce("data: photos are decoded in every epoch, as %s; %s", "; ".join(reasons) or "no folder is there", remedy)
    return None


def _find(folder: Path, key: str, *, in_memory: bool) -> DecodedImages | None:
    """Open a whole file of these photos; damaged ones are removed."""
    for file in folder.glob(f"{key}*{_SUFFIX}"):
        try:
            found = DecodedImages(file, in_memory)
            found.verify()
        except (OSError, EOFError, ValueError, IndexError, TypeError) as error:  # noqa: PERF203 (of a few)
            log.warning("data: %s is made again: %s", file, error)
            file.unlink(missing_ok=True)
        else:
            return found
    return None


def _remove_own(file: Path, process: int) -> None:
    if os.getpid() == process:  # not in a worker that was forked
        file.unlink(missing_ok=True)


def _key(photos: Iterable[Photo], shorter: int) -> str:
    decided_by = {
        "decoding": _DECODING,
        "pillow": PIL.__version__,
        "jpeg": features.version_feature("libjpeg_turbo") or features.version_codec("jpg"),
        "interpolation": Preprocessing.__dataclass_fields__["interpolation"].default,
        "shorter": shorter,
    }
    digest = hashlib.sha256(json.dumps(decided_by, sort_keys=True).encode())
    for photo in photos:
        digest.update(f"\n{photo.digest} {photo.height} {photo.width}".encode())
    return digest.hexdigest()


def _folders(cache: Cache) -> list[tuple[Path, bool]]:
    """Give the folders of a setting, the best first, and whether files in them are temporary."""
    memory = Path("/dev/shm" if sys.platform == "linux" else tempfile.gettempdir())  # noqa: S108 (see below)
    own, kept = memory / f"lightkit-{os.getuid()}", cache_folder()
    in_memory, on_disk = [(own, True)], [] if kept is None else [(kept / "decoded", False)]
    try:
        own.mkdir(mode=0o700, exist_ok=True)
        found = own.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o022 or found.st_uid != os.getuid():
            in_memory = []  # somebody else may put files there
    except OSError:
        in_memory = []
    by_setting = {"memory": in_memory, "disk": on_disk, "auto": in_memory + on_disk}
    return by_setting[cache]


def make_room(
    folder: Path, num_bytes: int, limit_bytes: float | None = None, *, in_memory: bool = False, suffix: str = _SUFFIX
) -> int:
    """Return the bytes that a new file may take.

    On disk, files that were unused for 60 days are removed before, and those unused longest as far as is needed; not
    those of the last seven days, which a training may still read.
    """
    files: list[tuple[float, int, Path]] = []
    for file in folder.glob(f"*{suffix}*"):
        with suppress(FileNotFoundError):  # another process has just removed it
            files.append((time.time() - (found := file.stat()).st_mtime, found.st_size, file))
    taken = sum(size for _, size, _ in files)
    free = max(0, shutil.disk_usage(folder).free - _KEPT_FREE_BYTES)
    if in_memory:
        available = available_memory_bytes()
        most = available * _SHARE_OF_MEMORY if limit_bytes is None else limit_bytes - taken
        return max(0, int(min(most, available, free)))
    most = (free + taken) * _SHARE_OF_DISK if limit_bytes is None else limit_bytes
    for unused_s, size, file in sorted(files, reverse=True):
        is_needed = taken + num_bytes > most or num_bytes > free
        if unused_s > _UNUSED_S or (is_needed and unused_s > _RECENT_S):
            file.unlink(missing_ok=True)
            taken, free = taken - size, free + size
    return max(0, int(min(most - taken, free)))


def _decode(photos: Sequence[Photo], shorter: int, sizes: np.ndarray[Any, Any], path: Path) -> None:
    """Decode all photos in threads and write their file.

    A photo that has changed or vanished since the scan is left out of it.

    Raises:
        OSError: If there is no room, or no permission.
    """
    index = np.zeros(len(photos), dtype=_INDEX)
    index["height"], index["width"] = sizes.T
    index["offset"][1:] = np.cumsum(sizes.prod(axis=1) * 3)[:-1]
    aside = path.with_name(f"{path.name}.part")  # only the process that holds the lock writes it
    try:
        with aside.open("w+b") as file, pillow_warnings(), ThreadPoolExecutor(_num_threads()) as pool:
            np.save(file, index)
            start = file.tell()
            num_bytes = start + int(sizes.prod(axis=1).sum()) * 3
            if sys.platform == "linux":  # a full disk is an error now, and not after an hour
                os.posix_fallocate(file.fileno(), 0, num_bytes)
            else:
                file.truncate(num_bytes)

            def decode(slot: int) -> None:
                row, photo = index[slot], photos[slot]  # a view: the row of the index is completed here
                image = _decode_one(photo, shorter)
                if image is None or image.shape[:2] != (row["height"], row["width"]):
                    row["height"] = row["width"] = 0
                    return
                row["crc"] = zlib.crc32(image.data, len(image))
                rest, offset = image.data.cast("B"), start + int(row["offset"])
                while rest:
                    num = os.pwrite(file.fileno(), rest, offset)
                    rest, offset = rest[num:], offset + num

            try:
                for _ in show_progress(pool.map(decode, range(len(photos))), len(photos), "photos decoded"):
                    pass
            finally:
                pool.shutdown(cancel_futures=True)
            file.seek(0)
            np.save(file, index)
            file.flush()
            os.fsync(file.fileno())
            aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)


def _decode_one(photo: Photo, shorter: int) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
    """Decode a photo; None where it has changed or vanished since the scan."""
    try:
        content = photo.path.read_bytes()
        if hashlib.sha256(content).hexdigest() != photo.digest:
            return None
        with Image.open(io.BytesIO(content)) as image:
            return np.array(resize_shorter_side(upright_rgb(image), shorter))
    except Exception as error:  # noqa: BLE001 (decoders raise what they like)
        format_reason(error, photo.path)  # raises where this machine lacks descriptors or memory
        return None
