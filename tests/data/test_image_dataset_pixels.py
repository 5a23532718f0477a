"""Images as a data set hands them over: sizes, parts and errors, whatever they come from."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lightkit.data.image_dataset import Box, Decoded, Encoded, PhotoPixels, Pixels
from lightkit.data.image_folder import ImageFolder
from lightkit.errors import DataError
from lightkit.images.image_file import UnreadableImageError, read_rgb

SHAPE = (40, 56, 3)
Array = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


def noise() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, SHAPE, dtype=np.uint8))


def encoded(image: Image.Image, kind: str) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind)
    return stream.getvalue()


def read_only(image: Image.Image) -> Decoded:
    pixels = np.array(image)
    pixels.flags.writeable = False
    return Decoded(pixels)


KINDS: dict[str, Callable[[], Pixels]] = {
    "decoded": lambda: Decoded(np.array(noise())),
    "read-only": lambda: read_only(noise()),
    "png": lambda: Encoded(encoded(noise(), "PNG")),
    "jpeg": lambda: Encoded(encoded(noise(), "JPEG")),
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_a_part_is_that_of_the_whole(make: Callable[[], Pixels]) -> None:
    pixels = make()
    assert pixels.size == SHAPE[:2]
    expected = np.asarray(pixels.whole())
    for box in (Box(0, 0, 40, 56), Box(3, 5, 20, 30), Box(0, 0, 7, 56), Box(39, 55, 1, 1)):
        part = make().cropped(box, (box.height, box.width)).permute(1, 2, 0).numpy()
        assert np.array_equal(
            part, expected[box.top : box.top + box.height, box.left : box.left + box.width]
        )


def test_what_is_given_from_decoded_pixels_can_be_changed() -> None:
    pixels = np.array(noise())
    Decoded(pixels).cropped(Box(0, 0, 40, 56), (40, 56)).zero_()
    assert np.array_equal(pixels, np.asarray(noise()))


def pixels_or_reason(read: Callable[[], Array]) -> Array | str:
    try:
        return read()
    except UnreadableImageError as error:
        return error.reason


def read_all(pixels: Encoded) -> Array:
    part: Array = pixels.cropped(Box(0, 0, *pixels.size), pixels.size).permute(1, 2, 0).numpy()
    return part


def test_odd_images_come_as_the_one_rule_reads_them(odd_images: Path) -> None:
    num_read = 0
    for path in sorted(path for path in odd_images.rglob("*") if path.is_file()):
        expected, pixels = pixels_or_reason(lambda: np.asarray(read_rgb(path))), Encoded(path)  # noqa: B023
        part = pixels_or_reason(lambda: read_all(pixels))  # noqa: B023
        assert type(part) is type(expected)
        assert np.array_equal(part, expected), path
        num_read += not isinstance(part, str)
    assert num_read > 20


def test_a_jpeg_that_fails_is_reported_in_the_words_of_the_rule(tmp_path: Path) -> None:
    data = encoded(noise(), "JPEG")
    cut = tmp_path / "cut.jpg"
    cut.write_bytes(data[: len(data) // 2])
    with pytest.raises(
        UnreadableImageError, match=r"cut\.jpg: this image cannot be decoded \(.*truncated"
    ):
        Encoded(cut).cropped(Box(0, 0, 40, 56), (40, 56))


@pytest.mark.parametrize("spoil", ["vanished", "folder", "pipe"])
def test_a_file_that_is_none_any_more_is_unreadable_and_nobody_waits_for_it(
    tmp_path: Path, spoil: str
) -> None:
    path = tmp_path / "a.jpg"
    if spoil == "folder":
        path.mkdir()
    elif spoil == "pipe":
        os.mkfifo(path)
    with pytest.raises(UnreadableImageError, match=r"a\.jpg") as raised:
        _ = Encoded(path).size
    assert raised.value.reason == (
        "No such file or directory" if spoil == "vanished" else "no file any more"
    )
    assert raised.value.exit_code == DataError.exit_code


def test_bytes_are_called_by_their_name() -> None:
    with pytest.raises(
        UnreadableImageError, match=r"^table, row 7: this image cannot be decoded \(not an image"
    ):
        Encoded(b"no image", name="table, row 7").whole()


def test_a_split_of_files_gives_what_the_untransformed_split_gives(
    make_images: Callable[..., Path],
) -> None:
    data = ImageFolder(
        str(make_images(*(f"{name}/{number}.png" for name in "ab" for number in range(8)))),
        test_fraction=0,
    )
    data.setup("fit")
    source, untransformed = PhotoPixels(data.index.splits["train"]), data.untransformed("train")
    assert len(source) == len(untransformed) > 0
    for index in range(len(source)):
        image, label = untransformed[index]
        assert np.array_equal(np.asarray(source.pixels(index).whole()), np.asarray(image))
        assert source.label(index) == label
        assert isinstance(label, int)
        assert Path(source.name(index)).parent.name == data.class_names[label]
