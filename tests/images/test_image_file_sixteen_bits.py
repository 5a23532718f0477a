"""PNG and TIFF files of every depth, written byte by byte.

What is read are the pixels, turned and blended by hand.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from lightkit.images.image_file import UnreadableImageError, decode_rgb

Values = npt.NDArray[np.int64]
HEIGHT, WIDTH = 9, 11
GREY, RGB, PALETTE, GREY_ALPHA, RGBA = 0, 2, 3, 4, 6


def turned(pixels: Any, orientation: int) -> Any:
    """Turn stored pixels as EXIF says (CIPA DC-008)."""
    return {
        1: lambda: pixels,
        2: lambda: pixels[:, ::-1],
        3: lambda: pixels[::-1, ::-1],
        4: lambda: pixels[::-1],
        5: lambda: pixels.swapaxes(0, 1),
        6: lambda: np.rot90(pixels, -1),
        7: lambda: np.rot90(pixels, 2).swapaxes(0, 1),
        8: lambda: np.rot90(pixels, 1),
    }[orientation]()


def read(content: bytes) -> Values:
    return np.asarray(decode_rgb(io.BytesIO(content), name="x")).astype(np.int64)


def gap(content: bytes, expected: Any) -> float:
    found = read(content)
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max())


# -- PNG


def chunk(kind: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )


def png_row(row: Values, depth: int) -> bytes:
    if depth == 16:
        return b"\0" + row.astype(">u2").tobytes()
    bits = "".join(format(int(value), f"0{depth}b") for value in row)
    bits += "0" * (-len(bits) % 8)
    return b"\0" + bytes(int(bits[at : at + 8], 2) for at in range(0, len(bits), 8))


def png(
    values: Values, *, depth: int, color: int, extra: Mapping[bytes, bytes], orientation: int
) -> bytes:
    height, width, channels = values.shape
    exif = (
        b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01"
        + struct.pack(">H", orientation)
        + b"\0" * 6
    )
    rows = b"".join(png_row(row, depth) for row in values.reshape(height, width * channels))
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0))
    middle = b"".join(chunk(kind, content) for kind, content in extra.items()) + chunk(
        b"eXIf", exif
    )
    return (
        b"\x89PNG\r\n\x1a\n"
        + head
        + middle
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(
    ("color", "depth", "has_key"),
    [
        *[(GREY, depth, has_key) for depth in (1, 2, 4, 8, 16) for has_key in (False, True)],
        *[(RGB, depth, has_key) for depth in (8, 16) for has_key in (False, True)],
        *[(PALETTE, depth, has_key) for depth in (1, 2, 4, 8) for has_key in (False, True)],
        *[(color, depth, False) for color in (GREY_ALPHA, RGBA) for depth in (8, 16)],
    ],
)
def test_a_png_of_any_depth_is_its_pixels_over_white(
    color: int, depth: int, has_key: bool, orientation: int
) -> None:
    random = np.random.default_rng(color * 100 + depth)
    channels = {GREY: 1, RGB: 3, PALETTE: 1, GREY_ALPHA: 2, RGBA: 4}[color]
    values = random.integers(0, 2**depth, (HEIGHT, WIDTH, channels))
    extra: dict[bytes, bytes] = {}
    alpha: Any = np.ones((HEIGHT, WIDTH, 1))

    if color == PALETTE:
        palette = random.integers(0, 256, (2**depth, 3))
        extra[b"PLTE"] = palette.astype(np.uint8).tobytes()
        shown = palette[values[..., 0]]
        if has_key:
            shares = random.integers(0, 256, 2**depth)
            extra[b"tRNS"] = shares.astype(np.uint8).tobytes()
            alpha = shares[values[..., 0]][..., None] / 255
    else:
        if has_key:
            key = values[2, 3].copy()
            values[4, 4] = key ^ 1  # all but the last bit of a transparent pixel
            extra[b"tRNS"] = key.astype(">u2").tobytes()
            alpha = (values != key).any(axis=-1, keepdims=True)
        bytes_ = values >> 8 if depth == 16 else values * (255 // (2**depth - 1))
        if color in (GREY_ALPHA, RGBA):
            alpha = bytes_[..., -1:] / 255
            bytes_ = bytes_[..., :-1]
        shown = np.broadcast_to(bytes_, (HEIGHT, WIDTH, 3))

    expected = turned(shown * alpha + 255 * (1 - alpha), orientation)
    content = png(values, depth=depth, color=color, extra=extra, orientation=orientation)
    assert gap(content, expected) <= 1


# -- TIFF


def tiff(
    values: Values,
    *,
    order: str,
    bits: int,
    orientation: int,
    photometric: int,
    in_planes: bool = False,
) -> bytes:
    height, width, channels = values.shape
    planes = values.transpose(2, 0, 1) if in_planes else values[None]
    strips = [plane.astype("u1" if bits == 8 else f"{order}u2").tobytes() for plane in planes]
    tags: list[tuple[int, str, Sequence[int]]] = [
        (256, "I", [width]),
        (257, "I", [height]),
        (258, "H", [bits] * channels),
        (259, "H", [1]),
        (262, "H", [photometric]),
        (273, "I", [0] * len(strips)),
        (274, "H", [orientation]),
        (277, "H", [channels]),
        (278, "I", [height]),
        (279, "I", [len(strip) for strip in strips]),
        (284, "H", [2 if in_planes else 1]),
    ]
    at = 8 + 2 + 12 * len(tags) + 4
    places = {}
    for number, kind, given in tags:
        size = struct.calcsize(f"{order}{len(given)}{kind}")
        if size > 4:
            places[number] = at
            at += size
    starts = [at + sum(map(len, strips[:place])) for place in range(len(strips))]
    entries = body = b""
    for number, kind, given in tags:
        raw = struct.pack(f"{order}{len(given)}{kind}", *(starts if number == 273 else given))
        entries += struct.pack(f"{order}HHI", number, 3 if kind == "H" else 4, len(given))
        entries += (
            struct.pack(f"{order}I", places[number]) if number in places else raw.ljust(4, b"\0")
        )
        body += raw if number in places else b""
    head = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HIH", 42, 8, len(tags))
    return head + entries + b"\0" * 4 + body + b"".join(strips)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("order", ["<", ">"], ids=["little-endian", "big-endian"])
@pytest.mark.parametrize(
    ("channels", "bits", "photometric"),
    [(1, 8, 0), (1, 8, 1), (1, 16, 0), (1, 16, 1), (3, 8, 2), (3, 16, 2)],
    ids=["white is 0", "grey", "white is 0, 16 bits", "grey, 16 bits", "RGB", "RGB, 16 bits"],
)
def test_a_tiff_of_any_depth_is_its_pixels_turned(
    channels: int, bits: int, photometric: int, order: str, orientation: int
) -> None:
    if (bits, photometric, order) == (16, 0, ">"):
        pytest.skip("Pillow reads no such file, so that it is listed as a bad image")
    values = np.random.default_rng(bits).integers(0, 2**bits, (HEIGHT, WIDTH, channels))
    shown = values >> (bits - 8)
    expected = np.broadcast_to(255 - shown if photometric == 0 else shown, (HEIGHT, WIDTH, 3))
    content = tiff(values, order=order, bits=bits, orientation=orientation, photometric=photometric)
    assert gap(content, turned(expected, orientation)) == 0


def test_a_tiff_of_12_bits_has_the_upper_8_of_them() -> None:
    values = np.random.default_rng(12).integers(0, 4096, (HEIGHT, 12, 1))
    pairs = values.reshape(-1, 2)
    packed = np.stack(
        [pairs[:, 0] >> 4, (pairs[:, 0] & 15) << 4 | pairs[:, 1] >> 8, pairs[:, 1] & 255], axis=1
    )
    plain = tiff(values, order="<", bits=16, orientation=1, photometric=1)
    head = bytearray(plain[: len(plain) - values.size * 2])
    at = head.index(struct.pack("<HHIH", 258, 3, 1, 16))
    head[at + 8] = 12
    at = head.index(struct.pack("<HHI", 279, 4, 1))
    head[at + 8 : at + 12] = struct.pack("<I", packed.size)
    content = bytes(head) + packed.astype(np.uint8).tobytes()
    assert gap(content, np.broadcast_to(values >> 4, (HEIGHT, 12, 3))) == 0


@pytest.mark.parametrize("order", ["<", ">"], ids=["little-endian", "big-endian"])
@pytest.mark.parametrize("bits", [8, 16])
def test_a_tiff_in_planes_is_its_pixels_or_refused(bits: int, order: str) -> None:
    values = np.random.default_rng(bits).integers(0, 2**bits, (HEIGHT, WIDTH, 3))
    content = tiff(values, order=order, bits=bits, orientation=1, photometric=2, in_planes=True)
    if bits == 8:
        assert gap(content, values) == 0
    else:
        with pytest.raises(UnreadableImageError, match="16-bit colours in planes"):
            read(content)
