"""A file of decoded images is taken for one only where each of its bytes is as it was written."""

from __future__ import annotations

import gc
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from lightkit.data.cache import pixel_file
from lightkit.data.cache.building import built
from lightkit.data.cache.layout import Layout, layout_of
from lightkit.data.cache.pixel_file import BrokenFileError, PixelFile, opened
from tests.data.cache.conftest import FindPhotos

SIZES = [(12, 16)] * 5


@pytest.fixture
def whole(find_photos: FindPhotos, tmp_path: Path) -> tuple[Path, Layout]:
    laid = layout_of(find_photos(*SIZES), 12)
    assert built(laid, tmp_path, is_temporary=False) is not None
    return tmp_path / laid.file_name, laid


def _open(path: Path, laid: Layout, *, is_temporary: bool = False) -> PixelFile:
    file = opened(path, key=laid.key, is_temporary=is_temporary)
    assert file is not None
    return file


@pytest.mark.parametrize("at", range(0, 12000, 397))
def test_a_flipped_bit_is_found_wherever_it_is(at: int, whole: tuple[Path, Layout]) -> None:
    path, laid = whole
    content = bytearray(path.read_bytes())
    at %= len(content)
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(BrokenFileError):
        opened(path, key=laid.key)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (lambda content: content[:-1], "bytes long in place of"),
        (lambda content: content + b"\0", "bytes long in place of"),
        (lambda content: content[:20], "only 20 bytes long"),
        (lambda content: b"", "only 0 bytes long"),
        (lambda content: b"\xff" * len(content), "not a file of decoded images"),
        (lambda content: content[:8] + b"\x63\0\0\0" + content[12:], "of version 99, not 1"),
        (lambda content: content[:100] + b"\xff" + content[101:], "its head is damaged"),
        (lambda content: content[:-9] + b"\xff" * 9, "1 of 5 images are damaged"),
    ],
    ids=["cut", "longer", "cut in the head", "empty", "garbage", "version", "index", "pixels"],
)
def test_what_is_wrong_is_said(broken: object, says: str, whole: tuple[Path, Layout]) -> None:
    path, laid = whole
    path.write_bytes(broken(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(BrokenFileError, match=says):
        opened(path, key=laid.key)


def test_the_file_of_other_images_is_refused(whole: tuple[Path, Layout]) -> None:
    with pytest.raises(BrokenFileError, match="it holds other images"):
        opened(whole[0], key="ab" * 32)


def test_a_missing_file_is_none(tmp_path: Path) -> None:
    assert opened(tmp_path / "none.pixels", key="ab" * 32) is None


def test_a_file_that_was_removed_before_its_lock_is_none(
    whole: tuple[Path, Layout], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, laid = whole
    monkeypatch.setattr(pixel_file, "use", lambda _: path.unlink())
    assert opened(path, key=laid.key) is None


def test_torch_takes_the_pixels_without_a_copy_and_without_a_warning(whole: tuple[Path, Layout]) -> None:
    image = _open(*whole).image(0)
    assert image is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor = torch.from_numpy(image)
    assert tensor.data_ptr() == image.ctypes.data
    assert tensor.shape == (12, 16, 3)


def test_what_is_written_into_the_pixels_never_reaches_the_file(whole: tuple[Path, Layout]) -> None:
    path, laid = whole
    before = path.read_bytes()
    image = _open(path, laid).image(0)
    assert image is not None
    image[:] = 0
    assert path.read_bytes() == before


def test_it_stays_readable_after_its_name_is_gone(whole: tuple[Path, Layout]) -> None:
    path, laid = whole
    file = _open(path, laid)
    path.unlink()
    image = file.image(4)
    assert image is not None
    assert image.any()


def test_a_temporary_one_goes_with_its_last_user(whole: tuple[Path, Layout]) -> None:
    path, laid = whole
    one, other = (_open(path, laid, is_temporary=True) for _ in range(2))
    image = other.image(0)
    assert image is not None
    expected = image.copy()
    del one
    gc.collect()
    assert path.exists()
    del other
    gc.collect()
    assert not path.exists()
    np.testing.assert_array_equal(image, expected)  # pixels that are still held stay


def test_a_kept_one_stays(whole: tuple[Path, Layout]) -> None:
    file = _open(*whole)
    del file
    gc.collect()
    assert whole[0].exists()


def test_opening_it_notes_the_use(whole: tuple[Path, Layout]) -> None:
    os.utime(whole[0], (0, 0))
    _open(*whole)
    assert whole[0].stat().st_mtime > 0
