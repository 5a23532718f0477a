"""The data set that needs no download: pictures of flowers, drawn on first use and kept in the user's cache."""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

from lightkit.data.flower_scenes import draw_flower
from lightkit.data.flower_shapes import FLOWERS
from lightkit.data.image_folder import ImageFolder
from lightkit.errors import ConfigError, DataError
from lightkit.hardware.cache_folder import cache_folder, preferred_cache_folder

__all__ = ["DrawnFlowers", "drawn_flowers"]

log = logging.getLogger("lightkit.data")

_VERSION = 1  # raise it with every change of the drawing, so that nobody trains on another version's pictures
_UNFINISHED = ".drawing-"
_STALE_AFTER_S = 3600.0


class DrawnFlowers(ImageFolder):
    """Drawn pictures of five kinds of flowers that differ in shape and share their colours.

    They are drawn on first use, in seconds, and kept in `$XDG_CACHE_HOME/lightkit` (default `~/.cache/lightkit`).

    Args:
        num_images: How many, over all five kinds.
        drawn_size: Side of the square pictures, in pixels.
        drawn_seed: Decides what is drawn.
        kwargs: As for ImageFolder.
    """

    source = "drawn"
    input_folders: ClassVar[tuple[str, ...]] = ()

    def __init__(self, num_images: int = 800, drawn_size: int = 160, drawn_seed: int = 0, **kwargs: Any) -> None:
        super().__init__(root="", **kwargs)
        if num_images < len(FLOWERS) or drawn_size < 1:
            raise ConfigError(
                f"data.init_args: expected num_images of {len(FLOWERS)} or more and drawn_size of 1 or more, got "
                f"{num_images} and {drawn_size}"
            )
        self.num_images = num_images
        self.drawn_size = drawn_size
        self.drawn_seed = drawn_seed

    def prepare_data(self) -> None:
        """Draw the pictures, on one process of each machine, unless they are there."""
        drawn_flowers(self.num_images, size=self.drawn_size, seed=self.drawn_seed)
        super().prepare_data()

    def setup(self, stage: str | None = None) -> None:
        """Find the pictures, drawing them where nobody has yet."""
        self.root = drawn_flowers(self.num_images, size=self.drawn_size, seed=self.drawn_seed)
        super().setup(stage)


def drawn_flowers(num_images: int = 800, *, size: int = 160, seed: int = 0) -> Path:
    """Give the folder with the drawn set, one folder a class, after drawing it where it is not there or incomplete.

    It is drawn aside and renamed when complete, so that a kill leaves no half of it, and of two that draw at once the
    first to be ready wins.

    Raises:
        DataError: If it can be written neither to the cache nor to the temporary folder.
    """
    preferred, cache = preferred_cache_folder(), cache_folder()
    if cache is None:
        raise DataError(
            f"{preferred}: this cache folder cannot be written, and neither can one in {tempfile.gettempdir()}. Set "
            "XDG_CACHE_HOME to a folder that can, or data.init_args.root to a folder with photos."
        )
    target = cache / f"drawn-flowers-v{_VERSION}-n{num_images}-s{size}-seed{seed}"
    if _is_complete(target, num_images):
        return target
    _remove_stale(cache)
    if cache != preferred:
        log.warning("%s cannot be written; the drawn flowers are kept in %s instead", preferred, cache)
    log.info("drawing %d pictures of flowers into %s (once; a few seconds)", num_images, target)
    try:
        aside = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=cache))
        try:
            _draw_all(aside, num_images, size=size, seed=seed)
            _put_in_place(aside, target, num_images)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise DataError(
            f"{target}: the drawn flowers cannot be written ({error.strerror or error}). They take about "
            f"{num_images * size**2 * 2 / 1e6:.0f} MB. Make room, or set XDG_CACHE_HOME to a folder with some."
        ) from error
    return target


def _draw_all(folder: Path, num_images: int, *, size: int, seed: int) -> None:
    for class_number, kind in enumerate(FLOWERS):
        (folder / kind).mkdir()
        for number in range(class_number, num_images, len(FLOWERS)):
            picture = draw_flower(kind, size=size, seed=(_VERSION, seed, class_number, number))
            picture.save(folder / kind / f"{number:05d}.png", compress_level=1)


def _is_complete(folder: Path, num_images: int) -> bool:
    return folder.is_dir() and sum(1 for _ in folder.glob("*/*.png")) == num_images


def _put_in_place(aside: Path, target: Path, num_images: int) -> None:
    aside.chmod(0o755)  # mkdtemp lets nobody else in; the finished set is nobody's secret
    if target.exists() and not _is_complete(target, num_images):  # somebody has deleted a part of it
        broken = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=target.parent))
        target.rename(broken / target.name)
        shutil.rmtree(broken, ignore_errors=True)
    try:
        aside.rename(target)
    except OSError:
        if not _is_complete(target, num_images):  # otherwise another process was ready first, with the same pictures
            raise


def _remove_stale(cache: Path) -> None:
    """Remove what killed processes have left."""
    for leftover in cache.glob(f"{_UNFINISHED}*"):
        try:
            is_stale = time.time() - leftover.stat().st_mtime > _STALE_AFTER_S
        except FileNotFoundError:
            continue
        if is_stale:
            shutil.rmtree(leftover, ignore_errors=True)
