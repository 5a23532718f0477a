"""ImageFolder: which image is in which split, odd and bad images, and what its batches hold."""

from __future__ import annotations

import io
import os
import re
import resource
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from PIL.PngImagePlugin import PngImageFile

from lightkit.data import ImageFolder
from lightkit.errors import ConfigError, DataError, LightkitError
from tests.contract.data_cases import (
    MY_DATA,
    SHARED,
    module_workspace,
    pictures_config,
    png,
    read_bad_images,
    write_given_splits,
)
from tests.contract.workspace import ForkServer, Result, Workspace, read_events, read_json

GOOD = {  # upright height and width
    "12in16bit.tif": (100, 100), "16_bit_noise.tif": (32, 32), "1_trns.png": (64, 64),
    "chi.gif": (240, 320), "coral_cat.bmp": (341, 512), "coral_sunflower.bmp": (340, 512),
    "dispose_bgnd_rgba.gif": (100, 100), "exif_imagemagick_orientation.png": (512, 512),
    "flower.jpg": (360, 480), "frozenpond.mpo": (480, 640), "hopper.avif": (128, 128),
    "hopper.gif": (128, 128), "hopper.jpg": (128, 128), "hopper.ppm": (128, 128),
    "hopper.webp": (128, 128), "hopper_bad_exif.jpg": (500, 500), "hopper_gray.jpg": (128, 128),
    "hopper_idat_after_image_end.png": (128, 128), "hopper_orientation_3.jpg": (128, 128),
    "hopper_orientation_5.jpg": (128, 128), "hopper_orientation_6.webp": (128, 128),
    "hopper_orientation_8.jpg": (128, 128), "invalid-exif.jpg": (200, 200),
    "iss634.webp": (245, 245), "junk_jpeg_header.jpg": (768, 1024), "mode_16bit.png": (64, 128),
    "mode_palette_1bit_alpha.png": (64, 128), "num_plays.png": (64, 128), "p_16.png": (128, 128),
    "pal1.bmp": (64, 127), "pil123p.png": (150, 162), "pil_sample_cmyk.jpg": (100, 100),
    "sugarshack_bad_mpo_header.jpg": (480, 640), "tiff_16bit_RGB.tiff": (40, 100),
    "tiff_strip_cmyk_jpeg.tif": (100, 100),
    "transparent.gif": (150, 200),
    "transparent.webp": (150, 200),
    "xmp_tags_orientation.png": (268, 326),
}  # fmt: skip
BAD = {
    "LICENSE": "not an image in any format that Pillow knows",
    "badwidth.bmp": r"Image size \(274877898816 pixels\) exceeds limit",
    "broken_data_stream.png": "unrecognized data stream contents",
    "decompression_bomb.ico": r"Image size \(4294836225 pixels\) exceeds limit",
    "png_decompression_dos.png": "Decompressed data too large",
    "shortfile.bmp": "truncated",
    "truncated_end_chunk.png": "(?i)truncated",
    "truncated_jpeg.jpg": "truncated",
    "ultrahdr.jpg": "truncated",
}


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def odd_images() -> Path:
    folder = SHARED / "odd_images"
    if not folder.is_dir():
        pytest.skip(f"needs the odd images in {folder}")
    return folder


