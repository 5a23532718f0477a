"""Each content lies there once, in an order and under a key that content and parameters decide."""

from __future__ import annotations

from dataclasses import replace

import PIL
import pytest

from lightkit.data.cache import layout as layout_module
from lightkit.data.cache.layout import is_kept, layout_of
from tests.data.cache.conftest import FindPhotos

SIZES = [(10, 20), (30, 10), (7, 7)]


def test_offsets_follow_the_resized_sizes(find_photos: FindPhotos) -> None:
    laid = layout_of(find_photos(*SIZES), 8)
    sizes = {(photo.height, photo.width): (8 * photo.height // least, 8 * photo.width // least)
             for photo in laid.photos for least in [min(photo.height, photo.width)]}  # fmt: skip
    assert sizes == {(10, 20): (8, 16), (30, 10): (24, 8), (7, 7): (8, 8)}
    end = 0
    for photo, row in zip(laid.photos, laid.index, strict=True):
        assert (row["height"], row["width"]) == sizes[photo.height, photo.width]
        assert row["offset"] == end
        end += int(row["height"]) * int(row["width"]) * 3
    assert laid.num_pixel_bytes == end


def test_copies_and_the_order_change_nothing(find_photos: FindPhotos) -> None:
    photos = find_photos(*SIZES)
    laid = layout_of(photos, 8)
    copies = [*reversed(photos), replace(photos[0], label=1, path=photos[0].path.with_name("copy.png"))]
    assert layout_of(copies, 8).key == laid.key
    assert len(layout_of(copies, 8).photos) == 3


@pytest.mark.parametrize("change", ["size", "photo", "pillow", "reading"])
def test_another_content_or_parameter_is_another_file(
    change: str, find_photos: FindPhotos, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = find_photos(*SIZES)
    before = layout_of(photos, 8)
    if change == "pillow":
        monkeypatch.setattr(PIL, "__version__", "0.0")
    elif change == "reading":
        monkeypatch.setattr(layout_module, "_READING", -1)
    elif change == "photo":
        photos[0] = find_photos(SIZES[0], seed=1)[0]
    after = layout_of(photos, 9 if change == "size" else 8)
    assert after.key != before.key
    assert after.file_name != before.file_name


@pytest.mark.parametrize(
    ("size", "expected"),
    [((10, 80), True), ((80, 10), True), ((10, 81), False), ((1, 4000), False), ((1, 1), True)],
    ids=["8 to 1", "1 to 8", "longer", "line", "pixel"],
)
def test_images_of_extreme_shape_are_left_out(size: tuple[int, int], expected: bool, find_photos: FindPhotos) -> None:
    (photo,) = find_photos(size)
    assert is_kept(photo) is expected
    assert len(layout_of([photo], 8).photos) == expected


def test_nothing_takes_no_room() -> None:
    assert layout_of([], 8).num_pixel_bytes == 0
