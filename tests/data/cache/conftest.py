"""Small photos as a scan finds them, and folders of a test's own for what is decoded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lightkit.data.cache import places
from lightkit.data.photos import Photo
from lightkit.data.splits import content_digest

FindPhotos = Callable[..., list[Photo]]


def photo_of(path: Path, label: int = 0) -> Photo:
    with Image.open(path) as image:
        return Photo(path, label, content_digest(path), image.height, image.width, is_jpeg=False)


@pytest.fixture
def find_photos(tmp_path: Path) -> FindPhotos:
    """Writes photos of random pixels, of the given sizes (height, width), and gives them as a scan does."""

    def find(*sizes: tuple[int, int], seed: int = 0) -> list[Photo]:
        random, found = np.random.default_rng(seed), []
        for number, (height, width) in enumerate(sizes):
            path = tmp_path / f"photo-{seed}-{number}.png"
            Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(path)
            found.append(photo_of(path, label=number % 2))
        return found

    return find


@pytest.fixture
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts shared memory, temporary files and the user's cache below the given folder."""
    for name in ("shm", "tmp", "home"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(places, "_SHARED_MEMORY", tmp_path / "shm")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path
