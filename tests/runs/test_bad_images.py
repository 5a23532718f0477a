"""The list of bad images names each once, whoever adds to it and whatever its name is."""

from __future__ import annotations

import csv
import multiprocessing
import os
from pathlib import Path

import pytest

from lightkit.runs.bad_images import BadImage, BadImageList, most_frequent

SCANNED = BadImage("a/b.jpg", "Truncated File Read", "scan")
LATER = BadImage("c.jpg", "No such file or directory", "epoch 2")


@pytest.fixture
def listed(tmp_path: Path) -> BadImageList:
    return BadImageList(tmp_path / "bad_images.csv")


def test_each_is_added_once_below_the_columns_names(listed: BadImageList) -> None:
    listed.add([SCANNED, SCANNED])
    listed.add([LATER, SCANNED._replace(reason="another", found="epoch 1")])
    with listed.path.open(newline="") as file:
        assert list(csv.DictReader(file)) == [SCANNED._asdict(), LATER._asdict()]
    assert listed.rows() == [SCANNED, LATER]


@pytest.mark.parametrize(
    "path",
    ['größe, \'a "b".jpg', "two\nlines.jpg", "two\rlines.jpg", "\r\n", os.fsdecode(b"\xff\xfe.jpg"), " ", "=1+1.jpg"],
)
def test_a_name_comes_back_as_it_was(listed: BadImageList, path: str) -> None:
    listed.add([SCANNED._replace(path=path)])
    listed.add([LATER])
    listed.add([SCANNED._replace(path=path)])
    assert [row.path for row in listed.rows()] == [path, LATER.path]
    assert os.fsencode(path).replace(b'"', b'""') in listed.path.read_bytes()


def test_a_new_scan_takes_the_place_of_the_old_one_and_what_came_later_stays(listed: BadImageList) -> None:
    listed.add([SCANNED, LATER, LATER._replace(path="d.jpg")])
    new = SCANNED._replace(path="new.jpg")
    listed.replace_scan([new, SCANNED._replace(path="d.jpg")])
    assert listed.rows() == [new, SCANNED._replace(path="d.jpg"), LATER]
    listed.replace_scan([])
    assert listed.rows() == [LATER]


def test_without_a_bad_image_there_is_no_list(listed: BadImageList) -> None:
    listed.replace_scan([])
    assert listed.rows() == []
    assert not listed.path.exists()
    listed.add([SCANNED])
    listed.replace_scan([])
    assert not listed.path.exists()


def _add(path: Path, start: int) -> None:
    for number in range(start, start + 50):
        BadImageList(path).add([BadImage(f"{number}.jpg", "gone", "epoch 0")])


@pytest.mark.slow
def test_ranks_that_add_at_once_name_each_image_once(listed: BadImageList) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_add, args=(listed.path, start)) for start in (0, 0, 25)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert sorted(row.path for row in listed.rows()) == sorted(f"{number}.jpg" for number in range(75))
    assert listed.path.read_text().count("path,reason,found") == 1


def test_the_most_frequent_reasons_are_told() -> None:
    reasons = ["gone"] * 5 + ["cut\nshort"] * 4 + ["odd \x1b[31m"] * 3 + ["a", "b"]
    assert most_frequent(reasons) == "5 gone, 4 cut short, 3 odd \\x1b[31m, 2 for other reasons"
    assert most_frequent(["gone"]) == "1 gone"
