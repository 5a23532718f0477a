from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import pytest
from PIL import Image

from lightkit.images.image_file import prepare_images


@pytest.fixture
def squares(tmp_path: Path) -> list[str]:
    """Images of 1, 2, 3, ... pixels a side."""
    paths = [str(tmp_path / f"{side}.png") for side in range(1, 21)]
    for side, path in enumerate(paths, start=1):
        Image.new("RGB", (side, side)).save(path)
    return paths


def test_images_come_in_the_order_of_their_paths(squares: list[str]) -> None:
    found = list(prepare_images(squares, lambda image: image.width, ahead=5))
    assert [(item.path, item.image, item.defect) for item in found] == [
        (path, side, None) for side, path in enumerate(squares, start=1)
    ]


def test_a_bad_image_is_reported_in_its_place(squares: list[str], tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"no image")
    paths = [
        squares[0],
        str(tmp_path / "bad.png"),
        str(tmp_path / "missing.png"),
        str(tmp_path),
        "",
        squares[1],
    ]
    found = list(prepare_images(paths, lambda image: image.width, ahead=2))
    assert [item.image for item in found] == [1, None, None, None, None, 2]
    assert [item.defect for item in found[1:5]] == [
        "not an image in any format that Pillow knows",
        "No such file or directory",
        "Is a directory",
        "no path is given",
    ]


def test_an_image_too_large_to_prepare_is_reported_and_not_an_end(squares: list[str]) -> None:
    def prepare(image: Image.Image) -> int:
        if image.width == 2:
            raise MemoryError
        return image.width

    found = list(prepare_images(squares[:3], prepare, ahead=2))
    assert [item.image for item in found] == [1, None, 3]
    assert found[1].defect == "2 x 2 pixels cannot be prepared (too much memory)"


def test_no_more_are_read_ahead_than_was_said(squares: list[str]) -> None:
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        for number in count():
            taken += 1
            yield squares[number % len(squares)]

    images = prepare_images(endless(), lambda image: image.width, ahead=4)
    assert [item.image for item in islice(images, 10)] == list(range(1, 11))
    assert taken <= 10 + 4
    images.close()  # type: ignore[attr-defined]
    assert not [
        thread for thread in threading.enumerate() if thread.name.startswith("lightkit-images")
    ]


def test_what_a_preprocessing_of_ones_own_raises_comes_with_the_image(squares: list[str]) -> None:
    def prepare(image: Image.Image) -> int:
        raise AttributeError("oops")

    with pytest.raises(
        RuntimeError,
        match=re.escape(f"{squares[0]}: its preprocessing fails: AttributeError: oops"),
    ) as raised:
        list(prepare_images(squares[:1], prepare, ahead=2))
    assert isinstance(raised.value.__cause__, AttributeError)
