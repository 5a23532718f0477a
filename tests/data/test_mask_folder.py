"""Folders of images and masks: kinds, splits, joint transforms, and errors with the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lightkit.data import DrawnMasks, MaskFolder
from lightkit.data.flowers import draw_flower
from lightkit.data.image_dataset import Decoded
from lightkit.data.mask_folder import MaskTrainView
from lightkit.data.sampler import SampleKey
from lightkit.errors import ConfigError, DataError
from lightkit.images.mask_file import (
    IGNORED,
    UNKNOWN,
    choose_colors,
    parse_classes,
    resize_mask,
    write_mask,
)

CLASSES = ["sky", "road", "car"]
COLORS = {"sky": [0, 0, 0], "road": "#804080", "car": [0, 0, 142]}


def make_mask(at: int, *, height: int = 20, width: int = 24) -> np.ndarray[Any, Any]:
    """Make a mask of three classes and of pixels that count for nothing, another by number."""
    random = np.random.default_rng(at)
    mask = random.integers(0, 3, (height, width)).astype(np.uint8)
    mask[0, :5] = 255
    return mask


def save_palette(path: Path, mask: Any) -> None:
    image = Image.frombytes("P", mask.shape[::-1], mask.tobytes())
    # Pillow saves few as few bits
    image.putpalette([channel for at in range(256) for channel in (at, 255 - at, 90)])
    image.save(path)


def save_grey(path: Path, mask: Any) -> None:
    Image.fromarray(mask).save(path)


def save_grey_in_three_channels(path: Path, mask: Any) -> None:
    Image.fromarray(np.stack([mask] * 3, axis=2)).save(path)


def save_sixteen_bits(path: Path, mask: Any) -> None:
    Image.fromarray(mask.astype(np.uint16)).save(path)


def save_colors(path: Path, mask: Any) -> None:
    table = np.zeros((256, 3), np.uint8)
    table[:3] = [(0, 0, 0), (128, 64, 128), (0, 0, 142)]
    table[255] = (255, 255, 255)
    Image.fromarray(table[mask]).save(path)


def fill(
    folder: Path, save: Any = save_grey, *, numbers: range = range(8), suffix: str = ".png"
) -> Path:
    random = np.random.default_rng(1)
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for at in numbers:
        pixels = random.integers(0, 255, (20, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{at}.png")
        save(folder / "masks" / f"{at}{suffix}", make_mask(at))
    return folder


def build(root: Path, **options: Any) -> MaskFolder:
    given: dict[str, Any] = {
        "classes": CLASSES,
        "image_size": 16,
        "batch_size": 4,
        "num_workers": 0,
    }
    return MaskFolder(str(root), **(given | options))


def expect(at: int) -> Any:
    mask = make_mask(at).astype(np.int64)
    return np.where(mask == 255, IGNORED, mask)


@pytest.mark.parametrize(
    ("save", "options"),
    [
        (save_palette, {}),
        (save_grey, {}),
        (save_grey_in_three_channels, {}),
        (save_sixteen_bits, {}),
        (save_grey, {"classes": None}),
        (save_colors, {"classes": COLORS, "ignore_index": [255, 255, 255]}),
    ],
    ids=["palette", "grey", "grey in three channels", "16 bits", "classes of the files", "colours"],
)
def test_masks_of_each_kind_are_read(tmp_path: Path, save: Any, options: dict[str, Any]) -> None:
    data = build(fill(tmp_path, save), **options)
    data.setup("fit")
    assert data.class_names == (["0", "1", "2"] if options.get("classes", 1) is None else CLASSES)
    for split in ("train", "val", "test"):
        source = data.read_split(split, decoded=False)
        for at in range(len(source)):
            assert (source.mask(at) == expect(int(Path(source.name(at)).stem))).all()


def test_numbers_of_classes_are_those_of_the_table(tmp_path: Path) -> None:
    fill(tmp_path, lambda path, mask: save_grey(path, np.array([0, 7, 200], np.uint8)[mask % 3]))
    data = build(tmp_path, classes={"car": 200, "sky": 0, "road": 7}, ignore_index=None)
    data.setup()
    source = data.read_split("train", decoded=False)
    number = int(Path(source.name(0)).stem)
    assert (source.mask(0) == np.array([1, 2, 0])[make_mask(number) % 3]).all()


def test_a_turned_photo_has_its_mask_upright(tmp_path: Path) -> None:
    fill(tmp_path)
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    Image.fromarray(np.zeros((24, 20, 3), np.uint8)).save(tmp_path / "images" / "9.jpg", exif=exif)
    save_grey(tmp_path / "masks" / "9.png", make_mask(9))
    build(tmp_path).setup()


@pytest.mark.parametrize("is_above", [True, False], ids=["train/images", "images/train"])
def test_splits_stand_above_or_below_the_folders(tmp_path: Path, is_above: bool) -> None:
    for split, numbers in (("train", range(5)), ("valid", range(5, 7)), ("test", range(7, 8))):
        folder = fill(tmp_path / split, numbers=numbers)
        if not is_above:
            for name in ("images", "masks"):
                (tmp_path / name).mkdir(exist_ok=True)
                (folder / name).rename(tmp_path / name / split)
            folder.rmdir()
    data = build(tmp_path)
    data.setup("fit")
    assert data.counts == {"train": 5, "val": 2, "test": 1}


def test_a_mask_is_resized_as_pillow_and_nearest_exact_of_torch_do() -> None:
    mask = np.random.default_rng(0).integers(0, 200, (37, 53)).astype(np.uint8)
    for height, width in ((16, 16), (64, 80), (37, 20), (100, 53)):
        ours = resize_mask(mask, (height, width))
        pillow = np.asarray(Image.fromarray(mask).resize((width, height), Image.Resampling.NEAREST))
        torchs = torch.nn.functional.interpolate(
            torch.from_numpy(mask)[None, None].float(), (height, width), mode="nearest-exact"
        )[0, 0]
        assert (ours == pillow).all()
        assert (ours == torchs.numpy()).all()


def test_image_and_mask_are_cropped_flipped_and_turned_together() -> None:
    """The picture shows its own mask, so that a pixel that moves unlike its mask is seen."""
    rows, columns = np.mgrid[:120, :160]
    mask = ((rows // 30 + columns // 40) % 2).astype(np.int64)
    picture = np.repeat((255 * mask).astype(np.uint8)[:, :, None], 3, axis=2)
    view = MaskTrainView(64, crop_scale=(0.2, 1.0), color_jitter=0.0, rotate=25.0)
    for epoch in range(20):
        image, classes = view(Decoded(picture), mask, 0, SampleKey(0, epoch=epoch))
        assert image.shape == (3, 64, 64)
        assert classes.dtype == torch.int64
        shows = image[0] > 127
        counted = classes != IGNORED
        # but for borders, which the image blurs
        assert ((classes == 1) == shows)[counted].float().mean() > 0.96
        again, same = view(Decoded(picture), mask, 0, SampleKey(0, epoch=epoch))
        assert torch.equal(image, again)
        assert torch.equal(classes, same)


def test_batches_have_masks_and_evaluation_sees_all_of_an_image(tmp_path: Path) -> None:
    data = build(fill(tmp_path))
    data.setup("fit")
    images, masks = next(iter(data.train_dataloader()))
    assert images.shape == (4, 3, 16, 16)
    assert images.dtype == torch.uint8
    assert masks.shape == (4, 16, 16)
    source = data.read_split("val", decoded=False)
    images, masks = next(iter(data.val_dataloader()))
    whole = source.pixels(0).whole().resize((16, 16), Image.Resampling.BILINEAR)
    assert (images[0].permute(1, 2, 0).numpy() == np.asarray(whole)).all()
    assert (masks[0].numpy() == resize_mask(source.mask(0), (16, 16))).all()


def spoil(folder: Path, case: str) -> None:
    masks = folder / "masks"
    if case == "missing":
        (masks / "3.png").unlink()
    elif case == "size":
        save_grey(masks / "3.png", make_mask(3, width=25))
    elif case == "value":
        save_grey(masks / "3.png", make_mask(3) + np.uint8(6))
    elif case == "color":
        save_colors(masks / "3.png", make_mask(3))
    elif case == "empty":
        (masks / "3.png").write_bytes(b"")
    elif case == "twice":
        Image.fromarray(make_mask(3)).save(masks / "3.bmp")
    elif case == "no folder":
        masks.rename(folder / "elsewhere")


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("missing", r"1 image has no mask.*expected.*masks/3\.png.*images/3\.png"),
        ("size", r"masks/3\.png: 25 x 20, its image 24 x 20 pixels"),
        (
            "value",
            (
                r"masks/3\.png: [678] \(\d+ pixels\), .*|no class;"
                r" data\.init_args\.classes has sky 0, road 1"
            ),
        ),
        ("color", r"masks/3\.png: a mask of colours, where numbers are expected"),
        ("empty", r"masks/3\.png: "),
        ("twice", r"masks/3\.bmp and .*masks/3\.png have the same name"),
        ("no folder", r"masks: there is no such folder of masks"),
    ],
)
def test_an_odd_folder_is_an_error_with_its_file(tmp_path: Path, case: str, says: str) -> None:
    spoil(fill(tmp_path), case)
    with pytest.raises(DataError, match=rf"(?s){says}"):
        build(tmp_path).setup("fit")


def test_the_name_of_a_mask_may_end_in_mask(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "masks" / "3.png").rename(tmp_path / "masks" / "3_mask.png")
    build(tmp_path).setup()
    (tmp_path / "masks" / "3.png").write_bytes((tmp_path / "masks" / "3_mask.png").read_bytes())
    with pytest.raises(DataError, match=r"3\.png and .*3_mask\.png have the same name"):
        build(tmp_path).setup()


def test_a_value_that_is_no_class_names_file_and_value(tmp_path: Path) -> None:
    mask = make_mask(3)
    mask[5, 5] = 77
    save_grey(fill(tmp_path) / "masks" / "3.png", mask)
    with pytest.raises(DataError, match=r"1 mask has pixels.*\n  .*masks/3\.png: 77 \(1 pixels\)"):
        build(tmp_path).setup("fit")


def test_a_broken_mask_is_left_out_and_listed_where_few_are(tmp_path: Path) -> None:
    (fill(tmp_path) / "masks" / "3.png").write_bytes(b"")
    data = build(tmp_path, max_bad_fraction=0.2)
    data.setup("fit")
    assert sum(data.counts.values()) == 7
    assert [Path(each.name).name for each in data.defects.found] == ["3.png"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"classes": ["sky"]}, "two classes or more"),
        ({"classes": {"sky": 0, "road": 0}}, "same value"),
        ({"classes": {"sky": 0, "road": "#ff0000"}}, "expected a number from 0 to 65535"),
        ({"classes": {"sky": "black", "road": "#ff0000"}}, "expected a colour"),
        ({"ignore_index": 1}, "is that of class 'road'"),
        ({"mixup": 0.2}, "change an image without its mask"),
        ({"rand_augment": True}, "change an image without its mask"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build(tmp_path, **options)


def test_masks_of_0_and_255_need_the_names_of_their_classes(tmp_path: Path) -> None:
    fill(tmp_path, lambda path, mask: save_grey(path, np.uint8(255) * (mask == 1).astype(np.uint8)))
    with pytest.raises(
        ConfigError, match=r"values 0, 255.*classes: \{background: 0, object: 255\}"
    ):
        build(tmp_path, classes=None).setup("fit")
    data = build(tmp_path, classes={"background": 0, "object": 255})
    data.setup("fit")
    assert set(np.unique(data.read_split("train", decoded=False).mask(0))) == {0, 1}


def test_masks_of_which_all_but_one_class_is_ignored_are_refused(tmp_path: Path) -> None:
    """0 and 255, with names alone: 255 would count for nothing, and the IoU would be 1."""
    fill(tmp_path, lambda path, mask: save_grey(path, np.uint8(255) * (mask == 1).astype(np.uint8)))
    for _ in range(2):  # the second finds the masks judged
        with pytest.raises(DataError, match=r"than background; all others have the value 255"):
            build(tmp_path, classes=["background", "object"]).setup("fit")
    data = build(tmp_path, classes=["background", "object"], ignore_index=None)
    with pytest.raises(DataError, match=r"255 \("):
        data.setup("fit")


def test_the_fingerprint_changes_with_a_mask(tmp_path: Path) -> None:
    fill(tmp_path)
    before = build(tmp_path).index.fingerprint
    assert build(tmp_path).index.fingerprint == before
    mask = make_mask(3)
    mask[5, 5] = (mask[5, 5] + 1) % 3
    save_grey(tmp_path / "masks" / "3.png", mask)
    assert build(tmp_path).index.fingerprint != before


def test_a_written_mask_is_read_again(tmp_path: Path) -> None:
    mask = np.arange(40).reshape(5, 8)
    write_mask(tmp_path / "one.png", mask, 40)
    classes = parse_classes([f"c{at}" for at in range(40)], "auto")
    assert classes is not None
    assert (classes.read(tmp_path / "one.png") == mask).all()
    with Image.open(tmp_path / "one.png") as image:
        assert image.mode == "P"
        assert image.convert("RGB").getpixel((1, 0)) == choose_colors(40)[1]
    assert len(set(choose_colors(200))) > 190


def test_drawn_flowers_know_their_masks() -> None:
    picture, mask = draw_flower("daisy", size=96, seed=(2, 0, 0, 0))
    other, _ = draw_flower("daisy", size=96, seed=(2, 0, 0, 1))
    assert picture.size == mask.size == (96, 96)
    assert picture.tobytes() != other.tobytes()
    share = np.asarray(mask).mean()
    assert 0.05 < share < 0.9
    assert DrawnMasks(num_images=10, drawn_size=16).classes == ["background", "flower"]


def test_a_negative_number_and_a_fraction_are_no_class(tmp_path: Path) -> None:
    """Some programs write -2 for a pixel without data; it is not the last class but one."""
    classes = parse_classes(["land", "water", "ice"], ignore_index=None)
    assert classes is not None
    signed = np.array([[0, 1, 2], [-1, -2, -9999]], np.int32)
    Image.fromarray(signed).save(tmp_path / "signed.tif")
    assert classes.read(tmp_path / "signed.tif").tolist() == [[0, 1, 2], [UNKNOWN] * 3]
    whole = np.array([[0.0, 2.0]], np.float32)
    Image.fromarray(whole).save(tmp_path / "whole.tif")
    assert classes.read(tmp_path / "whole.tif").tolist() == [[0, 2]]
    for value in (0.7, np.nan, np.inf):
        Image.fromarray(np.array([[value, 1.0]], np.float32)).save(tmp_path / "part.tif")
        with pytest.raises(DataError, match=r"part\.tif: this mask has fractions"):
            classes.read(tmp_path / "part.tif")
