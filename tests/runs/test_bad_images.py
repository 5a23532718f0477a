"""The list of bad images comes back as it was written, whatever their names are."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from lightkit.runs.bad_images import BadImage, most_frequent, read_bad_images, write_bad_images

SCANNED = BadImage("a/b.jpg", "Truncated File Read", "scan")
LATER = BadImage("c.jpg", "No such file or directory", "epoch 2")


def test_the_rows_stand_below_the_columns_names(tmp_path: Path) -> None:
    path = tmp_path / "bad_images.csv"
    write_bad_images(path, [SCANNED, LATER])
    with path.open(newline="") as file:
        assert list(csv.DictReader(file)) == [SCANNED._asdict(), LATER._asdict()]
    assert read_bad_images(path) == [SCANNED, LATER]


@pytest.mark.parametrize(
    "name",
    [
        'größe, \'a "b".jpg',
        "two\nlines.jpg",
        "two\rlines.jpg",
        "\r\n",
        os.fsdecode(b"\xff\xfe.jpg"),
        " ",
        "=1+1.jpg",
    ],
)
def test_a_name_comes_back_as_it_was(tmp_path: Path, name: str) -> None:
    path = tmp_path / "bad_images.csv"
    write_bad_images(path, [SCANNED._replace(path=name), LATER])
    assert [row.path for row in read_bad_images(path)] == [name, LATER.path]
    assert os.fsencode(name).replace(b'"', b'""') in path.read_bytes()


def test_without_a_bad_image_there_is_no_list(tmp_path: Path) -> None:
    path = tmp_path / "bad_images.csv"
    assert read_bad_images(path) == []
    for _ in range(2):
        write_bad_images(path, [SCANNED])
        write_bad_images(path, [])
        assert not path.exists()


def test_the_most_frequent_reasons_are_reported() -> None:
    reasons = ["gone"] * 5 + ["cut\nshort"] * 4 + ["odd \x1b[31m"] * 3 + ["a", "b"]
    assert most_frequent(reasons) == "5 gone, 4 cut short, 3 odd \\x1b[31m, 2 for other reasons"
    assert most_frequent(["gone"]) == "1 gone"
