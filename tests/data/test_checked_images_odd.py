"""The verdict on each image of a corpus that breaks careless loaders, and its pixels."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lightkit.data.image_folder import ImageFolder
from lightkit.images.image_file import read_rgb
from lightkit.images.verdicts import judge_images

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
    "badwidth.bmp": (
        r"Image size \(274877898816 pixels\) exceeds limit of \d+"
        r" pixels, could be decompression bomb"
    ),
    "broken_data_stream.png": "unrecognized data stream contents when reading image file",
    "decompression_bomb.ico": (
        r"Image size \(4294836225 pixels\) exceeds limit of \d+ pixels, could be decompression"
    ),
    "png_decompression_dos.png": "Decompressed data too large for PngImagePlugin.MAX_TEXT_CHUNK",
    "shortfile.bmp": "image file is truncated$",
    "truncated_end_chunk.png": "Truncated File Read",
    "truncated_jpeg.jpg": "image file is truncated$",
    "ultrahdr.jpg": "image file is truncated$",
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def pixels_of(path: Path) -> np.ndarray[Any, Any]:
    return np.asarray(read_rgb(path), dtype=float)


def test_the_corpus_is_the_one_that_is_known_here(odd_images: Path) -> None:
    assert {path.name for path in odd_images.iterdir()} == {*GOOD, *BAD}
    assert len(GOOD) + len(BAD) == 46 + 1  # and their licence, which is no image either


@pytest.mark.parametrize("name", GOOD)
def test_a_good_one_has_its_upright_size(odd_images: Path, name: str) -> None:
    (verdict,) = judge_images([odd_images / name])
    assert (verdict.defect, verdict.height, verdict.width) == (None, *GOOD[name])
    assert pixels_of(odd_images / name).shape == (*GOOD[name], 3)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_one_has_its_reason(odd_images: Path, name: str) -> None:
    (verdict,) = judge_images([odd_images / name])
    assert verdict.defect is not None
    assert re.match(BAD[name], verdict.defect)
    assert (verdict.height, verdict.width) == (0, 0)


@pytest.mark.parametrize(
    "name",
    [
        "hopper_orientation_3.jpg",
        "hopper_orientation_5.jpg",
        "hopper_orientation_6.webp",
        "hopper_orientation_8.jpg",
    ],
)
def test_what_was_stored_turned_is_the_upright_picture(odd_images: Path, name: str) -> None:
    upright, found = pixels_of(odd_images / "hopper.jpg"), pixels_of(odd_images / name)
    assert np.abs(found - upright).mean() < 5
    assert np.abs(found[::-1, ::-1] - upright).mean() > 20


@pytest.mark.parametrize("name", ["exif_imagemagick_orientation.png", "xmp_tags_orientation.png"])
def test_an_orientation_in_other_places_than_exif_is_followed(odd_images: Path, name: str) -> None:
    with Image.open(odd_images / name) as image:
        image.load()
        stored = Image.new("RGBA", image.size, "white")
        stored.alpha_composite(image.convert("RGBA"))
    assert np.array_equal(
        pixels_of(odd_images / name), np.asarray(stored.convert("RGB"), dtype=float)[::-1, ::-1]
    )


@pytest.mark.parametrize("name", ["hopper.gif", "hopper.ppm", "hopper.webp", "hopper.avif"])
def test_one_picture_in_other_formats_is_the_same_picture(odd_images: Path, name: str) -> None:
    assert np.abs(pixels_of(odd_images / name) - pixels_of(odd_images / "hopper.jpg")).mean() < 12


def test_a_grey_picture_has_three_equal_channels(odd_images: Path) -> None:
    found = pixels_of(odd_images / "hopper_gray.jpg")
    assert np.array_equal(found[..., 0], found[..., 1])
    assert np.array_equal(found[..., 0], found[..., 2])
    luma = pixels_of(odd_images / "hopper.jpg") @ [0.299, 0.587, 0.114]
    assert np.abs(found[..., 0] - luma).mean() < 5


@pytest.mark.parametrize("name", ["pil_sample_cmyk.jpg", "tiff_strip_cmyk_jpeg.tif"])
def test_cmyk_is_converted_by_its_formula(odd_images: Path, name: str) -> None:
    with Image.open(odd_images / name) as image:
        assert image.mode == "CMYK"
        cyan_to_black = np.asarray(image, dtype=float) / 255
    expected = 255 * (1 - cyan_to_black[..., :3]) * (1 - cyan_to_black[..., 3:])
    assert np.abs(pixels_of(odd_images / name) - expected).max() <= 1.5


@pytest.mark.parametrize("name", ["12in16bit.tif", "16_bit_noise.tif"])
def test_of_sixteen_bits_the_upper_eight_are_kept(odd_images: Path, name: str) -> None:
    with Image.open(odd_images / name) as image:
        values = np.asarray(image).astype(np.int64)
    found = pixels_of(odd_images / name)
    assert values.max() > (255 if "noise" in name else 0)  # the other one is nearly black
    assert np.array_equal(found, np.repeat((values // 256)[..., None], 3, axis=2))


@pytest.mark.parametrize(
    "name",
    ["transparent.webp", "iss634.webp", "num_plays.png", "p_16.png", "transparent.gif",
     "dispose_bgnd_rgba.gif",
     "mode_palette_1bit_alpha.png", "pil123p.png", "mode_16bit.png"],
)  # fmt: skip
def test_what_is_transparent_lies_over_white(odd_images: Path, name: str) -> None:
    with Image.open(odd_images / name) as image:
        layer = np.asarray(image.convert("RGBA"), dtype=float)
    alpha = layer[..., 3:] / 255
    expected = layer[..., :3] * alpha + 255 * (1 - alpha)
    assert np.abs(pixels_of(odd_images / name) - expected).max() <= 1.5


@pytest.mark.parametrize("name", ["chi.gif", "frozenpond.mpo", "iss634.webp"])
def test_of_several_frames_the_first_is_taken(odd_images: Path, name: str) -> None:
    with Image.open(odd_images / name) as image:
        assert image.n_frames > 1  # type: ignore[attr-defined]
        first = np.asarray(image.convert("RGB"), dtype=float)
        image.seek(1)
        second = np.asarray(image.convert("RGB"), dtype=float)
    found = pixels_of(odd_images / name)
    assert np.abs(found - first).mean() < np.abs(found - second).mean()


def test_a_folder_of_them_is_trained_on_without_the_bad_ones(
    odd_images: Path, tmp_path: Path
) -> None:
    odd = [path for path in sorted(odd_images.iterdir()) if path.suffix not in ("", ".ico", ".mpo")]
    for number, path in enumerate(odd):
        folder = tmp_path / "images" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        # upper-case suffixes, blanks and letters beyond ASCII are read like others
        shutil.copyfile(
            path, folder / f"{path.stem} größe{path.suffix.upper() if number % 3 else path.suffix}"
        )
    data = ImageFolder(
        str(tmp_path / "images"), image_size=16, batch_size=5, num_workers=0, test_fraction=0,
        max_bad_fraction=0.2,
        cache="none",
    )  # fmt: skip
    data.setup("fit")
    bad = [name for name in BAD if Path(name).suffix not in ("", ".ico")]
    assert sorted(
        Path(defect.name).name.partition(" ")[0] for defect in data.defects.found
    ) == sorted(Path(name).stem for name in bad)
    num_images = 0
    for batch in [*data.train_dataloader(), *data.val_dataloader()]:
        assert batch[0].dtype == torch.uint8
        num_images += len(batch[0])
    assert num_images == len(odd) - len(bad)
    assert data.defects.take_noted() == []
