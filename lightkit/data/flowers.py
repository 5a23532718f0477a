"""Flowers: the photos of TensorFlow's tutorials, and drawn pictures that need no download."""

from __future__ import annotations

import colorsys
import errno
import gzip
import logging
import os
import shutil
import tarfile
import tempfile
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
from filelock import FileLock, Timeout
from PIL import Image, ImageDraw, ImageFilter

from lightkit import runs
from lightkit.config.bounds import Bounds, PositiveInt
from lightkit.data.image_folder import ImageFolder
from lightkit.data.image_table import ImageTable
from lightkit.data.mask_folder import MaskFolder
from lightkit.errors import ConfigError, DataError
from lightkit.hardware.cache_folder import make_once
from lightkit.images.flower_photos import CLASSES, DEFAULT_ROOT, FOLDER, flower_photos, has_classes
from lightkit.images.mask_file import write_mask
from lightkit.images.progress import show_progress

log = logging.getLogger("lightkit.data")

Array: TypeAlias = np.ndarray[Any, Any]
Random: TypeAlias = np.random.Generator

_URL = "https://storage.googleapis.com/download.tensorflow.org/example_images/flower_photos.tgz"
# TensorFlow Datasets, url_checksums/tf_flowers.txt
_SHA256 = "4c54ace7911aaffe13a365c34f650e71dd5bf1be0a58b464e5a7183e3e595d9c"
_SIZE_BYTES = 228_813_984
_CHUNK_BYTES = 1 << 16
_TIMEOUT_S = 30.0
_NUM_ATTEMPTS = 5
_TEMPORARY_STATUS = (408, 425, 429)  # and those of the server's own errors, from 500
# raise it with every change of the drawing, so that nobody trains on another version's pictures
_VERSION = 2


