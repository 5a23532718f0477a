"""The photos and weights that benches of whole trainings take.

Where they are, and one split for all contestants.
"""

from __future__ import annotations

import os
import shutil
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

DATA = "BENCH_DATA"
"""The variable that names the folder of `flower_photos/` and `weights/`."""
VAL_EVERY = 5
"""Each fifth photo of a class, in the order of names, is one of validation."""
_CORES = len(os.sched_getaffinity(0))
_BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"


@dataclass(frozen=True)
class PhotoSplit:
    """Photos laid out in train/ and val/, a folder for each class.

    Args:
        root: Folder of both.
        num_train: Photos in train/.
        num_val: Photos in val/.
        num_classes: Classes.
    """

    root: Path
    num_train: int
    num_val: int
    num_classes: int


def add_options(parser: ArgumentParser, *, weights: bool, max_images: int | None = None) -> None:
    """Add the options that name the data.

    Args:
        parser: Takes them.
        weights: Whether weights are needed too.
        max_images: How many photos are taken by default; None for all.
    """
    where = f"${DATA} or ../shared/data"
    default = f"(default: flower_photos in {where})"
    most = "all" if max_images is None else max_images
    parser.add_argument(
        "--photos", type=Path, metavar="FOLDER", help=f"one folder a class {default}"
    )
    parser.add_argument(
        "--max-images",
        type=int,
        metavar="N",
        help=f"take N photos at most, of all classes alike (default: {most})",
    )
    parser.add_argument(
        "--threads", type=int, default=_CORES, help=f"of each contestant (default: {_CORES})"
    )
    if weights:
        parser.add_argument(
            "--weights",
            type=Path,
            metavar="FILE",
            help=f"MobileNetV2's state dict (default: in weights in {where})",
        )


def find_photos(parser: ArgumentParser, given: Path | None) -> Path:
    """Return the folder of the photos; without one the command ends."""
    return _find(parser, given, "flower_photos", "--photos")


def find_weights(parser: ArgumentParser, given: Path | None) -> Path:
    """Return the file of the weights; without one the command ends."""
    return _find(parser, given, "weights/mobilenet_v2_in1k_torchvision.pth", "--weights")


def _find(parser: ArgumentParser, given: Path | None, name: str, option: str) -> Path:
    named = os.environ.get(DATA)
    place = given or (Path(named).expanduser() if named else _BESIDE) / name
    if not place.exists():
        parser.error(
            f"{option}: {place} does not exist; name it, or set {DATA} to the folder of {name}"
        )
    return place.resolve()


def copy_split(photos: Path, root: Path, *, max_images: int | None = None) -> PhotoSplit:
    """Copy photos into train/ and val/.

    Args:
        photos: One folder a class.
        root: Where they go.
        max_images: Most of them, of all classes alike.
    """
    classes = sorted(folder for folder in photos.iterdir() if folder.is_dir())
    most = None if max_images is None else max(VAL_EVERY, max_images // len(classes))
    numbers = [_copy_class(folder, root, most) for folder in classes]
    num_train, num_val = (sum(each) for each in zip(*numbers, strict=True))
    return PhotoSplit(root, num_train, num_val, len(classes))


def _copy_class(folder: Path, root: Path, most: int | None) -> Sequence[int]:
    counts = [0, 0]
    for number, photo in enumerate(sorted(folder.iterdir())[:most]):
        is_val = number % VAL_EVERY == 0
        place = root / ("val" if is_val else "train") / folder.name
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(photo, place)
        counts[is_val] += 1
    return counts
