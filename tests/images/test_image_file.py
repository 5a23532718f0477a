"""Any image that Pillow can decode comes out in RGB.

Any other is named in the first line of the error.
"""

from __future__ import annotations

import io
import pickle
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, features

from lightkit.data.image_folder import ImageFolder
from lightkit.images.image_file import (
    IMAGE_SUFFIXES,
    UnreadableImageError,
    decode_rgb,
    overlay_white,
    pillow_warnings,
    read_rgb,
    try_read_rgb,
)
from lightkit.images.verdicts import judge_images

BROKEN = {
    "LICENSE", "badwidth.bmp", "broken_data_stream.png", "decompression_bomb.ico",
    "png_decompression_dos.png", "shortfile.bmp", "truncated_end_chunk.png", "truncated_jpeg.jpg",
    "ultrahdr.jpg",
}  # fmt: skip


def complaint_about(path: Path) -> str | None:
    try:
        read_rgb(path)
    except UnreadableImageError as error:
        return str(error)
    return None


def test_odd_images_are_decoded_or_named(odd_images: Path) -> None:
    complaints = {path: complaint_about(path) for path in sorted(odd_images.iterdir())}
    rejected = {path: complaint for path, complaint in complaints.items() if complaint}
    assert {path.name for path in rejected} == BROKEN
    assert all(
        text.startswith(f"{path}: this image cannot be decoded (")
        for path, text in rejected.items()
    )


def test_the_orientation_tag_is_followed(odd_images: Path) -> None:
    upright = np.asarray(read_rgb(odd_images / "hopper.jpg"), dtype=float)
    for number in (3, 5, 8):
        turned = np.asarray(read_rgb(odd_images / f"hopper_orientation_{number}.jpg"), dtype=float)
        assert np.abs(turned - upright).mean() < 5


@pytest.mark.parametrize(
    ("mode", "background", "options"),
    [
        ("RGBA", (0, 0, 0, 0), {}),
        ("LA", (0, 0), {}),
        ("P", 0, {"transparency": 0}),
        ("RGB", 0, {"transparency": (0, 0, 0)}),
    ],
    ids=["RGBA", "LA", "P", "RGB"],
)
def test_transparency_becomes_white(
    tmp_path: Path, mode: str, background: Any, options: dict[str, Any]
) -> None:
    Image.new(mode, (4, 4), background).save(tmp_path / "clear.png", **options)
    assert read_rgb(tmp_path / "clear.png").getpixel((1, 1)) == (255, 255, 255)


def test_sixteen_bits_keep_their_brightness(tmp_path: Path) -> None:
    Image.fromarray(np.full((4, 4), 0x8000, dtype=np.uint16)).save(tmp_path / "grey.png")
    assert read_rgb(tmp_path / "grey.png").getpixel((1, 1)) == (128, 128, 128)


def test_too_many_pixels_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("L", (40, 40)).save(tmp_path / "large.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(
        UnreadableImageError, match=r"large\.png: this image cannot be decoded .*decompression bomb"
    ):
        read_rgb(tmp_path / "large.png")
    with pillow_warnings():
        assert "bomb" in str(try_read_rgb(str(tmp_path / "large.png"))[1])


def test_the_error_survives_pickling() -> None:
    assert str(pickle.loads(pickle.dumps(UnreadableImageError("a.jpg: bad")))) == "a.jpg: bad"


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_image_that_breaks_before_its_prediction_is_named_in_the_first_line(
    make_images: Any, num_workers: int
) -> None:
    root = make_images(*(f"{name}/{number}.png" for name in "ab" for number in range(8)))
    data = ImageFolder(
        str(root), image_size=8, num_workers=num_workers, test_fraction=0, val_fraction=0.5
    )
    data.setup("predict")
    for path in root.glob("*/*.png"):
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
    with pytest.raises(
        UnreadableImageError,
        match=r"^/[^\n]*\.png: this image cannot be decoded \([^\n]*\n?[^\n]*$",
    ) as e:
        list(data.predict_dataloader())
    assert str(e.value).splitlines()[0].startswith(str(root))
    assert "Traceback" not in str(e.value)