@pytest.fixture(scope="module")
def verdicts(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[tuple[dict[str, Any], ...]]:
    """What one `lightkit convert` of all odd images says.

    Reasons of the bad ones, rows of the good ones, by name.
    """
    if not (SHARED / "odd_images").is_dir():
        pytest.skip(f"needs the odd images in {SHARED / 'odd_images'}")
    with module_workspace(tmp_path_factory, fork_server) as workspace:
        folder = workspace.folder / "odd" / "all"
        folder.mkdir(parents=True)
        names = {}
        for path in (SHARED / "odd_images").iterdir():
            # not passed over by its name
            name = path.name if path.suffix not in ("", ".ico") else f"{path.name}.png"
            (folder / name).symlink_to(path)
            names[name] = path.name
        workspace.run(
            "convert",
            "odd",
            "table",
            "--format=parquet",
            "--max-bad-fraction=1",
            "--test-fraction=0",
        ).ok()
        listed = read_bad_images(workspace.folder / "table" / "_bad_images.csv")
        rows = pq.read_table(workspace.folder / "table").to_pylist()
        yield (
            {names[Path(row["path"]).name]: row["reason"] for row in listed},
            {names[Path(row["path"]).name]: row for row in rows},
        )


def test_each_odd_image_is_either_used_or_listed(
    odd_images: Path, verdicts: tuple[dict[str, Any], ...]
) -> None:
    bad, good = verdicts
    assert sorted([*bad, *good]) == sorted(path.name for path in odd_images.iterdir())
    assert sorted(bad) == sorted(BAD)


@pytest.mark.parametrize("name", BAD)
def test_an_unusable_odd_image_is_listed_with_its_reason(
    name: str, verdicts: tuple[dict[str, Any], ...]
) -> None:
    assert re.search(BAD[name], verdicts[0][name])


@pytest.mark.parametrize("name", GOOD)
def test_a_usable_odd_image_has_its_upright_size(
    name: str, odd_images: Path, verdicts: tuple[dict[str, Any], ...]
) -> None:
    row = verdicts[1][name]
    assert (row["height"], row["width"]) == GOOD[name]
    assert row["image"] == (odd_images / name).read_bytes(), (
        "a table has an image's bytes as they are"
    )


class Shown:
    """The pixels that evaluation shows of files, by name: float (height, width, 3), 0 to 255."""

    def __init__(self, root: Path, *, image_size: int) -> None:
        data = ImageFolder(
            str(root), image_size=image_size, num_workers=0, val_fraction=0, cache="none"
        )
        data.setup("predict")
        images = torch.cat([batch[0] for batch in data.predict_dataloader()])
        assert images.dtype == torch.uint8
        self.names = [Path(path).name for path in data.predict_paths]
        self._images = images.permute(0, 2, 3, 1).numpy().astype(float)

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        image: np.ndarray[Any, Any] = self._images[self.names.index(name)]
        return image


def _only_to_predict(folder: Path) -> Path:
    """A folder whose test split is to be filled, with a training split that is needed."""
    for name in "ab":
        (folder / "train" / name).mkdir(parents=True)
        (folder / "test" / name).mkdir(parents=True)
        (folder / "train" / name / "1.png").write_bytes(png(ord(name)))
    return folder / "test"


UNIFORM: dict[str, tuple[Image.Image, dict[str, Any], tuple[int, int, int]]] = {
    "rgb.png": (Image.new("RGB", (24, 20), (200, 90, 10)), {}, (200, 90, 10)),
    "grey.png": (Image.new("L", (24, 20), 77), {}, (77, 77, 77)),
    "bilevel.png": (Image.new("1", (24, 20), 1), {}, (255, 255, 255)),
    "palette.png": (Image.new("RGB", (24, 20), (10, 20, 250)).quantize(4), {}, (10, 20, 250)),
    "cmyk.tif": (Image.new("CMYK", (24, 20), (255, 0, 0, 0)), {}, (0, 255, 255)),
    "sixteen bits.png": (Image.new("I;16", (24, 20), 0x4D91), {}, (0x4D, 0x4D, 0x4D)),
    "transparent black.png": (Image.new("RGBA", (24, 20), (0, 0, 0, 0)), {}, (255, 255, 255)),
    "half transparent.png": (Image.new("RGBA", (24, 20), (255, 0, 0, 51)), {}, (255, 204, 204)),
    "grey transparent.png": (Image.new("LA", (24, 20), (0, 0)), {}, (255, 255, 255)),
    "palette transparent.gif": (Image.new("P", (24, 20), 0), {"transparency": 0}, (255, 255, 255)),
    "first of two.gif": (
        Image.new("RGB", (24, 20), (0, 255, 0)).quantize(4),
        {"save_all": True, "append_images": [Image.new("RGB", (24, 20), (255, 0, 0)).quantize(4)]},
        (0, 255, 0),
    ),
    "CAPITAL ö.PNG": (Image.new("RGB", (24, 20), (1, 2, 3)), {}, (1, 2, 3)),
}


@pytest.fixture(scope="module")
def uniform(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    folder = tmp_path_factory.mktemp("uniform")
    test = _only_to_predict(folder)
    for number, (name, (image, options, _)) in enumerate(UNIFORM.items()):
        image.save(test / "ab"[number % 2] / name, **options)
    return Shown(folder, image_size=16)


@pytest.mark.parametrize("name", UNIFORM)
def test_images_of_every_mode_become_rgb_over_white(name: str, uniform: Shown) -> None:
    assert np.abs(uniform[name] - UNIFORM[name][2]).max() <= 1


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int, tmp_path: Path) -> None:
    pixels = np.zeros((20, 20, 3), np.uint8)
    pixels[:10, :10] = 255  # the upper left quarter as it is to be seen
    upright = Image.fromarray(pixels)
    stored = {  # what a viewer does to the stored image, the other way round
        1: upright,
        2: upright.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        3: upright.transpose(Image.Transpose.ROTATE_180),
        4: upright.transpose(Image.Transpose.FLIP_TOP_BOTTOM),
        5: upright.transpose(Image.Transpose.TRANSPOSE),
        6: upright.transpose(Image.Transpose.ROTATE_90),
        7: upright.transpose(Image.Transpose.TRANSVERSE),
        8: upright.transpose(Image.Transpose.ROTATE_270),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    test = _only_to_predict(tmp_path)
    stored.save(test / "a" / "1.png", exif=exif)
    stored.save(test / "b" / "1.png")
    shown = Shown(tmp_path, image_size=16)["1.png"]
    assert shown[2, 2].tolist() == [255, 255, 255]
    assert shown[[2, 13, 13], [13, 2, 13]].tolist() == [[0, 0, 0]] * 3


@pytest.fixture(scope="module")
def losing(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[tuple[Workspace, Result]]:
    """A fit on given splits with two bad images, of which three more vanish or break in epoch 1.

    Also how it ended.
    """
    with module_workspace(tmp_path_factory, fork_server) as workspace:
        write_given_splits(workspace.folder / "pictures")
        for number in range(2):
            workspace.write(f"pictures/train/reds/bad {number}.JPG", "no picture")
        lost = {
            "delete": ["pictures/train/reds/0.png", "pictures/val/reds/1.png"],
            "spoil": ["pictures/*/blues/9.png"],
        }
        lost["before_predict"] = ["pictures/test/reds/1.png"]
        config = pictures_config(cache="none", max_bad_fraction=0.1)
        workspace.write(
            "job.yaml",
            {**config, "callbacks": {"lose": {"class_path": "my_data.Lose", "init_args": lost}}},
        )
        yield workspace, workspace.run("fit", "-c", "job.yaml").ok()


Losing = tuple[Workspace, Result]


def test_folders_train_val_and_test_are_the_splits(losing: Losing) -> None:
    data = read_json(losing[0].only_run / "manifest.json")["data"]
    assert data["counts"] == {"train": 32, "val": 8, "test": 6}
    assert data["class_names"] == ["blues", "reds"]


SPLIT_READERS = {
    "fit": (["fit", "-c", "job.yaml"], 3),
    "check": (["check", "-c", "job.yaml"], 2),
    "check --deep": (["check", "--deep", "-c", "job.yaml"], 2),
    "init --data": (["init", "--data", "pictures"], 3),
    "convert": (["convert", "pictures", "table"], 3),
}


@pytest.mark.parametrize("name", SPLIT_READERS)
def test_each_command_refuses_splits_without_a_training_one_and_images_with_their_masks(
    name: str, workspace: Workspace
) -> None:
    words, code = SPLIT_READERS[name]
    workspace.write("job.yaml", pictures_config())
    root = workspace.folder / "pictures"
    write_given_splits(root)
    (root / "train").rename(root / "Testing")
    refused = workspace.run(*words)
    assert refused.code == code
    assert "named after splits, and none of them is a training split" in refused.err
    shutil.rmtree(root)
    for kind in ("images", "masks"):
        for number in range(30):
            path = root / kind / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png(number + 100 * (kind == "masks")))
    # the one opens no class folder, the other writes a config for masks
    if name in ("check", "init --data"):
        return
    refused = workspace.run(*words)
    assert refused.code == code
    assert "pictures/images and pictures/masks hold images and their masks" in refused.err


def test_usual_names_of_splits_are_splits_and_a_class_without_test_images_is_a_warning(
    workspace: Workspace,
) -> None:
    workspace.write("job.yaml", pictures_config())
    root = workspace.folder / "pictures"
    write_given_splits(root)
    shutil.rmtree(root / "test" / "blues")
    for old, new in (("train", "Training"), ("val", "eval"), ("test", "test_set")):
        (root / old).rename(root / new)
    assert workspace.run("check", "-c", "job.yaml").code == 0
    fitted = workspace.run("fit", "-c", "job.yaml")
    assert fitted.code == 0
    assert "pictures/test_set: the test split has no images of blues (1 of 2 classes)" in fitted.err
    data = read_json(workspace.only_run / "manifest.json")["data"]
    assert data["class_names"] == ["blues", "reds"]
    assert data["counts"]["val"] == 8
    assert workspace.run("test", "--run", "latest").code == 0
    made = workspace.run("init", "--data", "pictures")
    assert "# Classes: blues" in (workspace.folder / "pictures.yaml").read_text()
    assert made.code == 0
    assert "2 classes" in workspace.run("convert", "pictures", "table").out


def test_a_class_name_with_control_characters_is_escaped_in_print_figures_and_pages(
    workspace: Workspace,
) -> None:
    name = "\x1b[31mre\nds\x07\x0c\ufffe\u202e"
    workspace.write("job.yaml", pictures_config())
    root = workspace.folder / "pictures"
    write_given_splits(root)
    for split in ("train", "val", "test"):
        (root / split / "reds").rename(root / split / name)
    results = [
        workspace.run("fit", "-c", "job.yaml").ok(),
        workspace.run("test", "--run", "latest").ok(),
    ]
    results.append(workspace.run("report", "latest").ok())
    (page,) = workspace.folder.glob("runs/job/2*/report.html")
    text = page.read_text(encoding="utf-8")
    assert r"\x1b[31mre\nds" in text
    assert not {"\x1b", "\x07", "\x0c", "\ufffe", "\u202e"} & {*text}
    next((root / "train" / name).iterdir()).unlink()
    again = workspace.run("fit", "-c", "job.yaml", "--if-changed").ok()
    assert "1 of 46 files gone" in again.err
    for result in (*results, again):
        assert not {"\x1b", "\x07", "\x0c", "\ufffe", "\u202e"} & {*result.out, *result.err}
        assert "re\nds" not in result.out + result.err


def test_letters_that_a_font_lacks_are_no_warning_and_stay_on_the_page(
    workspace: Workspace,
) -> None:
    workspace.write("job.yaml", pictures_config())
    root = workspace.folder / "pictures"
    write_given_splits(root)
    for split in ("train", "val", "test"):
        (root / split / "reds").rename(root / split / "赤い花")
    fitted = workspace.run("fit", "-c", "job.yaml").ok()
    tested = workspace.run("test", "--run", "latest").ok()
    reported = workspace.run("report", "latest").ok()
    assert "Glyph" not in fitted.err + tested.err + reported.err
    assert "赤い花" in (workspace.only_run / "report.html").read_text(encoding="utf-8")


def test_bad_images_are_listed_with_reason_and_when_they_were_found(losing: Losing) -> None:
    unknown, gone = "not an image in any format that Pillow knows", "No such file or directory"
    rows = read_bad_images(losing[0].only_run / "bad_images.csv")
    assert [(row["path"], row["reason"], row["found"]) for row in rows[:2]] == [
        ("pictures/train/reds/bad 0.JPG", unknown, "scan"),
        ("pictures/train/reds/bad 1.JPG", unknown, "scan"),
    ]
    assert {(row["path"], row["reason"], row["found"]) for row in rows[2:]} == {
        ("pictures/train/reds/0.png", gone, "epoch 1"),
        ("pictures/train/blues/9.png", unknown, "epoch 1"),
        ("pictures/val/reds/1.png", gone, "epoch 1"),
    }


def test_bad_images_are_reported_in_a_line_each_time(losing: Losing) -> None:
    scan, epoch = [line for line in losing[1].err.splitlines() if "left out" in line]
    place = f"{losing[0].only_run.relative_to(losing[0].folder)}/bad_images.csv"
    assert re.match(rf"warning: 2 images .*\(2 not an image .*{place}", scan)
    assert re.match(
        rf"warning: 3 images .*\(2 No such file or directory, 1 not an image .*{place}", epoch
    )


def test_bad_images_are_in_the_manifest_and_the_events(losing: Losing) -> None:
    assert read_json(losing[0].only_run / "manifest.json")["data"]["bad_images"] == 2
    events = read_events(losing[0].only_run, "bad_images")
    assert [(event["count"], event["found"]) for event in events] == [(2, "scan"), (3, "epoch 1")]


@pytest.mark.parametrize(
    ("lost", "allowed"),
    [(["pictures/train/*/*.png"], 0.5), (["pictures/val/*/*.png"], 1.0)],
    ids=["more than max_bad_fraction", "all of a split"],
)
def test_losing_too_many_images_ends_with_3_after_the_checkpoint(
    lost: list[str], allowed: float, workspace: Workspace
) -> None:
    workspace.write("my_data.py", MY_DATA)
    write_given_splits(workspace.folder / "pictures", per_class=(8, 3, 1))
    config = pictures_config(cache="none", max_bad_fraction=allowed, trainer={"max_epochs": 3})
    callbacks = {"lose": {"class_path": "my_data.Lose", "init_args": {"delete": lost}}}
    workspace.write("job.yaml", {**config, "callbacks": callbacks})
    result = workspace.run("fit", "-c", "job.yaml")
    assert result.code == 3, result.err
    assert "could not be read" in result.err
    assert "Traceback" not in result.err
    run = workspace.only_run
    assert (run / "checkpoints" / "last.ckpt").is_file()
    assert {row["found"] for row in read_bad_images(run / "bad_images.csv")} == {"epoch 1"}


def _numbered(folder: Path) -> ImageFolder:
    """Images of 12 shades for training and 4 for validation.

    Their red channel is their number times 10.
    """
    for split, count in (("train", 12), ("val", 4)):
        for number in range(count):
            path = folder / split / ("reds", "blues")[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (40, 40), (10 * number, 0, 0)).save(path)
    data = ImageFolder(
        str(folder), image_size=32, batch_size=2, num_workers=0, augment=False, cache="none"
    )
    data.setup("fit")
    return data


def _reds(loader: Any) -> list[list[int]]:
    return [
        [int(image[0, 16, 16]) // 10 for image in batch[0]] for batch in loader if len(batch) == 2
    ]


def test_a_training_image_that_vanishes_is_replaced_by_the_next_of_the_epochs_order(
    tmp_path: Path,
) -> None:
    data = _numbered(tmp_path)
    order = [red for batch in _reds(data.train_dataloader()) for red in batch]
    assert sorted(order) == [*range(12)]
    for lost in (order[3], order[4], order[11]):
        (tmp_path / "train" / ("reds", "blues")[lost % 2] / f"{lost}.png").unlink()
    batches = _reds(data.train_dataloader())
    assert [len(batch) for batch in batches] == [2] * 6
    replaced = [*order[:3], order[5], order[5], *order[5:11], order[0]]
    assert [red for batch in batches for red in batch] == replaced
    assert [Path(defect.name).stem for defect in data.defects.take_noted()] == [
        str(order[at]) for at in (3, 4, 11)
    ]


def test_an_image_that_vanishes_before_its_evaluation_is_left_out(tmp_path: Path) -> None:
    data = _numbered(tmp_path)
    (tmp_path / "val" / "reds" / "0.png").unlink()
    assert sorted(map(len, _reds(data.val_dataloader()))) == [1, 2]
    assert sorted(red for batch in _reds(data.val_dataloader()) for red in batch) == [1, 2, 3]
    for path in (tmp_path / "val").glob("*/*.png"):
        path.unlink()
    with pytest.raises(
        DataError, match=r"neither this sample nor any other of its batch of 2 could be read"
    ):
        _reds(data.val_dataloader())


def test_a_jpeg_with_a_side_below_8_pixels_is_used(workspace: Workspace) -> None:
    write_given_splits(workspace.folder / "pictures", per_class=(8, 3, 1))
    for size in ((3, 200), (200, 3), (1, 1)):
        Image.new("RGB", size, (9, 9, 9)).save(
            workspace.folder / "pictures" / "train" / "reds" / f"{size}.jpg"
        )
    workspace.write("job.yaml", pictures_config(cache="none", trainer={"max_epochs": 1}))
    workspace.run("fit", "-c", "job.yaml").ok()
    assert read_json(workspace.only_run / "manifest.json")["data"]["counts"]["train"] == 19


def test_any_exception_of_a_decoder_is_the_verdict_on_that_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = ImageFolder(
        str(write_given_splits(tmp_path)), image_size=16, batch_size=4, num_workers=0, cache="none"
    )
    load = PngImageFile.load

    def fail(self: Any) -> Any:
        if self.size == (77, 33):
            raise ZeroDivisionError("in the decoder")
        return load(self)

    bad = str(tmp_path / "train" / "reds" / "3.png")
    Image.new("RGB", (77, 33)).save(bad)
    monkeypatch.setattr(PngImageFile, "load", fail)
    data.setup("fit")
    assert [(defect.name, defect.reason) for defect in data.defects.found] == [
        (bad, "in the decoder")
    ]


def test_a_lack_of_descriptors_or_memory_is_an_error_and_no_bad_photo(tmp_path: Path) -> None:
    data = _numbered(tmp_path)
    batches = iter(data.train_dataloader())
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    # all that are open stay open, and none is added
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        with pytest.raises(LightkitError, match=r"Too many open files.*ulimit -n") as raised:
            next(batches)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert not isinstance(raised.value, DataError)
    assert not data.defects.take_noted()


def test_what_libtiff_writes_to_standard_error_is_counted_in_one_line(workspace: Workspace) -> None:
    write_given_splits(workspace.folder / "pictures", per_class=(8, 3, 1))
    random = np.random.default_rng(0)
    for number in range(3):
        file = io.BytesIO()
        pixels = random.integers(0, 255, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(file, "TIFF", compression="tiff_adobe_deflate")
        content = bytearray(file.getvalue())
        content[len(content) // 2] ^= 0xFF
        (workspace.folder / "pictures" / "train" / "reds" / f"bad {number}.tif").write_bytes(
            content
        )
    workspace.write(
        "job.yaml", pictures_config(cache="none", max_bad_fraction=0.5, trainer={"max_epochs": 1})
    )
    result = workspace.run("fit", "-c", "job.yaml").ok()
    assert "Decode" not in result.err
    (line,) = [line for line in result.err.splitlines() if "libtiff" in line]
    assert re.search(r"warning: libtiff reported \d+ errors? in images", line)


@pytest.mark.parametrize(
    ("num_bad", "words", "says"),
    [
        (1, ["--data.on_bad_image=error"], r"1 of 25 images .*data\.init_args\.on_bad_image"),
        (3, [], r"3 of 27 images .*11\.1%.*data\.init_args\.max_bad_fraction.*0\.05"),
    ],
    ids=["on_bad_image", "max_bad_fraction"],
)
def test_refused_bad_images_end_with_3_and_their_list_next_to_the_runs(
    num_bad: int, words: list[str], says: str, workspace: Workspace
) -> None:
    write_given_splits(workspace.folder / "pictures", per_class=(8, 3, 1))
    for number in range(num_bad):
        workspace.write(f"pictures/train/reds/bad {number}.png", "no picture")
    workspace.write("job.yaml", pictures_config())
    result = workspace.run("fit", "-c", "job.yaml", *words)
    assert result.code == 3
    assert re.search(f"error: {says}", result.err)
    assert "pictures/train/reds/bad 0.png: not an image" in result.err
    assert workspace.runs == []
    assert len(read_bad_images(workspace.folder / "runs" / "job" / "bad_images.csv")) == num_bad


@pytest.fixture(scope="module")
def messy(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[tuple[Workspace, str]]:
    """A table made of a folder with links, odd names, copies and classes of one image.

    Also what was told of it.
    """
    with module_workspace(tmp_path_factory, fork_server) as workspace:
        folder = workspace.folder / "messy"
        write_given_splits(workspace.folder / "given", per_class=(40, 0, 0))
        shutil.move(workspace.folder / "given" / "train", folder)
        (folder / "reds" / "4.png").rename(folder / "reds" / "Ä ö 1.PNG")
        (folder / "reds" / "5.png").rename(folder / "reds" / os.fsdecode(b"\xff.png"))
        workspace.folder.joinpath("outside").mkdir()
        (folder / "reds" / "6.png").rename(workspace.folder / "outside" / "linked.png")
        (folder / "reds" / "outside").symlink_to("../../outside")
        (folder / "reds" / "up").symlink_to("..")
        (folder / "reds" / "across").symlink_to("../blues")
        for name in ("1.HEIC", "2.heic", "3.psd", "4"):
            (folder / "reds" / name).touch()
        shutil.copyfile(folder / "reds" / "0.png", folder / "blues" / "copy.png")
        shutil.copyfile(folder / "reds" / "1.png", folder / "reds" / "again.png")
        for number in range(8):
            workspace.write(f"messy/single{number}/a.png", "")
            (folder / f"single{number}" / "a.png").write_bytes(png(number))
        result = workspace.run("convert", "messy", "table", "--format=parquet").ok()
        workspace.run(
            "convert",
            "messy",
            "other",
            "--format=parquet",
            "--val-fraction=0.4",
            "--test-fraction=0.1",
        )
        yield workspace, result.err


Messy = tuple[Workspace, str]


def _rows(workspace: Workspace, table: str = "table") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(workspace.folder / table).to_pylist()
    return rows


def test_every_image_is_in_exactly_one_split(messy: Messy) -> None:
    names = Counter(row["path"] for row in _rows(messy[0]))
    assert set(names.values()) == {1}
    assert len(names) == 40 + 40 + 2 + 8
    assert Counter(row["split"] for row in _rows(messy[0])).keys() == {"train", "val", "test"}


def test_names_in_capitals_with_spaces_and_bytes_that_are_no_text_are_images(messy: Messy) -> None:
    assert {"reds/Ä ö 1.PNG", "reds/\\xff.png"} <= {row["path"] for row in _rows(messy[0])}


def test_links_are_followed_but_not_up_or_into_another_class(messy: Messy) -> None:
    paths = {row["path"] for row in _rows(messy[0])}
    assert "reds/outside/linked.png" in paths
    assert not {path for path in paths if path.startswith(("reds/up", "reds/across"))}
    assert re.search(r"2 links .*not followed: messy/reds/across, messy/reds/up", messy[1])


def test_files_passed_over_for_their_names_are_counted(messy: Messy) -> None:
    assert re.search(
        r"4 files passed over \(2 \.heic, 1 \.psd, 1 without suffix\).*HEIC.* JPEG", messy[1]
    )


def test_a_photo_in_two_classes_is_reported(messy: Messy) -> None:
    (line,) = [line for line in messy[1].splitlines() if "more than one class" in line]
    assert "messy/blues/copy.png" in line
    assert "messy/reds/0.png" in line


def test_copies_of_a_photo_are_in_the_same_split(messy: Messy) -> None:
    splits = {row["path"]: row["split"] for row in _rows(messy[0])}
    assert splits["blues/copy.png"] == splits["reds/0.png"]
    assert splits["reds/again.png"] == splits["reds/1.png"]


def test_a_class_whose_images_would_all_be_held_out_keeps_one_for_training(messy: Messy) -> None:
    singles = {
        row["label"]: row["split"] for row in _rows(messy[0]) if row["label"].startswith("single")
    }
    assert singles == {f"single{number}": "train" for number in range(8)}
    (line,) = [line for line in messy[1].splitlines() if "trained on instead" in line]
    assert re.search(r"single\d", line)


def test_another_validation_fraction_moves_nothing_out_of_the_test_split(messy: Messy) -> None:
    tests = [
        {row["path"] for row in _rows(messy[0], table) if row["split"] == "test"}
        - {f"single{n}/a.png" for n in range(8)}
        for table in ("table", "other")
    ]
    assert tests[0] == tests[1] != set()


def test_a_photos_split_is_decided_by_its_content_alone(tmp_path: Path) -> None:
    def splits(root: Path) -> dict[bytes, str]:
        found = {}
        data = ImageFolder(
            str(root), image_size=8, batch_size=8, num_workers=0, cache="none", augment=False
        )
        data.setup()
        loaders: dict[str, Any] = {
            "train": data.train_dataloader(),
            "val": data.val_dataloader(),
            "test": data.test_dataloader(),
        }
        for split, loader in loaders.items():
            for batch in loader:
                found.update({image.numpy().tobytes(): split for image in batch[0]})
        assert len(found) == sum(data.describe()["counts"].values())
        return found

    for number in range(60):
        path = tmp_path / "one" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(number))
    before = splits(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    for number in range(60, 90):
        (tmp_path / "two" / "a" / f"{number}.png").write_bytes(png(number))
    for path in sorted((tmp_path / "two" / "b").iterdir()):
        path.rename(tmp_path / "two" / "a" / f"was-b-{path.name}")
    (tmp_path / "two" / "b" / "1.png").write_bytes(png(1000))
    after = splits(tmp_path / "two")
    assert {image: after[image] for image in before} == before
    assert len(after) == 91


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"empty/notes.txt": b""}, r"pictures/empty: this class has no images"),
        (
            {"spoilt/1.png": b"no picture"},
            r"pictures/spoilt: none of the 1 images of this class can be used",
        ),
        (None, r"pictures: no class folders"),
    ],
    ids=["class without images", "class without a usable image", "no classes"],
)
def test_a_folder_that_means_something_else_is_an_error(
    files: dict[str, bytes] | None, says: str, tmp_path: Path
) -> None:
    (tmp_path / "pictures").mkdir()
    if files is not None:
        for number in range(30):
            files[f"{'ab'[number % 2]}/{number}.png"] = png(number)
    for name, content in (files or {}).items():
        (tmp_path / "pictures" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "pictures" / name).write_bytes(content)
    with pytest.raises(DataError, match=says):
        ImageFolder(str(tmp_path / "pictures"), max_bad_fraction=0.5).setup("fit")


@pytest.mark.parametrize("name", ["empty", "train/empty"], ids=["whole", "splits"])
def test_check_and_fit_report_the_same_class_without_images(
    name: str, workspace: Workspace
) -> None:
    write_given_splits(workspace.folder / "pictures", per_class=(8, 3, 1))
    if name == "empty":
        (workspace.folder / "pictures").rename(workspace.folder / "splits")
        (workspace.folder / "splits" / "train").rename(workspace.folder / "pictures")
    workspace.write("job.yaml", pictures_config())
    workspace.run("check", "-c", "job.yaml").ok()
    workspace.write(f"pictures/{name}/notes.doc", "no picture")
    checked = workspace.run("check", "-c", "job.yaml")
    fitted = workspace.run("fit", "-c", "job.yaml")
    assert (checked.code, fitted.code) == (2, 3)
    assert re.search(
        rf"data\.init_args\.root: \S*pictures/{name}: this class has no images\. Add some",
        checked.err,
    )
    assert "1 file passed over (1 .doc)." in checked.err
    assert checked.err == fitted.err
    assert workspace.runs == []


def test_a_data_folder_that_is_not_there_ends_with_3_its_place_and_a_near_name(
    workspace: Workspace,
) -> None:
    (workspace.folder / "picture").mkdir()
    workspace.write("job.yaml", pictures_config())
    result = workspace.run("fit", "-c", "job.yaml")
    assert result.code == 3
    assert re.search(
        r"data\.init_args\.root: .*pictures.*'picture'\?\n +--> job\.yaml:\d+:\d+", result.err
    )
    assert workspace.runs == []


@pytest.mark.skipif(os.getuid() == 0, reason="root reads every folder")
def test_a_folder_that_cannot_be_read_is_an_error_with_3(workspace: Workspace) -> None:
    write_given_splits(workspace.folder / "pictures", per_class=(8, 3, 1))
    workspace.write("job.yaml", pictures_config())
    (workspace.folder / "pictures" / "train" / "reds").chmod(0)
    result = workspace.run("fit", "-c", "job.yaml")
    (workspace.folder / "pictures" / "train" / "reds").chmod(0o755)
    assert result.code == 3
    assert "pictures/train/reds" in result.err


def test_fractions_that_given_splits_leave_without_effect_are_reported(
    workspace: Workspace,
) -> None:
    write_given_splits(workspace.folder / "pictures", per_class=(8, 3, 1))
    shutil.rmtree(workspace.folder / "pictures" / "test")
    workspace.write("job.yaml", pictures_config(cache="none", trainer={"max_epochs": 1}))
    assert "no effect" not in workspace.run("fit", "-c", "job.yaml").ok().err
    result = workspace.run(
        "fit", "-c", "job.yaml", "--data.test_fraction=0.25", "--data.val_fraction=0.25"
    ).ok()
    (line,) = [line for line in result.err.splitlines() if "no effect" in line]
    assert re.search(
        r"data\.init_args\.val_fraction and data\.init_args\.test_fraction: .*pictures: train, val",
        line,
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"val_fraction": 0.9, "test_fraction": 0.1},
            r"val_fraction.*test_fraction.*nothing is left",
        ),
        ({"val_fraction": -0.1}, r"val_fraction.*-0\.1"),
        ({"cache_size": 8}, r"cache_size.*8"),
        ({"num_workers": -1}, r"num_workers.*-1"),
        ({"max_bad_fraction": 1.5}, r"max_bad_fraction.*1\.5"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_settings_of_a_folder_that_cannot_be_meant_are_refused(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=rf"data\.init_args.*{says}"):
        ImageFolder("nowhere", image_size=32, **options)


def test_loaders_give_uint8_and_the_hook_gives_what_the_model_sees(tmp_path: Path) -> None:
    data = ImageFolder(
        str(write_given_splits(tmp_path, per_class=(4, 2, 1))), image_size=32, num_workers=0
    )
    data.setup("fit")
    loader: Any = data.val_dataloader()
    images, labels = batch = next(iter(loader))
    assert (images.dtype, images.shape) == (torch.uint8, (4, 3, 32, 32))
    assert (labels.dtype, labels.tolist()) == (torch.int64, [0, 0, 1, 1])
    seen, same_labels = data.on_after_batch_transfer(batch, 0)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    expected = (images / 255 - mean[:, None, None]) / std[:, None, None]
    torch.testing.assert_close(seen, expected, rtol=0, atol=1e-5)
    assert torch.equal(same_labels, labels)


def test_an_image_that_vanishes_before_its_prediction_ends_with_3_and_its_name(
    losing: Losing,
) -> None:
    workspace = losing[0]
    result = workspace.run("predict", "--run", str(workspace.only_run))
    assert result.code == 3, result.err
    assert "pictures/test/reds/1.png" in result.err
    assert "Traceback" not in result.err
