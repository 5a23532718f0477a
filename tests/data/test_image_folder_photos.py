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
from PIL import Image

from lightkit import runs
from lightkit.errors import DataError
from lightkit.images.image_index import Defect, ImageIndex, index_images
from lightkit.images.splits import Split
from lightkit.runs.bad_images import BadImage, read_bad_images

GIVEN = [
    f"{split}/{name}/{number}.png"
    for split in ("train", "val", "test")
    for name in "ab"
    for number in range(3)
]
PLAIN = [f"{name}/{number}.png" for name in ("rose", "tulip") for number in range(30)]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def read(
    root: Path, val_fraction: float = 0.2, test_fraction: float = 0.1, **options: Any
) -> ImageIndex:
    return index_images(root, val_fraction=val_fraction, test_fraction=test_fraction, **options)


def places(catalogue: ImageIndex, root: Path) -> dict[str, str]:
    return {
        str(p.path.relative_to(root)): split
        for split, found in catalogue.splits.items()
        for p in found
    }


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
    assert (
        catalogue.fingerprint == "da48fc1bcab2fcbed4a7f86e8aa9564233994216d78f8d5ba285f31022e13d12"
    )


def test_adding_photos_moves_none(photos: Path, tmp_path: Path) -> None:
    fewer, more = (
        linked(photos, tmp_path / name, step=step) for name, step in (("fewer", 3), ("more", 1))
    )
    before, after = places(read(fewer), fewer), places(read(more), more)
    assert 200 < len(before) < len(after)
    assert before == {name: after[name] for name in before}


def test_copies_stand_on_one_side(photos: Path, tmp_path: Path) -> None:
    root = linked(photos, tmp_path / "photos", step=5)
    for photo in sorted(root.glob("*/*.jpg")):
        shutil.copyfile(photo, photo.with_name(f"copy of {photo.name}"))
    found = places(read(root), root)
    pairs = [
        (name, f"{name.rpartition('/')[0]}/copy of {Path(name).name}")
        for name in found
        if "copy of" not in name
    ]
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


@pytest.mark.parametrize(
    ("split", "name"),
    [
        *[
            ("train", name)
            for name in (
                "Train",
                "training",
                "TRAINING",
                "train_set",
                "Training Set",
                "train-images",
            )
        ],
        *[
            ("val", name)
            for name in (
                "valid",
                "validation",
                "Validation",
                "eval",
                "val2017",
                "dev",
                "valid_data",
            )
        ],
        *[("test", name) for name in ("Testing", "test_set", "testing-set", "TEST", "testset")],
    ],
)
def test_a_splits_folder_may_have_any_of_its_usual_names(
    make_images: Any, split: str, name: str
) -> None:
    root = make_images(*GIVEN)
    (root / split).rename(root / "moved")
    (root / "moved").rename(root / name)
    assert read(root).counts == {"train": 6, "val": 6, "test": 6}
    assert read(root).class_names == ["a", "b"]


@pytest.mark.parametrize(
    "names",
    [
        ["test/a/1.png", "val/a/1.png"],
        ["Testing/a/1.png", "Validation/a/1.png", "eval/a/1.png"],
        ["train/1.png", "test/2.png"],
        ["training_set/1.png", "test_set/2.png"],
    ],
    ids=["held out alone", "three", "train and test of images", "their other names"],
)
def test_folders_named_after_splits_without_a_training_split_are_refused(
    make_images: Any, names: list[str]
) -> None:
    with pytest.raises(
        DataError, match=r"are named after splits, and none of them is a training split with one"
    ):
        read(make_images(*names))


def test_what_stands_next_to_the_splits_is_reported(
    make_images: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="lightkit.data"):
        assert read(make_images(*GIVEN, "unlabelled/a/1.png")).counts == {
            "train": 6,
            "val": 6,
            "test": 6,
        }
    assert "not read next to the splits test/, train/, val/: unlabelled/" in caplog.text


def test_splits_within_classes_are_reported(
    make_images: Any, caplog: pytest.LogCaptureFixture
) -> None:
    names = [
        f"{kind}/{split}/{number}.png"
        for kind in "ab"
        for split in ("train", "test")
        for number in range(20)
    ]
    with caplog.at_level(logging.WARNING, logger="lightkit.data"):
        assert read(make_images(*names)).class_names == ["a", "b"]
    assert "the folders of the classes have folders named after splits" in caplog.text


