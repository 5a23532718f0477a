"""The images that tests of the data use, here too, and rows of a table."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from lightkit.images.table_writer import ImageRow
from tests.data.conftest import make_images, odd_images, photos

__all__ = ["MakeRows", "make_images", "make_rows", "odd_images", "photos"]

MakeRows = Callable[..., list[ImageRow]]


@pytest.fixture
def make_rows(tmp_path: Path) -> MakeRows:
    """Writes files of different content, and gives them as rows of two classes and three splits."""

    def make(number: int, *, num_bytes: int = 1000, mark: bytes = b"") -> list[ImageRow]:
        rows = []
        for at in range(number):
            path = f"{'ab'[at % 2]}/{at}.jpg"
            file = tmp_path / "photos" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            content = (hashlib.sha256(mark + str(at).encode()).digest() * (num_bytes // 32 + 1))[
                :num_bytes
            ]
            file.write_bytes(content)
            split = "test" if at % 10 == 9 else "val" if at % 5 == 3 else "train"
            digest = hashlib.sha256(content).hexdigest()
            rows.append(
                ImageRow(file, path, path[0], split, digest, num_bytes, width=8 + at, height=6)
            )
        return rows

    return make
