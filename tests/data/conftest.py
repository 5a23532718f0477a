"""What tests of the data need: folders of small images, the real photos, servers on loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.contract.loopback import FileServer, serving

SHARED = Path(__file__).parents[2].parent / "shared" / "data"

MakeImages = Callable[..., Path]


@pytest.fixture
def photos() -> Path:
    folder = SHARED / "flower_photos"
    if not folder.is_dir():
        pytest.skip(f"needs the flower photos in {folder}")
    return folder


@pytest.fixture
def odd_images() -> Path:
    folder = SHARED / "odd_images"
    if not folder.is_dir():
        pytest.skip(f"needs the odd images in {folder}")
    return folder


@pytest.fixture
def make_images(tmp_path: Path) -> MakeImages:
    """Writes small images of different content to the given paths below a folder."""
    random = np.random.default_rng(0)

    def make(*names: str, root: Path = tmp_path / "images") -> Path:
        for name in names:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            pixels = random.integers(0, 256, (10, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name, format="PNG")
        return root

    return make


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., FileServer]]:
    """Starts servers that run to the end of the test."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ExitStack() as running:
        yield lambda files, **options: running.enter_context(serving(FileServer(files, **options)))