@pytest.mark.parametrize(
    ("images", "masks"),
    [
        ("images", "masks"),
        ("Images", "Masks"),
        ("img", "labels"),
        ("JPEGImages", "SegmentationClass"),
    ],
)
@pytest.mark.parametrize("ending", ["", "_mask"])
@pytest.mark.parametrize("parent", ["", "train/"], ids=["top", "in the training split"])
def test_images_and_their_masks_are_no_classes(
    make_images: Any, images: str, masks: str, ending: str, parent: str
) -> None:
    names = [f"{parent}{images}/{number}.png" for number in range(30)]
    names += [f"{parent}{masks}/{number}{ending}.png" for number in range(30)]
    with pytest.raises(
        DataError, match=rf"{images} and .*{masks} hold images and their masks, by 30 equal names"
    ):
        read(make_images(*names))


def test_classes_whose_photos_are_numbered_alike_are_classes(make_images: Any) -> None:
    names = [f"{kind}/{number}.png" for kind in ("mask", "no_mask") for number in range(30)]
    assert read(make_images(*names)).class_names == ["mask", "no_mask"]


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
    root = make_images(
        *(f"{name}/{number}.png" for name in ("train", "plane") for number in range(30))
    )
    assert read(root).class_names == ["plane", "train"]


@pytest.mark.parametrize("split", ["val", "test"])
@pytest.mark.parametrize("is_empty", [False, True], ids=["missing", "empty"])
def test_a_class_without_photos_in_a_held_out_split_is_a_warning_and_labels_are_those_of_training(
    make_images: Any, caplog: pytest.LogCaptureFixture, split: Split, is_empty: bool
) -> None:
    root = make_images(*GIVEN)
    shutil.rmtree(root / split / "a")
    if is_empty:
        (root / split / "a").mkdir()
    with caplog.at_level(logging.WARNING, logger="lightkit.data"):
        catalogue = read(root)
    assert catalogue.class_names == ["a", "b"]
    assert {photo.label for photo in catalogue.splits[split]} == {1}
    assert f"the {split} split has no images of a (1 of 2 classes)" in caplog.text


@pytest.mark.parametrize("is_empty", [False, True], ids=["with photos", "empty"])
def test_a_class_that_training_lacks_is_refused_by_name(make_images: Any, is_empty: bool) -> None:
    root = make_images(*GIVEN, "val/c/1.png")
    if is_empty:
        (root / "val/c/1.png").unlink()
    with pytest.raises(
        DataError, match=r"val has classes that the training split does not have: c; that has a, b"
    ):
        read(root)


@pytest.mark.parametrize("split", ["val", "test"])
def test_a_given_split_without_any_photo_is_refused(make_images: Any, split: str) -> None:
    root = make_images(*GIVEN)
    for photo in (root / split).rglob("*.png"):
        photo.unlink()
    with pytest.raises(DataError, match=rf"images/{split}: the {split} split has no images"):
        read(root)


def test_copies_across_given_splits_are_reported(
    make_images: Any, caplog: pytest.LogCaptureFixture
) -> None:
    root = make_images(*GIVEN)
    shutil.copyfile(root / "train/a/0.png", root / "val/a/9.png")
    with caplog.at_level(logging.WARNING, logger="lightkit.data"):
        read(root)
    assert "1 photo is in more than one" in caplog.text
    assert f"{root}/train/a/0.png = {root}/val/a/9.png" in caplog.text


def test_odd_names_are_read_and_what_is_no_image_is_passed_over(make_images: Any) -> None:
    odd = [
        "rose/A B.PNG",
        "rose/größe.Png",
        "rose/deeper/1.jpeg",
        "rose/.hidden.png",
        ".git/x/1.png",
    ]
    root = make_images(*PLAIN, *odd)
    (root / "LICENSE.txt").write_text("free")
    (root / "rose" / "Thumbs.db").write_text("thumbs")
    (root / "rose" / "loop").symlink_to(root / "rose")
    catalogue = read(root)
    assert catalogue.class_names == ["rose", "tulip"]
    assert set(places(catalogue, root)) == {*PLAIN, *odd[:3]}


def test_a_folder_outside_that_a_class_links_to_twice_is_read_once(
    make_images: Any, tmp_path: Path
) -> None:
    root, outside = make_images(*PLAIN), make_images("deep/1.png", root=tmp_path / "outside")
    for name in ("more", "once more"):
        (root / "rose" / name).symlink_to(outside)
    (root / "rose" / "the same").symlink_to(outside / "deep")
    assert set(places(read(root), root)) == {*PLAIN, "rose/more/deep/1.png"}


def test_a_missing_folder_is_reported_with_the_near_names(tmp_path: Path) -> None:
    (tmp_path / "flower_photos").mkdir()
    with pytest.raises(
        DataError,
        match=r"this data folder does not exist \(data\.init_args\.root, from /.*did you mean",
    ) as e:
        read(tmp_path / "flower_photo")
    assert "flower_photos" in str(e.value)


