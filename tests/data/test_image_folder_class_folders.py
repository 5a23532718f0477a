"""Which files of a folder of classes are its images; what is passed over is reported."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lightkit.errors import DataError
from lightkit.images.image_index import class_files, index_images

PLAIN = [f"{name}/{number}.png" for name in ("rose", "tulip") for number in range(6)]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def found_in(root: Path) -> list[tuple[str, int]]:
    return [
        (str(path.relative_to(root)), label) for path, label in class_files(root, Counter(), [])[1]
    ]


def warnings_of(root: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    with caplog.at_level(logging.WARNING, logger="lightkit.data"):
        index_images(root, val_fraction=0, test_fraction=0)
    return caplog.messages


@pytest.mark.parametrize(
    "target",
    ["..", "../..", "../tulip", "../tulip/deeper", "."],
    ids=["root", "above", "class", "deep", "itself"],
)
def test_a_link_that_leads_up_or_to_another_class_is_not_followed(
    make_images: Any, target: str
) -> None:
    root = make_images(*PLAIN, "tulip/deeper/1.png")
    (root / "rose" / "up").symlink_to(target)
    assert [name for name, label in found_in(root) if label == 0] == PLAIN[:6]
    unfollowed: list[Path] = []
    class_files(root, Counter(), unfollowed)
    assert unfollowed == ([] if target == "." else [root / "rose" / "up"])


def test_a_link_to_what_holds_a_class_that_is_a_link_itself_is_not_followed(
    make_images: Any, tmp_path: Path
) -> None:
    root = make_images(*PLAIN)
    (tmp_path / "store").mkdir()
    (root / "tulip").rename(tmp_path / "store" / "tulip")
    (root / "tulip").symlink_to(tmp_path / "store" / "tulip")
    (root / "rose" / "store").symlink_to(tmp_path / "store")
    assert [name for name, _ in found_in(root)] == PLAIN


def test_a_link_to_a_folder_outside_is_followed(make_images: Any, tmp_path: Path) -> None:
    root = make_images(*PLAIN)
    make_images("one/deep/1.png", "two/deep/1.png", root=tmp_path / "outside")
    (root / "rose" / "more").symlink_to(tmp_path / "outside" / "one")
    (root / "lily").symlink_to(tmp_path / "outside" / "two")
    assert [name for name in found_in(root) if "deep" in name[0]] == [
        ("lily/deep/1.png", 0),
        ("rose/more/deep/1.png", 1),
    ]


def test_links_that_are_not_followed_are_reported_in_one_line(
    make_images: Any, caplog: pytest.LogCaptureFixture
) -> None:
    root = make_images(*PLAIN)
    for name in ("rose", "tulip"):
        (root / name / "up").symlink_to("..")
    assert warnings_of(root, caplog) == [
        "2 links that lead back up or to another class, whose images would get a wrong label, are"
        f" not followed: {root}/rose/up, {root}/tulip/up"
    ]


def test_a_photo_in_two_classes_is_reported_once(
    make_images: Any, caplog: pytest.LogCaptureFixture
) -> None:
    root = make_images(*PLAIN)
    for copy in ("tulip/copy.png", "tulip/again.png"):
        shutil.copyfile(root / "rose" / "0.png", root / copy)
    assert warnings_of(root, caplog) == [
        "1 photo is in more than one class, so that at least one of the labels is wrong (the files"
        f" are equal): {root}/rose/0.png (rose) = {root}/tulip/again.png (tulip)"
    ]


def test_files_that_are_no_images_by_their_names_are_counted(
    make_images: Any, caplog: pytest.LogCaptureFixture
) -> None:
    root = make_images(*PLAIN)
    for name in (
        "1.HEIC",
        "2.heic",
        "3.psd",
        "4",
        ".hidden.raw",
        "notes.txt",
        "1.json",
        "1.xml",
        "Thumbs.db",
    ):
        (root / "rose" / name).write_text("")
    assert warnings_of(root, caplog) == [
        "4 files passed over (2 .heic, 1 .psd, 1 without suffix); Pillow cannot read HEIC: convert"
        " them to JPEG"
    ]


def test_a_class_of_other_files_only_says_so(make_images: Any) -> None:
    root = make_images(*PLAIN)
    (root / "weed").mkdir()
    (root / "weed" / "1.heic").write_text("")
    with pytest.raises(
        DataError, match=r"weed: this class has no images.* 1 file passed over \(1 \.heic\); Pillow"
    ):
        class_files(root, Counter(), [])