def png(depth: int, colour_type: int, row: bytes, *, clear: bytes) -> io.BytesIO:
    """A PNG of two pixels with one transparent colour, unwritable in each form otherwise."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 1, depth, colour_type, 0, 0, 0))
    body = chunk(b"tRNS", clear) + chunk(b"IDAT", zlib.compress(b"\0" + row)) + chunk(b"IEND", b"")
    return io.BytesIO(b"\x89PNG\r\n\x1a\n" + head + body)


@pytest.mark.parametrize(
    ("depth", "colour_type", "row", "clear", "second"),
    [
        (1, 0, b"\x40", b"\0\0", 255),
        (2, 0, b"\x60", b"\0\1", 170),
        (4, 0, b"\x18", b"\0\1", 136),
        (8, 0, b"\x12\x80", b"\0\x12", 128),
        (16, 0, b"\x12\x34\x80\0", b"\x12\x34", 128),
        (8, 2, b"\x12\x12\x12\x80\x80\x80", b"\0\x12" * 3, 128),
        (16, 2, b"\x12\x34" * 3 + b"\x80\0" * 3, b"\x12\x34" * 3, 128),
    ],
    ids=[
        "1-bit grey",
        "2-bit grey",
        "4-bit grey",
        "8-bit grey",
        "16-bit grey",
        "8-bit colour",
        "16-bit colour",
    ],
)
def test_a_transparent_colour_of_any_depth_becomes_white(
    depth: int, colour_type: int, row: bytes, clear: bytes, second: int
) -> None:
    image = decode_rgb(png(depth, colour_type, row, clear=clear), name="it")
    assert [image.getpixel((x, 0)) for x in (0, 1)] == [(255, 255, 255), (second, second, second)]


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
@pytest.mark.parametrize("alpha", [0, 64, 200, 255])
def test_what_is_half_transparent_is_mixed_with_white(mode: str, alpha: int) -> None:
    colour = (40, 40, 40, alpha) if mode == "RGBA" else (40, alpha)
    red, green, blue = overlay_white(Image.new(mode, (1, 1), colour)).getpixel((0, 0))  # type: ignore[misc]
    assert red == green == blue
    assert abs(red - (40 * alpha + 255 * (255 - alpha)) / 255) <= 1


@pytest.mark.parametrize("number", range(1, 9))
def test_each_orientation_is_turned_upright(number: int, tmp_path: Path) -> None:
    upright = np.zeros((16, 32, 3), dtype=np.uint8)
    upright[:8, :8], upright[8:, 24:] = (255, 0, 0), (0, 0, 255)
    # what a camera stores, from the definition of each number: where row 0 and column 0 of the
    # stored image lie
    stored = {
        1: upright, 2: upright[:, ::-1], 3: upright[::-1, ::-1], 4: upright[::-1],
        5: upright.transpose(1, 0, 2), 6: upright.transpose(1, 0, 2)[::-1],
        7: upright.transpose(1, 0, 2)[::-1, ::-1], 8: upright.transpose(1, 0, 2)[:, ::-1],
    }[number]  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = number
    Image.fromarray(np.ascontiguousarray(stored)).save(tmp_path / "turned.png", exif=exif)
    assert np.array_equal(np.asarray(read_rgb(tmp_path / "turned.png")), upright)


@pytest.mark.parametrize("number", [0, 9, 65535])
def test_an_orientation_that_there_is_not_turns_nothing(number: int, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = number
    Image.new("RGB", (4, 2)).save(tmp_path / "odd.png", exif=exif)
    assert read_rgb(tmp_path / "odd.png").size == (4, 2)


@pytest.mark.parametrize(
    ("values", "grey"),
    [(0x80FF, 128), (0xFFFF, 255), (0x00FF, 0)],
    ids=["middle", "white", "black"],
)
@pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
def test_of_sixteen_bits_the_upper_eight_are_kept(
    tmp_path: Path, values: int, grey: int, suffix: str
) -> None:
    image = Image.fromarray(np.full((4, 4), values, dtype=np.uint16))
    image.save(tmp_path / f"grey.{suffix}")
    assert read_rgb(tmp_path / f"grey.{suffix}").getpixel((1, 1)) == (grey, grey, grey)


def test_cmyk_is_converted(tmp_path: Path) -> None:
    Image.new("CMYK", (8, 8), (255, 0, 0, 0)).save(tmp_path / "cyan.tif")
    assert read_rgb(tmp_path / "cyan.tif").getpixel((4, 4)) == (0, 255, 255)


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_of_an_animation_the_first_frame_is_taken(kind: str, tmp_path: Path) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    options = {"lossless": True} if kind == "WEBP" else {}
    frames[0].save(
        tmp_path / "moving", format=kind, save_all=True, append_images=frames[1:], **options
    )
    assert read_rgb(tmp_path / "moving").getpixel((4, 4)) == (255, 0, 0)


@pytest.mark.parametrize("kind", [np.int32, np.float32], ids=["integers", "floats"])
@pytest.mark.parametrize("most", [1, 255, 70_000])
def test_pixels_of_32_bits_are_no_image_as_nobody_knows_what_is_white(
    tmp_path: Path, kind: type, most: int
) -> None:
    Image.fromarray(np.linspace(0, most, 16).reshape(4, 4).astype(kind)).save(tmp_path / "grey.tif")
    with pytest.raises(
        UnreadableImageError, match="32-bit pixels have no agreed range; save it with 8 or 16 bits"
    ):
        read_rgb(tmp_path / "grey.tif")
    (verdict,) = judge_images([tmp_path / "grey.tif"])
    assert verdict.defect == "32-bit pixels have no agreed range; save it with 8 or 16 bits"


@pytest.mark.parametrize("suffix", [".dib", ".jp2", ".mpo", ".pnm", ".tga"])
def test_an_image_of_a_rarer_kind_is_read(tmp_path: Path, suffix: str) -> None:
    if suffix == ".jp2" and not features.check("jpg_2000"):
        pytest.skip("needs a Pillow with JPEG 2000")
    assert suffix in IMAGE_SUFFIXES
    image = Image.new("RGB", (8, 8), (255, 0, 0))
    image.save(tmp_path / f"a{suffix}", format="PPM" if suffix == ".pnm" else None)
    red, green, blue = read_rgb(tmp_path / f"a{suffix}").getpixel((4, 4))  # type: ignore[misc]
    assert red > 250
    assert max(green, blue) < 5
