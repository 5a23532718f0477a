"""Photos as rows of a table: their names in UTF-8, their splits and sizes those of the folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lightkit.commands.convert import _list_rows
from lightkit.data.image_index import ImageIndex, Photo
from lightkit.errors import DataError


def _catalogue(images: Path, *names: str) -> ImageIndex:
    """A catalogue of files that hold their own name, each in its class."""
    classes = sorted({name.partition("/")[0] for name in names})
    photos = []
    for name in names:
        path = images / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.fsencode(name))
        photos.append(Photo(path, classes.index(name.partition("/")[0]), "0" * 64, height=3, width=4))
    return ImageIndex(classes, {"train": photos[1:], "val": [], "test": photos[:1]})


def test_a_row_says_all_of_a_photo(tmp_path: Path) -> None:
    rows = _list_rows(_catalogue(tmp_path, "roses/1.jpg", "tulips/deep/ä 2.jpg"), tmp_path)
    said = {(row.path, row.label, row.split, row.num_bytes, row.width, row.height) for row in rows}
    assert said == {("roses/1.jpg", "roses", "test", 11, 4, 3), ("tulips/deep/ä 2.jpg", "tulips", "train", 20, 4, 3)}
    assert {row.file for row in rows} == {tmp_path / "roses/1.jpg", tmp_path / "tulips/deep/ä 2.jpg"}


def test_bytes_that_are_no_utf8_are_written_out(tmp_path: Path) -> None:
    (row,) = _list_rows(_catalogue(tmp_path, os.fsdecode(b"caf\xe9/\xff.jpg")), tmp_path)
    assert (row.label, row.path) == (r"caf\xe9", r"caf\xe9/\xff.jpg")
    assert row.file.is_file()


def test_two_classes_whose_names_would_be_one_are_refused(tmp_path: Path) -> None:
    catalogue = _catalogue(tmp_path, os.fsdecode(b"caf\xe9/1.jpg"), r"caf\xe9/2.jpg")
    with pytest.raises(DataError, match=r"two class folders have the name caf\\xe9 in a table.*Rename it"):
        _list_rows(catalogue, tmp_path)


def test_a_photo_that_has_gone_is_named(tmp_path: Path) -> None:
    catalogue = _catalogue(tmp_path, "roses/1.jpg", "roses/2.jpg")
    (tmp_path / "roses" / "2.jpg").unlink()
    with pytest.raises(DataError, match=r"2\.jpg: No such file or directory, and was an image a moment ago"):
        _list_rows(catalogue, tmp_path)