class Flowers(ImageFolder):
    """Five kinds of flowers: 3,670 photos after `lightkit fetch`, drawn pictures until then.

    Args:
        root: Folder with the photos. Default: the folder that LIGHTKIT_DATA names, or its
            flower_photos; else data/flower_photos; else the drawn flowers.
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
        if not url.startswith(("http://", "https://")):
            raise ConfigError(
                f"data.init_args.url: expected an http:// or https:// address, got {url!r}"
            )
        self.url = url
        self.sha256 = sha256
        self.size_bytes = size_bytes
        self._is_given = root is not None

    def setup(self, stage: str | None = None) -> None:
        """Choose the photos or the drawn flowers, log which, and read them.

        Raises:
            DataError: If a folder was named, by ``root`` or LIGHTKIT_DATA, that does not hold the
                photos.
        """
        if self._index is None:
            photos = self.root if self._is_given else flower_photos()
            self.source = "drawn" if photos is None else "photos"
            self.root = photos or _drawn_folder()
            if self.trainer is None or self.trainer.is_global_zero:
                notice = (
                    "data: drawn flowers (in %s), as there are no photos in data/flower_photos."
                    " `lightkit fetch` with the same -c FILE downloads them (229 MB);"
                    " data.init_args.root or LIGHTKIT_DATA names a folder that has them."
                )
                log.info(notice if photos is None else "data: the flower photos in %s", self.root)
        super().setup(stage)

    def fetch(self) -> None:
        """Download and unpack the photos, unless they are there."""
        target = self.root
        if not self._is_given:
            named = os.environ.get("LIGHTKIT_DATA")
            target = Path(named).expanduser() if named else DEFAULT_ROOT
            target = target / FOLDER if named and not has_classes(target) else target
        if has_classes(target):
            log.info("the flower photos are in %s already", target)
            return
        archive = target.parent / "flower_photos.tgz"
        _download(self.url, archive, sha256=self.sha256, size_bytes=self.size_bytes)
        _unpack(archive, target, member=FOLDER)
        archive.unlink()
        log.info("the flower photos are in %s", target)


class DrawnFlowers(ImageFolder):
    """Drawn pictures of five kinds of flowers that differ in shape and share their colours.

    They are drawn on first use, in seconds, and kept in `$XDG_CACHE_HOME/lightkit` (default
    `~/.cache/lightkit`).

    Args:
        num_images: Number of pictures, over all five kinds.
        drawn_size: Side of the square pictures, in pixels.
        drawn_seed: Decides what is drawn.
        kwargs: As for ImageFolder.
    """

    source = "drawn"
    input_folders = ()

    def __init__(
        self,
        num_images: Annotated[int, Bounds(ge=len(CLASSES))] = 800,
        drawn_size: PositiveInt = 160,
        drawn_seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(root="", **kwargs)
        _check_drawing(num_images, drawn_size, least=len(CLASSES))
        self.num_images = num_images
        self.drawn_size = drawn_size
        self.drawn_seed = drawn_seed

    def setup(self, stage: str | None = None) -> None:
        """Find the pictures, and draw them where there are none yet."""
        self.root = _drawn_folder(self.num_images, size=self.drawn_size, seed=self.drawn_seed)
        super().setup(stage)


class DrawnMasks(MaskFolder):
    """The drawn pictures of DrawnFlowers, each with a mask.

    ``background``, with stems and leaves, and ``flower``.

    They are drawn on first use, in seconds, and kept in `$XDG_CACHE_HOME/lightkit` (default
    `~/.cache/lightkit`).

    Args:
        num_images: Number of pictures, over all five kinds.
        drawn_size: Side of the square pictures, in pixels.
        drawn_seed: Decides what is drawn.
        kwargs: As for MaskFolder.
    """

    source = "drawn masks"
    input_folders = ()

    def __init__(
        self,
        num_images: Annotated[int, Bounds(ge=len(CLASSES))] = 800,
        drawn_size: PositiveInt = 160,
        drawn_seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(root="", classes=["background", "flower"], **kwargs)
        _check_drawing(num_images, drawn_size, least=len(CLASSES))
        self.num_images = num_images
        self.drawn_size = drawn_size
        self.drawn_seed = drawn_seed

    def setup(self, stage: str | None = None) -> None:
        """Find the pictures, and draw them where there are none yet."""
        self.root = _drawn_masks(self.num_images, size=self.drawn_size, seed=self.drawn_seed)
        super().setup(stage)


class DrawnBouquets(ImageTable):
    """Drawn pictures with a flower of some kinds each, none to five, for models of several labels.

    They are drawn on first use, in seconds, and kept in `$XDG_CACHE_HOME/lightkit` (default
    `~/.cache/lightkit`).

    Args:
        num_images: Number of pictures.
        drawn_size: Side of the square pictures, in pixels.
        drawn_seed: Decides what is drawn.
        kwargs: As for ImageFolder.
    """

    source = "drawn bouquets"
    input_paths = ()

    def __init__(
        self,
        num_images: PositiveInt = 800,
        drawn_size: PositiveInt = 160,
        drawn_seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(path="labels.csv", separator="|", **kwargs)
        _check_drawing(num_images, drawn_size, least=1)
        self.num_images = num_images
        self.drawn_size = drawn_size
        self.drawn_seed = drawn_seed

    def setup(self, stage: str | None = None) -> None:
        """Find the pictures, and draw them where there are none yet."""
        self.root = _drawn_bouquets(self.num_images, size=self.drawn_size, seed=self.drawn_seed)
        self.path = self.root / "labels.csv"
        super().setup(stage)


def _check_drawing(num_images: int, drawn_size: int, *, least: int) -> None:
    """Check the arguments of a drawn set.

    Raises:
        ConfigError: If one is too small.
    """
    if num_images < least or drawn_size < 1:
        raise ConfigError(
            f"data.init_args: expected num_images of {least} or more and drawn_size of 1 or more,"
            f" got {num_images} and {drawn_size}"
        )


def _download(url: str, target: Path, *, sha256: str, size_bytes: int | None) -> None:
    """Download a file, or continue a download that was interrupted, from ``target.part``.

    Args:
        url: http or https address.
        target: The file; complete or absent afterwards.
        sha256: Its digest, hexadecimal.
        size_bytes: Its length, if it is known.

    Raises:
        DataError: If it cannot be downloaded, has another digest, or does not fit on the disk.
    """
    part = target.with_name(f"{target.name}.part")
    lock = FileLock(target.with_name(f".{target.name}.lock"), timeout=0)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with lock:
            if not (target.is_file() and runs.digest(target) == sha256):
                _fill(part, url, sha256, size_bytes)
                part.replace(target)
            Path(lock.lock_file).unlink(missing_ok=True)
    except Timeout:
        raise DataError(
            f"{part}: another process is fetching this file. Wait for it, then try again."
        ) from None
    except OSError as error:
        raise DataError(
            f"{target}: cannot write here ({error.strerror or error}); wanted for {url}. Once there"
            " is room, the same command continues where it stopped."
        ) from error


def _fill(part: Path, url: str, sha256: str, size_bytes: int | None) -> None:
    """Append to ``part`` until it is the remote file."""
    import requests  # here, as a training downloads nothing
    from urllib3.exceptions import HTTPError

    problem = ""
    for attempt in range(_NUM_ATTEMPTS):
        if attempt:
            pause_s = 2 ** (attempt - 1)
            log.info(
                "%s: %s; trying again in %g s (%d of %d)",
                url,
                problem,
                pause_s,
                attempt + 1,
                _NUM_ATTEMPTS,
            )
            time.sleep(pause_s)
        begin = part.stat().st_size if part.is_file() else 0
        try:
            is_complete = _transfer(part, url, begin, size_bytes)
        except requests.HTTPError as error:
            status: int = error.response.status_code  # type: ignore[union-attr]  # raise_for_status gives it
            problem = f"the server answers {status}"
            if status < 500 and status not in _TEMPORARY_STATUS:
                raise DataError(
                    f"{url}: {problem}. Is the address right? See data.init_args.url."
                ) from error
        except (requests.RequestException, HTTPError, ConnectionError) as error:
            problem = f"the connection failed ({error or type(error).__name__})"
        else:
            if not is_complete:
                problem = "the connection was cut off"
                continue
            if (found := runs.digest(part)) == sha256:
                return
            problem = f"its sha256 is {found}, {sha256} was expected"
            part.unlink()  # complete, but wrong: it cannot be continued
            if begin == 0:
                raise DataError(
                    f"{url}: {problem}. The file on the server has changed, or something on the way"
                    " alters it. Nothing was kept."
                )
    raise DataError(
        f"{url}: {problem}; gave up after {_NUM_ATTEMPTS} attempts. The bytes so far are kept in"
        f" {part}: check the network, then run the same command again to continue."
    )


def _transfer(part: Path, url: str, begin: int, size_bytes: int | None) -> bool:
    """Connect once and append to ``part``.

    From its start if the server does not continue at byte ``begin``.

    Returns:
        Whether the file has all its bytes.
    """
    import requests  # here, as above

    headers = {"User-Agent": "lightkit", "Accept-Encoding": "identity"} | (
        {"Range": f"bytes={begin}-"} if begin else {}
    )
    with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT_S) as response:
        if response.status_code == 416:  # no more bytes: it is complete, or too long
            return True
        response.raise_for_status()
        if not response.headers.get("Content-Range", "").startswith(f"bytes {begin}-"):
            begin = 0
        length = response.headers.get("Content-Length")
        end = begin + int(length) if length else size_bytes
        if end is not None and shutil.disk_usage(part.parent).free < end - begin:
            raise OSError(errno.ENOSPC, "the disk is full")
        log.info("fetching %s%s", part.stem, f" from byte {begin}" if begin else "")
        # or the last bytes of a broken connection were lost
        response.raw.enforce_content_length = False
        chunks = response.raw.stream(_CHUNK_BYTES)
        with part.open("ab" if begin else "wb") as file:
            for chunk in show_progress(
                chunks, (end or 0) - begin, f"bytes of {part.stem}", size=len
            ):
                file.write(chunk)
    return end is None or part.stat().st_size >= end


def _unpack(archive: Path, target: Path, *, member: str) -> None:
    """Unpack a tar archive aside; rename its folder ``member`` to ``target`` once complete.

    Links are refused altogether: pictures need none, and links are what got past tarfile's own
    filter (CVE-2025-4517).

    Raises:
        DataError: If ``target`` has files already, a member would land outside or is no plain file
            or folder, the archive is broken, or the disk is full.
    """

    def check_member(entry: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
        if entry.name.startswith(("/", "\\")) or not (entry.isfile() or entry.isdir()):
            raise tarfile.SpecialFileError(entry)
        return tarfile.data_filter(entry, folder)

    if target.is_dir() and any(target.iterdir()):
        raise DataError(
            f"{target}: there are files here already. Move them away to unpack {archive.name} in"
            " their place."
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as aside:
            with tarfile.open(archive) as tar:
                tar.extractall(aside, filter=check_member)  # noqa: S202 (each member is checked)
            folder = Path(aside, member)
            if not folder.is_dir():
                raise DataError(
                    f"{archive}: there is no folder {member} in this archive. Is it the right one?"
                )
            folder.chmod(0o755)
            folder.rename(target)
    except tarfile.FilterError as error:
        raise DataError(
            f"{archive}: not unpacked, because of a member that does not belong there: {error}"
        ) from error
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"{archive}: this archive is broken ({reason}). Delete it and fetch it again."
        ) from error
    except OSError as error:
        raise DataError(
            f"{target}: cannot unpack {archive.name} here ({error.strerror or error})."
        ) from error


def _drawn_folder(num_images: int = 800, *, size: int = 160, seed: int = 0) -> Path:
    """Return the folder with the drawn set, one folder a class, drawn first where it is missing.

    Raises:
        DataError: If it can be written neither to the cache nor to the temporary folder.
    """

    def build(folder: Path) -> None:
        log.info(
            "drawing %d pictures of flowers into %s (once; a few seconds)",
            num_images,
            folder.parent / name,
        )
        for label, kind in enumerate(CLASSES):
            (folder / kind).mkdir()
            for number in range(label, num_images, len(CLASSES)):
                picture, _ = draw_flower(kind, size=size, seed=(_VERSION, seed, label, number))
                picture.save(folder / kind / f"{number:05d}.png", compress_level=1)

    name = f"drawn-flowers-v{_VERSION}-n{num_images}-s{size}-seed{seed}"
    return make_once(name, build)


def _drawn_masks(num_images: int = 800, *, size: int = 160, seed: int = 0) -> Path:
    """Return the folder with the drawn ``images`` and their ``masks``, drawn if missing.

    Raises:
        DataError: If it can be written neither to the cache nor to the temporary folder.
    """

    def build(folder: Path) -> None:
        log.info(
            "drawing %d pictures of flowers with masks into %s (once)",
            num_images,
            folder.parent / name,
        )
        (folder / "images").mkdir()
        (folder / "masks").mkdir()
        for number in range(num_images):
            label = number % len(CLASSES)
            picture, mask = draw_flower(
                CLASSES[label], size=size, seed=(_VERSION, seed, label, number)
            )
            picture.save(folder / "images" / f"{number:05d}.png", compress_level=1)
            write_mask(folder / "masks" / f"{number:05d}.png", np.asarray(mask), 2)

    name = f"drawn-masks-v{_VERSION}-n{num_images}-s{size}-seed{seed}"
    return make_once(name, build)


def _drawn_bouquets(num_images: int = 800, *, size: int = 160, seed: int = 0) -> Path:
    """Return the folder with the drawn bouquets and ``labels.csv``, drawn first if missing.

    Raises:
        DataError: If it can be written neither to the cache nor to the temporary folder.
    """

    def build(folder: Path) -> None:
        log.info("drawing %d pictures of bouquets into %s (once)", num_images, folder.parent / name)
        lines = ["path,labels"]
        for number in range(num_images):
            chosen = np.random.default_rng((_VERSION, seed, number)).random(len(CLASSES)) < 0.4
            kinds = [kind for kind, is_there in zip(CLASSES, chosen, strict=True) if is_there]
            picture = draw_bouquet(kinds, size=size, seed=(_VERSION, seed, number, 1))
            picture.save(folder / f"{number:05d}.png", compress_level=1)
            lines.append(f"{number:05d}.png,{'|'.join(kinds)}")
        (folder / "labels.csv").write_text("\n".join([*lines, ""]), encoding="utf-8")

    name = f"drawn-bouquets-v{_VERSION}-n{num_images}-s{size}-seed{seed}"
    return make_once(name, build)


# -- drawing: kinds differ in the number, length, width and tip of their petals and in the size of
# their centre


# kind: rings, petals a ring, width of a petal (share of its place), tip (0.4 round, 1.3 pointed),
# radius of the centre
_SHAPES = {
    "daisy": (1, (11, 18), 0.85, 0.4, (0.2, 0.3)),
    "dandelion": (5, (34, 46), 0.6, 0.9, (0.0, 0.05)),
    "roses": (6, (4, 6), 1.5, 0.4, (0.0, 0.06)),
    "sunflowers": (2, (17, 26), 1.2, 1.3, (0.46, 0.58)),
}
# degrees; all kinds share them, so that no colour tells a kind
_PETAL_HUES = (0, 335, 285, 50, 28, 45, 220)
_CENTRE_HUES = (48, 30, 20, 80)
_GROUND_HUES = (105, 85, 205, 30, 150, 270)
_SUPERSAMPLING = 2


class _Pen:
    """Draws on a picture and on its mask, where flowers are white.

    Args:
        canvas: The picture.
        mask: Of the same size; flowers are white, and what covers them is black.
    """

    def __init__(self, canvas: Image.Image, mask: Image.Image) -> None:
        self._picture = ImageDraw.Draw(canvas)
        self._mask = ImageDraw.Draw(mask)

    def draw_polygon(self, points: Array, color: Array, light: float, *, is_flower: bool) -> None:
        """Draw a polygon with a darker outline."""
        corners = [(x, y) for x, y in points.tolist()]
        self._picture.polygon(
            corners, fill=_shade(color, light), outline=_shade(color, light * 0.72)
        )
        self._mask.polygon(corners, fill=255 * is_flower, outline=255 * is_flower)

    def draw_stem(
        self, ends: Sequence[tuple[float, ...]], color: Array, light: float, width: int
    ) -> None:
        """Draw a line, which is no part of a flower."""
        self._picture.line(list(ends), fill=_shade(color, light), width=width)
        self._mask.line(list(ends), fill=0, width=width)


def draw_flower(kind: str, *, size: int, seed: Sequence[int]) -> tuple[Image.Image, Image.Image]:
    """Draw one picture, and the mask of its flowers.

    0 is the background, with stems and leaves, 1 a flower.

    Args:
        kind: Name of a class.
        size: Side of the square picture, in pixels.
        seed: Decides everything about it.
    """
    rng = np.random.default_rng(seed)
    side = size * _SUPERSAMPLING
    canvas = _background(rng, side)
    mask = Image.new("L", (side, side), 0)
    draw = _Pen(canvas, mask)
    leaf = _color(rng, (105,), 0.35, 0.25)
    petal = _color(rng, _PETAL_HUES, rng.choice([0.05, 0.5, 0.6, 0.7]), 0.6)
    centre = _color(rng, _CENTRE_HUES, 0.5, 0.35)
    _draw_leaves(draw, rng, side, leaf)
    small = [
        (rng.uniform(0.08, 0.92, 2) * side, rng.uniform(0.1, 0.18))
        for _ in range(rng.choice([0, 0, 0, 1, 2, 3]))
    ]
    large = (side / 2 + rng.normal(0, 0.08 * side, 2), rng.uniform(0.24, 0.42))
    for position, share in [*small, large]:  # the small ones are behind
        _draw_one(draw, rng, kind, position, side * share, side, (leaf, petal, centre))
    coverage = np.asarray(mask.resize((size, size), Image.Resampling.BOX))
    return _photograph(rng, canvas, size), Image.fromarray((coverage >= 128).astype(np.uint8))


def draw_bouquet(kinds: Sequence[str], *, size: int, seed: Sequence[int]) -> Image.Image:
    """Draw one picture with a flower of each of some kinds, in places of a grid.

    Args:
        kinds: Names of classes; none for leaves alone.
        size: Side of the square picture, in pixels.
        seed: Decides everything else about it.
    """
    rng = np.random.default_rng(seed)
    side = size * _SUPERSAMPLING
    canvas = _background(rng, side)
    draw = _Pen(canvas, Image.new("L", (side, side), 0))
    leaf = _color(rng, (105,), 0.35, 0.25)
    _draw_leaves(draw, rng, side, leaf)
    places = rng.permutation(6)
    for kind, place in zip(kinds, places.tolist(), strict=False):
        petal = _color(rng, _PETAL_HUES, rng.choice([0.05, 0.5, 0.6, 0.7]), 0.6)
        centre = _color(rng, _CENTRE_HUES, 0.5, 0.35)
        cell = np.array([place % 3 / 3 + 1 / 6, place // 3 / 2 + 0.25])
        position = (cell + rng.normal(0, 0.02, 2)) * side
        _draw_one(
            draw, rng, kind, position, side * rng.uniform(0.13, 0.18), side, (leaf, petal, centre)
        )
    return _photograph(rng, canvas, size)


def _draw_leaves(draw: _Pen, rng: Random, side: int, leaf: Array) -> None:
    """Draw leaves that come in from the lower edge."""
    for _ in range(int(rng.integers(2, 9))):
        outline = _petal(side * rng.uniform(0.3, 0.9), side * rng.uniform(0.03, 0.1), tip=1.2)
        foot = rng.uniform(0, side), side * rng.uniform(0.9, 1.05)
        turned = _turn(outline, rng.normal(-np.pi / 2, 0.5)) + foot
        draw.draw_polygon(turned, leaf, rng.uniform(0.6, 1.15), is_flower=False)


def _draw_one(
    draw: _Pen,
    rng: Random,
    kind: str,
    position: Array,
    radius: float,
    side: int,
    colors: tuple[Array, Array, Array],
) -> None:
    """Draw a flower on its stem, with the colours of leaf, petal and centre."""
    leaf, petal, centre = colors
    foot = (position[0] + rng.normal(0, 0.1 * side), side)
    draw.draw_stem([tuple(position), foot], leaf, 0.8, max(3, int(radius * 0.1)))
    if kind == "tulips":
        _draw_tulip(draw, rng, position, radius, petal)
    else:
        _draw_rings(draw, rng, kind, position, radius, petal, centre)


def _photograph(rng: Random, canvas: Image.Image, size: int) -> Image.Image:
    """Reduce a drawing to its size.

    Add light from one side, a colour cast and the grain of a sensor.
    """
    canvas = canvas.resize((size, size), Image.Resampling.LANCZOS)
    pixels = np.asarray(canvas).astype(np.float32)
    angle = rng.uniform(0, 2 * np.pi)
    ys, xs = np.mgrid[-0.5 : 0.5 : size * 1j, -0.5 : 0.5 : size * 1j]
    light = rng.uniform(0.7, 1.2) + rng.uniform(0, 0.35) * (xs * np.cos(angle) + ys * np.sin(angle))
    pixels *= light[..., None].astype(np.float32) * rng.normal(1, 0.05, 3).astype(np.float32)
    pixels += rng.normal(0, rng.uniform(1, 8), pixels.shape).astype(np.float32)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def _background(rng: Random, side: int) -> Image.Image:
    """Draw soft spots over a colour, as behind a lens with a wide aperture."""
    small = max(1, side // 8)
    image = Image.new("RGB", (small, small), _shade(_color(rng, _GROUND_HUES, 0.1, 0.1), 1.0))
    draw = ImageDraw.Draw(image)
    for _ in range(int(rng.integers(4, 26))):
        x, y = rng.uniform(0, small, 2).tolist()
        radius = small * rng.uniform(0.03, 0.3)
        color = _shade(_color(rng, _GROUND_HUES, 0.1, 0.15), rng.uniform(0.7, 1.2))
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=color)
    image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.8, 3.0)))
    return image.resize((side, side), Image.Resampling.BICUBIC)


def _draw_rings(
    draw: _Pen, rng: Random, kind: str, place: Array, radius: float, petal: Array, centre: Array
) -> None:
    """Draw rings of petals, seen at an angle, from the outer to the inner one, and the centre."""
    num_rings, num_petals, width, tip, hearts = _SHAPES[kind]
    turn = rng.uniform(0, 2 * np.pi)
    tilt = rng.uniform(0.68, 1.0)
    heart = rng.uniform(*hearts)
    for ring in range(num_rings):
        reach = 1.0 - ring / num_rings * (1.0 if num_rings > 2 else 0.1)
        num = max(3, int(rng.integers(*num_petals) * (reach if kind == "dandelion" else 1)))
        for number in rng.permutation(num):
            length = (reach - heart * 0.8) * rng.uniform(0.88, 1.06)
            outline = _petal(length, width * 2 * np.pi * reach * 0.7 / num, tip=tip) + np.array(
                [heart * 0.8, 0]
            )
            angle = 2 * np.pi * (number + ring / 2) / num + rng.normal(0, 0.25 / num)
            light = rng.uniform(0.82, 1.12) * (1 - 0.08 * ring)
            points = _turn(_turn(outline, angle) * [1, tilt], turn) * radius + place
            draw.draw_polygon(points, petal, light, is_flower=True)
    angles = np.linspace(0, 2 * np.pi, 28)
    disc = np.stack([np.cos(angles), np.sin(angles) * tilt], axis=1) * heart * radius
    if heart > 0.1:
        light = 0.5 if kind == "sunflowers" else 0.9
        draw.draw_polygon(_turn(disc, turn) + place, centre, light, is_flower=True)


def _draw_tulip(draw: _Pen, rng: Random, position: Array, radius: float, petal: Array) -> None:
    """Draw a cup of tall petals from the side; the cup opens upwards."""
    openness = rng.uniform(0.1, 0.32)
    outline = _petal(rng.uniform(1.5, 1.8), rng.uniform(0.7, 0.9), tip=0.9)
    for lean, light in (
        (-0.5, 0.72),
        (0.5, 0.72),
        (-1.0, 0.9),
        (1.0, 0.9),
        (rng.normal(0, 0.12), 1.05),
    ):
        points = _turn(outline, -np.pi / 2 + lean * openness) + np.array([lean * 0.24, 0.85])
        draw.draw_polygon(
            points * radius + position, petal, light * rng.uniform(0.92, 1.06), is_flower=True
        )


def _petal(length: float, width: float, *, tip: float, num: int = 9) -> Array:
    """Return the outline of a petal or leaf along x.

    A ``tip`` of 0.4 is round, above 1 it is pointed.
    """
    t = np.linspace(0, 1, num)
    profile = (
        np.sqrt(t * (1 - t**6)) if tip < 0.7 else np.sin(np.pi * t**0.7) * (1 - t) ** (tip * 0.3)
    )
    side = np.stack(
        [t * length, width / 2 * np.maximum(profile / profile.max(), 0.2 * (1 - t))], axis=1
    )
    return np.concatenate([side, side[::-1] * [1, -1]])


def _turn(points: Array, angle: float) -> Array:
    cos = np.cos(angle)
    sin = np.sin(angle)
    turned: Array = points @ np.array([[cos, sin], [-sin, cos]])
    return turned


def _color(rng: Random, hues: Sequence[int], saturation: float, value: float) -> Array:
    """Draw a color of at least this saturation and value; red, green and blue from 0 to 255."""
    hue = (rng.choice(hues) + rng.normal(0, 12)) % 360 / 360
    saturation = rng.uniform(saturation, min(1.0, saturation + 0.4))
    return 255 * np.array(colorsys.hsv_to_rgb(hue, saturation, rng.uniform(value, 1.0)))


def _shade(color: Array, factor: float) -> tuple[int, int, int]:
    red, green, blue = (int(part) for part in (color * factor).clip(0, 255))
    return red, green, blue
