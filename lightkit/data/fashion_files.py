"""The four idx files of FashionMNIST: how they are downloaded, and the pictures in them."""

from __future__ import annotations

import gzip
import logging
import shutil
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torchvision.datasets import FashionMNIST

from lightkit.data.fetch import Remote, download
from lightkit.data.pixels import Decoded
from lightkit.errors import DataError

__all__ = ["Pictures", "fetch_files", "read_pictures"]

log = logging.getLogger("lightkit.data")


class Pictures:
    """Grey pictures with their labels.

    Args:
        arrays: ``(num, height, width)`` uint8.
        labels: ``(num,)`` integers.
    """

    def __init__(
        self, arrays: np.ndarray[Any, np.dtype[np.uint8]], labels: np.ndarray[Any, np.dtype[np.int64]]
    ) -> None:
        self.arrays = arrays
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.fromarray(self.arrays[index]).convert("RGB"), int(self.labels[index])

    def pixels(self, index: int) -> Decoded:
        """Give a picture in three equal channels."""
        return Decoded(np.repeat(self.arrays[index][:, :, None], 3, axis=2))

    def label(self, index: int) -> int:
        """Give its label."""
        return int(self.labels[index])

    def name(self, index: int) -> str:
        """Give its number, as it has no file of its own."""
        return f"{index:05d}"

    def only(self, indices: list[int]) -> Pictures:
        """Those at ``indices``."""
        return Pictures(self.arrays[indices], self.labels[indices])


def fetch_files(root: Path, *, mirrors: Sequence[str]) -> None:
    """Download the four files of torchvision's list, unless they are there.

    Args:
        root: Folder that holds FashionMNIST/raw.
        mirrors: Addresses of folders with the four .gz files, asked one after the other.

    Raises:
        DataError: If one of them cannot be downloaded or unpacked.
    """
    for name, md5 in FashionMNIST.resources:
        target = _raw(root) / name.removesuffix(".gz")
        if target.is_file():
            log.info("%s is there already", target)
            continue
        archive = _downloaded(name, md5, mirrors, target.parent)
        aside = target.with_name(f"{target.name}.part")
        try:
            with gzip.open(archive) as packed, aside.open("wb") as plain:
                shutil.copyfileobj(packed, plain)
            aside.replace(target)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{archive}: cannot unpack this file into {target.parent} ({error}).") from error
        archive.unlink()


def read_pictures(root: Path, *, train: bool) -> Pictures:
    """Read the pictures of training, or of the test.

    Args:
        root: Folder that holds FashionMNIST/raw.
        train: Which of the two.

    Raises:
        DataError: If files are missing or broken.
    """
    raw = _raw(root)
    names = [name.removesuffix(".gz") for name, _ in FashionMNIST.resources]
    missing = [name for name in names if not (raw / name).is_file()]
    if missing:
        raise DataError(
            f"{raw}: {', '.join(missing)} missing. Run `lightkit fetch` with the same -c FILE to download "
            "them, or set data.init_args.root to the folder that holds FashionMNIST/raw."
        )
    try:
        dataset = FashionMNIST(str(root), train=train)
    except (RuntimeError, ValueError, TypeError, AssertionError, IndexError, KeyError) as error:
        raise DataError(
            f"{raw}: the {'training' if train else 'test'} files are not what torchvision expects "
            f"({error or type(error).__name__}). Delete them and run `lightkit fetch` again."
        ) from error
    return Pictures(dataset.data.numpy(), dataset.targets.numpy())


def _raw(root: Path) -> Path:
    return root / "FashionMNIST" / "raw"


def _downloaded(name: str, md5: str, mirrors: Sequence[str], folder: Path) -> Path:
    for number, mirror in enumerate(mirrors, start=1):
        remote = Remote(f"{mirror.rstrip('/')}/{name}", digest=md5, algorithm="md5")
        try:
            return download(remote, folder / name)
        except DataError as error:
            if number == len(mirrors):
                raise
            log.info("%s Trying the next mirror.", error)
    raise DataError("data.init_args.mirrors: expected at least one address, got an empty list")
