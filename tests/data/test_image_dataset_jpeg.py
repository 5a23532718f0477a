"""JPEG files by the fast way: the same pixels as by the rule for images of all kinds, or none."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lightkit.data.image_dataset import Box, Encoded, resized
from lightkit.images.image_file import MachineLimitError, UnreadableImageError, decode_rgb

Pixels = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


def picture(height: int = 48, width: int = 64) -> Image.Image:
    """Smooth, so that JPEG keeps it, and unlike itself whichever way it is turned."""
    rows, columns = np.mgrid[0:height, 0:width]
    channels = [
        rows * 255 // height,
        columns * 255 // width,
        (rows + 2 * columns) * 255 // (height + 2 * width),
    ]
    return Image.fromarray(np.stack(channels, axis=2).astype(np.uint8))


def encoded(image: Image.Image, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=95, **options)
    return stream.getvalue()


def turned(image: Image.Image, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(image, exif=exif)


def whole(data: bytes) -> Pixels:
    jpeg = Encoded(data)
    return jpeg.cropped(Box(0, 0, *jpeg.size), jpeg.size).permute(1, 2, 0).numpy()


def by_the_rule(data: bytes) -> Pixels:
    return np.asarray(decode_rgb(io.BytesIO(data), name="it"))


def assert_as_by_the_rule(data: bytes) -> None:
    try:
        expected = by_the_rule(data)
    except UnreadableImageError:
        with pytest.raises(UnreadableImageError):
            whole(data)
    else:
        assert np.array_equal(whole(data), expected)


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("RGB", {}),
        ("L", {}),
        ("RGB", {"progressive": True}),
        ("RGB", {"subsampling": 0}),
        ("RGB", {"comment": b"x" * 99}),
    ],
    ids=["colour", "grey", "progressive", "444", "comment"],
)
def test_pixels_are_those_of_the_rule(mode: str, options: dict[str, object]) -> None:
    data = encoded(picture().convert(mode), **options)
    assert np.array_equal(whole(data), by_the_rule(data))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_image_is_upright(orientation: int) -> None:
    data = turned(picture(), orientation)
    assert np.array_equal(whole(data), by_the_rule(data))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("times", [1, 3], ids=["whole", "coarse"])
def test_a_box_counts_in_upright_pixels(orientation: int, times: int) -> None:
    data = turned(picture(96, 120), orientation)
    upright = by_the_rule(data)
    jpeg = Encoded(data)
    assert jpeg.size == upright.shape[:2]
    box, size = Box(24, 12, 48, 60), (48 // times, 60 // times)
    expected = Image.fromarray(upright[24:72, 12:72]).resize(
        (size[1], size[0]), Image.Resampling.BILINEAR
    )
    apart = np.abs(
        jpeg.cropped(box, size).permute(1, 2, 0).numpy().astype(int) - np.asarray(expected)
    )
    # a half pixel of the coarse image, at 5 grey values a pixel
    assert apart.max() <= (2 if times == 1 else 12)
    assert apart.mean() <= 4


@pytest.mark.parametrize("times", [2, 4, 8])
def test_a_large_part_is_decoded_coarsely(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(picture(160, 240))
    jpeg = Encoded(data)
    sizes: list[tuple[int, ...]] = []

    def watched(pixels: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        sizes.append(tuple(pixels.shape))
        return resized(pixels, size)

    monkeypatch.setattr("lightkit.data.image_dataset.resized", watched)
    part = jpeg.cropped(Box(0, 0, 160, 240), (160 // times, 240 // times))
    assert sizes == [(160 // times, 240 // times, 3)]
    expected = np.asarray(
        Image.fromarray(by_the_rule(data)).resize(
            (240 // times, 160 // times), Image.Resampling.BOX
        )
    )
    assert np.abs(part.permute(1, 2, 0).numpy().astype(int) - expected).max() <= 4


def test_a_part_smaller_than_twice_the_result_is_decoded_in_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jpeg = Encoded(encoded(picture(100, 100)))
    monkeypatch.setattr(
        "lightkit.data.image_dataset._decode_coarsely", lambda *_: pytest.fail("decoded coarsely")
    )
    assert jpeg.cropped(Box(0, 0, 100, 100), (51, 51)).shape == (3, 51, 51)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xd8\xff",
        b"\xff\xd8\xff\xe0\x00",
        encoded(picture())[:30],
        encoded(picture().convert("CMYK")),
        b"not an image at all",
        encoded(picture()).replace(b"\xff\xc0\x00\x11\x08", b"\xff\xc0\x00\x11\x0c"),  # 12 bits
        encoded(picture()).replace(
            b"\xff\xc0\x00\x11\x08\x00\x30\x00\x40", b"\xff\xc0\x00\x11\x08\xff\xff\xff\xff"
        ),
        encoded(picture()).replace(
            b"\xff\xc0\x00\x11\x08\x00\x30", b"\xff\xc0\x00\x11\x08\x00\x00"
        ),
    ],
    ids=["empty", "start", "segment", "cut", "cmyk", "text", "12 bits", "bomb", "no height"],
)
def test_what_is_not_plain_is_left_to_the_rule(data: bytes) -> None:
    assert_as_by_the_rule(data)


def test_a_cut_file_is_an_error() -> None:
    data = encoded(picture(200, 200))
    for size in ((150, 150), (50, 50)):
        with pytest.raises(UnreadableImageError, match="truncated"):
            Encoded(data[: len(data) // 2]).cropped(Box(0, 0, 200, 200), size)


def test_photos_are_decoded_as_by_the_rule(photos: Path) -> None:
    for path in sorted(photos.glob("*/*.jpg"))[::40]:
        data = path.read_bytes()
        assert np.array_equal(whole(data), by_the_rule(data)), path


def test_odd_images_are_decoded_as_by_the_rule(odd_images: Path) -> None:
    files = [path for path in sorted(odd_images.rglob("*")) if path.is_file()]
    assert files
    for path in files:
        assert_as_by_the_rule(path.read_bytes())


def test_resized_pixels_are_those_of_pillow_within_one() -> None:
    pixels = np.asarray(picture(37, 53))
    found = resized(torch.from_numpy(pixels.copy()), (20, 24)).permute(1, 2, 0).numpy().astype(int)
    expected = np.asarray(picture(37, 53).resize((24, 20), Image.Resampling.BILINEAR))
    assert np.abs(found - expected).max() <= 1


def test_too_little_memory_for_the_orientation_is_the_machines_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: Image.Image) -> None:
        raise MemoryError

    photo = turned(picture(48, 64), 6)
    assert Encoded(photo).size == (64, 48)
    monkeypatch.setattr(Image.Image, "getexif", fail)
    with pytest.raises(MachineLimitError, match=r"IMG_1\.jpg: .*may not be its fault.*ulimit -v"):
        Encoded(photo, name="IMG_1.jpg").size  # noqa: B018 (it reads the head)
    with pytest.raises(MachineLimitError, match=r"IMG_1\.jpg"):
        Encoded(photo, name="IMG_1.jpg").whole()