def test_a_folder_without_classes_is_reported(make_images: Any) -> None:
    with pytest.raises(DataError, match=r"no class folders here\. Expected one folder a class"):
        read(make_images("1.png"))


def test_a_class_without_images_is_reported(make_images: Any) -> None:
    root = make_images(*PLAIN)
    (root / "weed").mkdir()
    (root / "weed" / "notes.txt").write_text("none yet")
    with pytest.raises(
        DataError,
        match=r"weed: this class has no images\. Add some \(\.avif, \.bmp, .* or remove the folder",
    ):
        read(root)


def test_an_empty_split_is_reported(make_images: Any) -> None:
    with pytest.raises(
        DataError,
        match=r"the test split is empty\. Its 60 photos are too few .*test_fraction \(0 goes",
    ):
        read(make_images(*PLAIN), test_fraction=0.0001)


def test_of_a_class_that_is_held_out_the_photo_nearest_to_training_is_trained_on(
    make_images: Any, caplog: pytest.LogCaptureFixture
) -> None:
    root = make_images(*PLAIN)
    for name in sorted(
        n for n, split in places(read(root), root).items() if split == "train" and n[0] == "t"
    ):
        (root / name).unlink()
    digests = {path: runs.digest(path) for path in (root / "tulip").iterdir()}
    nearest = max(digests, key=lambda path: digests[path])
    found = places(read(root), root)
    assert [name for name, split in found.items() if split == "train" and name[0] == "t"] == [
        f"tulip/{nearest.name}"
    ]
    (record,) = caplog.records
    assert (
        record.getMessage()
        == "all photos of tulip are held out by val_fraction and test_fraction; one of each class"
        f" is trained on instead: {nearest}. Add photos of them"
    )


def test_a_copy_of_a_photo_that_moves_to_training_moves_too(make_images: Any) -> None:
    root = make_images(*PLAIN)
    for name in sorted(
        n for n, split in places(read(root), root).items() if split == "train" and n[0] == "t"
    ):
        (root / name).unlink()
    for photo in sorted((root / "tulip").iterdir()):
        shutil.copyfile(photo, photo.with_name(f"copy of {photo.name}"))
    trained = [photo for photo in read(root).splits["train"] if photo.label == 1]
    assert len(trained) == 2
    assert trained[0].digest == trained[1].digest


@pytest.mark.parametrize("split", ["val", "test"])
def test_a_class_with_one_image_is_trained_on(
    make_images: Any, split: str, caplog: pytest.LogCaptureFixture
) -> None:
    root = make_images(*(f"rose/{number}.png" for number in range(80)), *PLAIN[30:])
    held_out = next(
        name for name, its in places(read(root), root).items() if its == split and name[0] == "t"
    )
    for name in PLAIN[30:]:
        if name != held_out:
            (root / name).unlink()
    assert places(read(root), root)[held_out] == "train"
    assert "all photos of tulip are held out" in caplog.text


def test_where_training_is_given_only_what_is_split_off_goes_back(make_images: Any) -> None:
    root = make_images(*(f"train/{name}" for name in PLAIN), "test/rose/1.png", "test/tulip/1.png")
    for name in sorted(
        n for n, split in places(read(root), root).items() if split == "train" and "/t" in n
    ):
        (root / name).unlink()
    catalogue = read(root)
    assert sum(photo.label == 1 for photo in catalogue.splits["train"]) == 1
    assert catalogue.counts["test"] == 2


def with_bad(make_images: Any, num: int) -> Path:
    root: Path = make_images(*PLAIN)
    for number in range(num - 1):
        (root / "rose" / f"bad {number}.jpg").write_text("hello")
    (root / "rose" / "a gone.jpg").symlink_to("nowhere.jpg")
    return root


def test_bad_files_are_left_out_of_every_split_and_reported(
    make_images: Any, caplog: pytest.LogCaptureFixture
) -> None:
    root = with_bad(make_images, 3)
    catalogue = read(root)
    assert set(places(catalogue, root)) == {*PLAIN}
    assert catalogue.defects == [
        Defect(f"{root}/rose/a gone.jpg", "No such file or directory"),
        Defect(f"{root}/rose/bad 0.jpg", "not an image in any format that Pillow knows"),
        Defect(f"{root}/rose/bad 1.jpg", "not an image in any format that Pillow knows"),
    ]
    assert caplog.messages == [
        "3 images cannot be used and will be left out (2 not an image in any format that Pillow"
        " knows, 1 No such file or directory)"
    ]


