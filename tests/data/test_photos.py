"""What is found in a folder of photos, and what is refused."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from lightkit.data.photos import Catalogue, catalogue_of
from lightkit.errors import DataError

GIVEN = [f"{split}/{name}/{number}.png" for split in ("train", "val", "test") for name in "ab" for number in range(3)]
PLAIN = [f"{name}/{number}.png" for name in ("rose", "tulip") for number in range(30)]


def read(root: Path, val_fraction: float = 0.2, test_fraction: float = 0.1) -> Catalogue:
    return catalogue_of(root, val_fraction=val_fraction, test_fraction=test_fraction)


def places(catalogue: Catalogue, root: Path) -> dict[str, str]:
    return {str(p.path.relative_to(root)): split for split, found in catalogue.splits.items() for p in found}


def linked(photos: Path, target: Path, *, step: int = 1) -> Path:
    for folder in sorted(entry for entry in photos.iterdir() if entry.is_dir()):
        (target / folder.name).mkdir(parents=True)
        for photo in sorted(folder.iterdir())[::step]:
            (target / folder.name / photo.name).symlink_to(photo)
    return target


def test_the_real_photos_are_split_as_asked(photos: Path) -> None:
    catalogue = read(photos)
    assert catalogue.class_names == ["daisy", "dandelion", "roses", "sunflowers", "tulips"]
    assert catalogue.counts == {"train": 457, "val": 118, "test": 71}
    assert catalogue.fingerprint == "da48fc1bcab2fcbed4a7f86e8aa9564233994216d78f8d5ba285f31022e13d12"


def test_adding_photos_moves_none(photos: Path, tmp_path: Path) -> None:
    fewer, more = (linked(photos, tmp_path / name, step=step) for name, step in (("fewer", 3), ("more", 1)))
    before, after = places(read(fewer), fewer), places(read(more), more)
    assert 200 < len(before) < len(after)
    assert before == {name: after[name] for name in before}


def test_copies_stand_on_one_side(photos: Path, tmp_path: Path) -> None:
    root = linked(photos, tmp_path / "photos", step=5)
    for photo in sorted(root.glob("*/*.jpg")):
        shutil.copyfile(photo, photo.with_name(f"copy of {photo.name}"))
    found = places(read(root), root)
    pairs = [(name, f"{name.rpartition('/')[0]}/copy of {Path(name).name}") for name in found if "copy of" not in name]
    assert {found[name] for name, _ in pairs} == {"train", "val", "test"}
    assert all(found[name] == found[copy] for name, copy in pairs)


def test_names_and_places_do_not_count_and_content_does(make_images: Any, tmp_path: Path) -> None:
    root = make_images(*PLAIN)
    first = read(root).fingerprint
    (root / "rose" / "0.png").rename(root / "rose" / "another name.png")
    moved = root.rename(tmp_path / "moved")
    assert read(moved).fingerprint == first
    with (moved / "rose" / "1.png").open("ab") as file:
        file.write(b"x")
    assert read(moved).fingerprint != first


def test_given_splits_are_kept(make_images: Any) -> None:
    root = make_images(*GIVEN)
    catalogue = read(root)
    assert catalogue.counts == {"train": 6, "val": 6, "test": 6}
    assert all(name.startswith(f"{split}/") for name, split in places(catalogue, root).items())


@pytest.mark.parametrize("name", ["val", "valid", "validation", "Validation"])
def test_the_validation_folder_may_have_any_of_its_usual_names(make_images: Any, name: str) -> None:
    root = make_images(*GIVEN)
    (root / "val").rename(root / name)
    assert read(root).counts == {"train": 6, "val": 6, "test": 6}


def test_two_validation_folders_are_refused(make_images: Any) -> None:
    with pytest.raises(DataError, match=r"valid and .*val both hold the val split"):
        read(make_images(*GIVEN, "valid/a/1.png", "valid/b/1.png"))


def test_without_a_validation_folder_part_of_train_is_taken_by_content(make_images: Any) -> None:
    root = make_images(*(f"train/{name}" for name in PLAIN), "test/rose/1.png", "test/tulip/1.png")
    catalogue = read(root, val_fraction=0.3)
    assert catalogue.counts["test"] == 2
    assert catalogue.counts["train"] + catalogue.counts["val"] == len(PLAIN)
    assert 6 < catalogue.counts["val"] < 30


def test_a_class_may_be_named_train(make_images: Any) -> None:
    root = make_images(*(f"{name}/{number}.png" for name in ("train", "plane") for number in range(30)))
    assert read(root).class_names == ["plane", "train"]


def test_splits_with_other_classes_are_refused_by_name(make_images: Any) -> None:
    root = make_images(*GIVEN, "val/c/1.png")
    shutil.rmtree(root / "val" / "a")
    with pytest.raises(DataError, match=r"val lacks a and has c besides, compared with .*train\."):
        read(root)


def test_copies_across_given_splits_are_told(make_images: Any, caplog: pytest.LogCaptureFixture) -> None:
    root = make_images(*GIVEN)
    shutil.copyfile(root / "train/a/0.png", root / "val/a/9.png")
    with caplog.at_level(logging.WARNING, logger="lightkit.data"):
        read(root)
    assert "1 photos stand byte for byte in more than one" in caplog.text
    assert f"{root}/train/a/0.png = {root}/val/a/9.png" in caplog.text


def test_odd_names_are_read_and_what_is_no_image_is_passed_over(make_images: Any) -> None:
    odd = ["rose/A B.PNG", "rose/größe.Png", "rose/deeper/1.jpeg", "rose/.hidden.png", ".git/x/1.png"]
    root = make_images(*PLAIN, *odd)
    (root / "LICENSE.txt").write_text("free")
    (root / "rose" / "Thumbs.db").write_text("thumbs")
    (root / "rose" / "loop").symlink_to(root / "rose")
    catalogue = read(root)
    assert catalogue.class_names == ["rose", "tulip"]
    assert set(places(catalogue, root)) == {*PLAIN, *odd[:3]}


def test_a_missing_folder_is_told_with_the_near_names(tmp_path: Path) -> None:
    (tmp_path / "flower_photos").mkdir()
    with pytest.raises(
        DataError, match=r"this data folder does not exist \(data\.init_args\.root, from /.*did you mean"
    ) as e:
        read(tmp_path / "flower_photo" / "train")
    assert str(tmp_path / "flower_photos") in str(e.value)
    with pytest.raises(DataError, match=r"folders in .*: flower_photos\."):
        read(tmp_path / "something else")


def test_a_file_in_place_of_the_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "photos").write_text("")
    with pytest.raises(DataError, match=r"data\.init_args\.root is a file\. Expected a folder"):
        read(tmp_path / "photos")


def test_a_folder_without_classes_is_told(make_images: Any) -> None:
    with pytest.raises(DataError, match=r"no class folders here\. Expected one folder a class"):
        read(make_images("1.png"))


def test_a_class_without_images_is_told(make_images: Any) -> None:
    root = make_images(*PLAIN)
    (root / "weed").mkdir()
    (root / "weed" / "notes.txt").write_text("none yet")
    with pytest.raises(
        DataError, match=r"weed: this class has no images\. Add some \(\.avif, \.bmp, .* or remove the folder"
    ):
        read(root)


def test_an_empty_split_is_told(make_images: Any) -> None:
    with pytest.raises(
        DataError, match=r"the test split is empty\. Its 60 photos are too few .*test_fraction \(0 goes"
    ):
        read(make_images(*PLAIN), test_fraction=0.0001)


def test_a_class_that_is_never_trained_on_is_told(make_images: Any) -> None:
    root = make_images(*PLAIN)
    for name in sorted(n for n, split in places(read(root), root).items() if split == "train" and n[0] == "t"):
        (root / name).unlink()
    with pytest.raises(DataError, match="no photo of tulip is left for training"):
        read(root)


def test_files_that_are_no_images_are_listed_with_reasons(make_images: Any) -> None:
    root = make_images(*PLAIN)
    for number in range(7):
        (root / "rose" / f"bad {number}.jpg").write_text("hello")
    (root / "rose" / "a gone.jpg").symlink_to("nowhere.jpg")
    with pytest.raises(DataError) as caught:
        read(root)
    lines = str(caught.value).splitlines()
    assert lines[0] == "8 files have an image's name, but are none. Replace or remove them:"
    assert lines[1] == f"  {root}/rose/a gone.jpg: No such file or directory"
    assert lines[2] == f"  {root}/rose/bad 0.jpg: not an image in any format that Pillow knows"
    assert lines[-1] == "  and 3 more"


def test_reading_leaves_the_filters_of_warnings_as_they_were(make_images: Any) -> None:
    root = make_images(*PLAIN)
    before, interval = list(warnings.filters), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns as often as they can
    try:
        for _ in range(10):
            read(root)
            assert list(warnings.filters) == before
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_cannot_be_read_is_told(make_images: Any) -> None:
    root = make_images(*PLAIN)
    root.chmod(0)
    with pytest.raises(DataError, match="cannot be read"):
        read(root)
