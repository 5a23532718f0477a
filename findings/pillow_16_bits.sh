#!/usr/bin/env bash
# Pillow 13.0.0: four valid kinds of 16-bit images whose pixels come out wrong, without an error or a warning.
#
# Seen, with files written byte by byte from known pixels:
# 1. TIFF, grey, 16 bits, little-endian, PhotometricInterpretation 0 (white is zero): the values are not inverted, while
#    those of the same file with 8 bits are. The photo is a negative.
# 2. TIFF, RGB, 16 bits, PlanarConfiguration 2 (planes), uncompressed: each byte is taken for a pixel (raw mode "R" for
#    planes of two bytes), so that the picture is noise. With 8 bits it is right.
# 3. TIFF, grey, 12 bits: opened in mode I;16 with values up to 4095 that are not scaled, so that the usual `>> 8` of that
#    mode gives a nearly black photo.
# 4. PNG, RGB, 16 bits, with a transparent colour (tRNS): pixels are cut to 8 bits and the colour is not, so that no pixel
#    is transparent after convert("RGBA"). Its upper bytes alone would make neighbouring colours transparent too.
# EXIF orientations of 16-bit files, in contrast, are all eight right.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pillow==13.0.0 numpy

cat > "$folder/show.py" <<'PYTHON'
import io
import struct
import sys
import zlib

import numpy as np
from PIL import Image

random = np.random.default_rng(0)


def tiff(strips, size, bits, channels, photometric, planar=1):
    width, height = size
    tags = [
        (256, "I", [width]), (257, "I", [height]), (258, "H", [bits] * channels), (259, "H", [1]),
        (262, "H", [photometric]), (273, "I", [0] * len(strips)), (277, "H", [channels]), (278, "I", [height]),
        (279, "I", [len(strip) for strip in strips]), (284, "H", [planar]),
    ]
    at, places = 10 + 12 * len(tags) + 4, {}
    for tag, kind, values in tags:
        if (length := struct.calcsize(f"<{len(values)}{kind}")) > 4:
            places[tag], at = at, at + length
    starts = [at + sum(map(len, strips[:number])) for number in range(len(strips))]
    entries = body = b""
    for tag, kind, values in tags:
        raw = struct.pack(f"<{len(values)}{kind}", *(starts if tag == 273 else values))
        entries += struct.pack("<HHI", tag, 3 if kind == "H" else 4, len(values))
        entries += struct.pack("<I", places[tag]) if tag in places else raw.ljust(4, b"\0")
        body += raw if tag in places else b""
    return b"II" + struct.pack("<HIH", 42, 8, len(tags)) + entries + b"\0" * 4 + body + b"".join(strips)


def pixels(content):
    return np.asarray(Image.open(io.BytesIO(content))).astype(np.int64)


seen = {}
grey = random.integers(0, 65536, (5, 4))
negative = pixels(tiff([grey.astype("<u2").tobytes()], (4, 5), 16, 1, 0))
of_bytes = pixels(tiff([(grey >> 8).astype("u1").tobytes()], (4, 5), 8, 1, 0))
seen["16 bits, white is zero: not inverted"] = (negative == grey).all() and (of_bytes == 255 - (grey >> 8)).all()

color = random.integers(0, 65536, (5, 4, 3))
planes = [color[..., channel].astype("<u2").tobytes() for channel in range(3)]
found = pixels(tiff(planes, (4, 5), 16, 3, 2, planar=2))
planes = [(color[..., channel] >> 8).astype("u1").tobytes() for channel in range(3)]
right = pixels(tiff(planes, (4, 5), 8, 3, 2, planar=2))
stored = np.frombuffer(color[..., 0].astype("<u2").tobytes(), np.uint8)[:20].reshape(5, 4)
seen["16 bits in planes: bytes are pixels"] = (found[..., 0] == stored).all() and (right == color >> 8).all()

values = random.integers(0, 4096, (5, 4))
first, second = values.reshape(-1, 2).T
packed = np.stack([first >> 4, (first & 15) << 4 | second >> 8, second & 255], axis=1).astype(np.uint8).tobytes()
image = Image.open(io.BytesIO(tiff([packed], (4, 5), 12, 1, 1)))
seen["12 bits: mode I;16, not scaled"] = image.mode == "I;16" and (np.asarray(image) == values).all()


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


key = color[2, 2]
rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in color)
png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 5, 16, 2, 0, 0, 0))
png += chunk(b"tRNS", key.astype(">u2").tobytes()) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
alpha = np.asarray(Image.open(io.BytesIO(png)).convert("RGBA"))[..., 3]
seen["16 bits, transparent colour: none is"] = (alpha == 255).all()

for name, is_so in seen.items():
    print(f"{name:40}{bool(is_so)}")
sys.exit(0 if all(seen.values()) else 1)
PYTHON
"$folder/venv/bin/python" "$folder/show.py"
