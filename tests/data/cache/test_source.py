"""What comes out of a cache is what the files would give, in every process."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from lightkit.data.cache.building import built
from lightkit.data.cache.layout import layout_of
from lightkit.data.cache.source import CachedSource, ResizedSource
from lightkit.data.photos import Photo
from lightkit.data.pixels import PhotoPixels, PixelSource
from lightkit.data.transforms import preprocessing_of
from lightkit.images.reading import UnreadableImageError
from tests.data.cache.conftest import FindPhotos, photo_of

SIZES = [(40, 50), (60, 40), (30, 30), (10, 90), (300, 20)]
TOLD = preprocessing_of(28)  # resizes to 32


def _cached(photos: list[Photo], folder: Path) -> CachedSource:
    laid = layout_of(photos, TOLD.resize)
    file = built(laid, folder, is_temporary=False)
    assert file is not None
    return CachedSource(photos, PhotoPixels(photos), layout=laid, file=file)


def _evaluated(source: PixelSource, index: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.asarray(TOLD.cropped(source.pixels(index).whole()))


def test_evaluation_is_equal_to_the_last_bit(find_photos: FindPhotos, tmp_path: Path) -> None:
    photos = find_photos(*SIZES)
    source, files = _cached(photos, tmp_path), PhotoPixels(photos)
    for index in range(len(photos)):
        np.testing.assert_array_equal(_evaluated(source, index), _evaluated(files, index))


def test_evaluation_of_real_photos_is_equal_to_the_last_bit(photos: Path, tmp_path: Path) -> None:
    found = [photo_of(path) for path in sorted(photos.rglob("*.jpg"))[::40]]
    source, files = _cached(found, tmp_path), PhotoPixels(found)
    assert len(found) > 10
    for index in range(len(found)):
        np.testing.assert_array_equal(_evaluated(source, index), _evaluated(files, index))


def test_labels_names_and_length_are_those_of_the_files(find_photos: FindPhotos, tmp_path: Path) -> None:
    photos = find_photos(*SIZES)
    source = _cached(photos, tmp_path)
    assert [source.label(index) for index in range(len(source))] == [0, 1, 0, 1, 0]
    assert [source.name(index) for index in range(len(source))] == [str(photo.path) for photo in photos]


def test_without_their_files_those_that_are_kept_are_there(find_photos: FindPhotos, tmp_path: Path) -> None:
    photos = find_photos(*SIZES)
    source = _cached(photos, tmp_path)
    for photo in photos:
        photo.path.unlink()
    assert [source.pixels(index).size for index in range(3)] == [(32, 40), (48, 32), (32, 32)]
    with pytest.raises(UnreadableImageError):
        source.pixels(4).whole()


def test_resized_each_time_gives_the_same_pixels(find_photos: FindPhotos, tmp_path: Path) -> None:
    photos = find_photos(*SIZES)
    source = _cached(photos, tmp_path)
    each_time = ResizedSource(photos, PhotoPixels(photos), shorter=TOLD.resize)
    for index in range(len(photos)):
        assert each_time.pixels(index).size == source.pixels(index).size
        np.testing.assert_array_equal(each_time.pixels(index).whole(), source.pixels(index).whole())


def test_another_process_gets_the_name_and_maps_the_same_file(find_photos: FindPhotos, tmp_path: Path) -> None:
    photos = find_photos(*[(40, 50)] * 30)
    source = _cached(photos, tmp_path)
    sent = pickle.dumps(source)
    received = pickle.loads(sent)
    assert source.file is not None
    assert len(sent) < source.file.num_bytes / 5
    assert received.file.inode == source.file.inode
    for photo in photos:
        photo.path.unlink()
    np.testing.assert_array_equal(received.pixels(7).whole(), source.pixels(7).whole())


@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_a_process_that_finds_no_file_decodes_by_itself(
    damage: str, find_photos: FindPhotos, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    photos = find_photos(*SIZES)
    source = _cached(photos, tmp_path)
    sent, path = pickle.dumps(source), source.file.path if source.file else tmp_path
    if damage == "gone":
        path.unlink()
    else:
        (tmp_path / "cut").write_bytes(path.read_bytes()[:-1])
        (tmp_path / "cut").replace(path)
    received = pickle.loads(sent)
    assert "this process decodes the photos itself" in caplog.text
    np.testing.assert_array_equal(received.pixels(1).whole(), source.pixels(1).whole())
