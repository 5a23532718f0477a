"""A file of decoded images is there as a whole or not at all."""

from __future__ import annotations

import errno
import os
import resource
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lightkit.data.cache import building
from lightkit.data.cache.building import built
from lightkit.data.cache.layout import layout_of
from lightkit.data.cache.locks import own
from lightkit.images.preprocessing import resized
from lightkit.images.reading import decoded, read_rgb
from tests.data.cache.conftest import FindPhotos, photo_of

SIZES = [(12, 16), (40, 8), (9, 9), (8, 11)]


def test_each_image_is_what_its_file_resizes_to(find_photos: FindPhotos, tmp_path: Path) -> None:
    laid = layout_of(find_photos(*SIZES), 8)
    file = built(laid, tmp_path, is_temporary=False)
    assert file is not None
    for slot, photo in enumerate(laid.photos):
        np.testing.assert_array_equal(file.image(slot), np.asarray(resized(read_rgb(photo.path), 8)))


def test_odd_images_are_kept_as_they_are_read(odd_images: Path, tmp_path: Path) -> None:
    names = [
        "hopper_orientation_6.webp",
        "transparent.gif",
        "pil_sample_cmyk.jpg",
        "16_bit_noise.tif",
        "hopper_gray.jpg",
    ]
    photos = []
    for name in names:
        image = read_rgb(odd_images / name)
        found = photo_of(odd_images / name)
        photos.append(replace(found, height=image.height, width=image.width))
    laid = layout_of(photos, 16)
    file = built(laid, tmp_path, is_temporary=False)
    assert file is not None
    for slot, photo in enumerate(laid.photos):
        np.testing.assert_array_equal(file.image(slot), np.asarray(resized(read_rgb(photo.path), 16)))


def _vanish(path: Path) -> None:
    path.unlink()


def _spoil(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:60])


def _change(path: Path) -> None:
    Image.new("RGB", (16, 12), "red").save(path)


def _grow(path: Path) -> None:
    Image.new("RGB", (160, 120), "red").save(path)


@pytest.mark.parametrize("happens", [_vanish, _spoil, _change, _grow], ids=["gone", "cut", "other", "other size"])
def test_a_file_that_is_not_what_the_scan_saw_stays_out(
    happens: object, find_photos: FindPhotos, tmp_path: Path
) -> None:
    photos = find_photos(*SIZES)
    laid = layout_of(photos, 8)
    happens(photos[0].path)  # type: ignore[operator]
    file = built(laid, tmp_path / ".", is_temporary=False)
    assert file is not None
    out = laid.photos.index(photos[0])
    assert [file.image(slot) is None for slot in range(4)] == [slot == out for slot in range(4)]


def test_more_than_a_process_may_write_is_an_error_that_leaves_nothing(find_photos: FindPhotos, tmp_path: Path) -> None:
    laid = layout_of(find_photos(*SIZES), 8)
    folder = tmp_path / "folder"
    folder.mkdir()
    most, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            built(laid, folder, is_temporary=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("call", ["posix_fallocate", "pwrite", "fsync"])
def test_a_raised_enospc_is_an_error_that_leaves_nothing(
    call: str, find_photos: FindPhotos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    laid = layout_of(find_photos(*SIZES), 8)
    folder = tmp_path / "folder"
    folder.mkdir()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space left"):
        built(laid, folder, is_temporary=False)
    assert list(folder.iterdir()) == []


def test_a_file_system_that_cannot_allocate_is_written_as_it_goes(
    find_photos: FindPhotos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", cannot)
    file = built(layout_of(find_photos(*SIZES), 8), tmp_path, is_temporary=False)
    assert file is not None
    assert file.image(3) is not None


def test_an_interruption_ends_it_and_leaves_nothing(
    find_photos: FindPhotos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num = 0

    def interrupted(path: str) -> object:
        nonlocal num
        num += 1
        if num == 2:
            raise KeyboardInterrupt
        return decoded(path)

    monkeypatch.setattr(building, "decoded", interrupted)
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(KeyboardInterrupt):
        built(layout_of(find_photos(*[(8, 8)] * 500), 8), folder, is_temporary=False)
    assert list(folder.iterdir()) == []
    assert num < 100


def test_one_that_cleaned_up_too_early_is_outlived(
    find_photos: FindPhotos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[Path] = []

    def late(descriptor: int) -> None:
        if not removed:
            removed.append(next(tmp_path.glob(f".*{building.UNFINISHED}")))
            removed[0].unlink()
        own(descriptor)

    monkeypatch.setattr(building, "own", late)
    assert built(layout_of(find_photos(*SIZES), 8), tmp_path, is_temporary=False) is not None


def test_a_long_one_tells_in_a_pipe_how_far_it_is(
    find_photos: FindPhotos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="lightkit.data")
    built(layout_of(find_photos(*SIZES), 8), tmp_path, is_temporary=False)
    assert caplog.messages == []
    monkeypatch.setattr(building, "_EVERY_S", 0.0)
    built(layout_of(find_photos(*SIZES), 9), tmp_path, is_temporary=False)
    assert caplog.messages[-1] == "data: 4 of 4 photos decoded"