def test_with_error_bad_files_are_listed_with_reasons(make_images: Any) -> None:
    root = with_bad(make_images, 2)
    with pytest.raises(DataError) as caught:
        read(root, on_bad_image="error")
    assert str(caught.value).splitlines() == [
        (
            f"2 of 62 images in {root} cannot be used; data.init_args.on_bad_image is error."
            " Replace or remove them, or set it to skip:"
        ),
        f"  {root}/rose/a gone.jpg: No such file or directory",
        f"  {root}/rose/bad 0.jpg: not an image in any format that Pillow knows",
    ]


@pytest.mark.parametrize(
    ("num", "fraction", "is_reported"), [(3, 0.05, False), (4, 0.05, True), (1, 0, True)]
)
def test_more_bad_files_than_allowed_are_refused(
    make_images: Any, num: int, fraction: float, is_reported: bool
) -> None:
    root = with_bad(make_images, num)
    if not is_reported:
        assert len(read(root, max_bad_fraction=fraction).defects) == num
        return
    with pytest.raises(
        DataError, match=rf"cannot be used; that is .*%, and .*max_bad_fraction allows {fraction}\."
    ):
        read(root, max_bad_fraction=fraction)


@pytest.mark.parametrize("on_bad_image", ["skip", "error"])
def test_in_a_run_the_whole_list_is_next_to_its_folder(
    make_images: Any, tmp_path: Path, on_bad_image: str
) -> None:
    root = with_bad(make_images, 8)
    run = runs.Run(tmp_path / "runs" / "job" / "1", "job", "1", tmp_path / "runs")
    with runs.activate(run), pytest.raises(DataError) as caught:
        read(root, on_bad_image=on_bad_image)
    lines = str(caught.value).splitlines()
    assert len(lines) == 7
    assert lines[-1] == f"  and 3 more; all are listed in {tmp_path}/runs/job/bad_images.csv"
    rows = read_bad_images(tmp_path / "runs" / "job" / "bad_images.csv")
    assert len(rows) == 8
    assert rows[0] == BadImage(f"{root}/rose/a gone.jpg", "No such file or directory", "scan")


def test_a_class_of_bad_files_only_is_reported(make_images: Any) -> None:
    root = make_images(*PLAIN, "weed/1.png", "weed/2.png")
    for number in (1, 2):
        (root / "weed" / f"{number}.png").write_bytes(b"")
    with pytest.raises(
        DataError,
        match=(
            r"weed: none of the 2 images of this class can be used \(2 not an"
            r" image .*\)\. Replace them, or"
        ),
    ):
        read(root)


def test_in_a_given_validation_split_a_class_may_have_bad_files_only(make_images: Any) -> None:
    root = make_images(*GIVEN, "val/b/9.png")
    for path in (root / "val" / "a").iterdir():
        path.write_bytes(b"")
    assert read(root, max_bad_fraction=0.2).counts == {"train": 6, "val": 4, "test": 6}


def test_links_that_lead_to_themselves_are_bad_files(make_images: Any) -> None:
    root = make_images(*PLAIN)
    (root / "rose" / "loop.jpg").symlink_to("loop.jpg")
    (root / "rose" / "loop").symlink_to("loop")
    (root / "loop").symlink_to("loop")
    assert [(Path(d.name).name, d.reason) for d in read(root).defects] == [
        ("loop.jpg", "Too many levels of symbolic links")
    ]


def test_a_name_that_is_no_utf_8_is_read(make_images: Any) -> None:
    root = make_images(*PLAIN, os.fsdecode(b"rose/\xff\xfe.png"))
    catalogue = read(root)
    assert len(places(catalogue, root)) == 61
    assert len(catalogue.fingerprint) == 64


def test_a_photo_has_its_upright_size(photos: Path, odd_images: Path, tmp_path: Path) -> None:
    root = linked(photos, tmp_path / "photos", step=40)
    turned = Image.new("RGB", (40, 20))
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(root / "roses" / "turned.jpg", exif=exif)
    (found,) = (
        photo
        for split in read(root, test_fraction=0.2).splits.values()
        for photo in split
        if photo.path.name == "turned.jpg"
    )
    assert (found.height, found.width) == (40, 20)


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
def test_a_folder_that_cannot_be_read_is_reported(make_images: Any) -> None:
    root = make_images(*PLAIN)
    root.chmod(0)
    with pytest.raises(DataError, match="cannot be read"):
        read(root)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_below_a_class_that_cannot_be_read_is_reported(make_images: Any) -> None:
    root = make_images(*PLAIN, "rose/more/1.png")
    (root / "rose" / "more").chmod(0)
    with pytest.raises(
        DataError,
        match=r"more: this folder cannot be read \(Permission denied\)\. Make it readable",
    ):
        read(root)
