"""Mask files: the class of each pixel, as a number in grey or in a palette, or as a colour.

A table has the colours. No torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from lightkit.errors import ConfigError, join_names
from lightkit.images.image_file import UnreadableImageError, pillow_warnings

IGNORED = -100
"""Number, in a mask that was read, of a pixel that counts for nothing; torch's `cross_entropy`
passes over it."""
IGNORED_VALUE = 255
"""Number of such a pixel in a file, where no class has it: that of PASCAL VOC, Cityscapes and
ADE20K."""
UNKNOWN = -1
"""Number, in a mask that was read, of a pixel whose value is no class."""
Color = tuple[int, int, int]
Mask = NDArray[np.int64]
_KEY = "data.init_args.classes"
_HEX = re.compile(r"#?([0-9a-fA-F]{2})([0-9a-fA-F]{2})([0-9a-fA-F]{2})")
_MANY = 4  # values that an error names
_PALETTE = (
    *(
        (0, 0, 0),
        (230, 25, 75),
        (60, 180, 75),
        (0, 130, 200),
        (255, 225, 25),
        (245, 130, 48),
        (145, 30, 180),
    ),
    *(
        (70, 240, 240),
        (240, 50, 230),
        (210, 245, 60),
        (250, 190, 212),
        (0, 128, 128),
        (170, 110, 40),
        (128, 0, 0),
    ),
)


@dataclass(frozen=True)
class MaskClasses:
    """The classes of masks, and what stands for each in a file.

    Args:
        names: In the order of their numbers.
        codes: Of each its number in the file, or its colour as
            ``red * 65536 + green * 256 + blue``.
        ignored: That of pixels that count for nothing; None where there are none.
        are_colors: Whether they are colours.
    """

    names: tuple[str, ...]
    codes: tuple[int, ...]
    ignored: int | None = None
    are_colors: bool = False

    def describe(self, code: int) -> str:
        """Write a number, or a colour as ``#ff0000``."""
        return f"#{code:06x}" if self.are_colors else str(code)

    def read(self, path: Path) -> Mask:
        """Read a mask: the class of each pixel, `IGNORED` or `UNKNOWN`, upright as its picture.

        Raises:
            UnreadableImageError: If it cannot be decoded, or is coloured where numbers are
                expected.
        """
        return self.find_classes(read_codes(path, are_colors=self.are_colors))

    def find_classes(self, codes: NDArray[np.int64]) -> Mask:
        """Find the class of each pixel."""
        keys = [*self.codes, *([] if self.ignored is None else [self.ignored])]
        numbers = [*range(len(self.codes)), *([] if self.ignored is None else [IGNORED])]
        if max(keys) < 1 << 16:  # by a table
            table = np.full(max(keys) + 2, UNKNOWN, np.int64)
            table[keys] = numbers
            # a negative number would count from the end of the table
            is_inside = (codes >= 0) & (codes <= max(keys))
            return table[np.where(is_inside, codes, max(keys) + 1)]
        order = np.argsort(keys)
        known = np.array(keys)[order]
        places = np.searchsorted(known, codes).clip(max=len(known) - 1)
        return np.where(known[places] == codes, np.array(numbers)[order][places], UNKNOWN)


def parse_classes(
    classes: Sequence[str] | Mapping[str, Any] | None,
    ignore_index: int | Sequence[int] | str | None,
) -> MaskClasses | None:
    """Parse the classes of masks as a config has them.

    None where it has none, and the masks say them.

    Args:
        classes: Names in the order of their numbers from 0; or by name the number or the colour of
            each.
        ignore_index: Number or colour of pixels that count for nothing; ``auto`` is 255 where no
            class has it.

    Raises:
        ConfigError: If a class is neither, or two have the same.
    """
    if classes is None:
        if ignore_index not in (None, "auto") and not isinstance(ignore_index, int):
            raise ConfigError(
                f"data.init_args.ignore_index: a colour needs {_KEY},"
                " with the colours of the classes."
            )
        return None
    given = (
        dict(classes)
        if isinstance(classes, Mapping)
        else {name: at for at, name in enumerate(classes)}
    )
    if len(given) < 2 or len(given) < len(classes):
        raise ConfigError(
            f"{_KEY}: expected two classes or more with different names, got {classes}."
        )
    are_colors = not isinstance(next(iter(given.values())), int)
    codes = [
        _parse_code(f"{_KEY}.{name}", value, are_colors=are_colors) for name, value in given.items()
    ]
    _refuse_equal_codes(given, codes)
    ignored = _parse_ignored(
        ignore_index, dict(zip(codes, given, strict=True)), are_colors=are_colors
    )
    return MaskClasses(tuple(given), tuple(codes), ignored, are_colors)


def _refuse_equal_codes(names: Iterable[str], codes: Sequence[int]) -> None:
    """Refuse classes with one number or colour.

    Raises:
        ConfigError: If there are such classes.
    """
    twice = sorted({code for code in codes if codes.count(code) > 1})
    if twice:
        same = [name for name, code in zip(names, codes, strict=True) if code == twice[0]]
        raise ConfigError(
            f"{_KEY}: {join_names(same)} have the same value; a pixel is of one class."
        )


def _parse_ignored(ignore_index: Any, names: Mapping[int, str], *, are_colors: bool) -> int | None:
    """Parse the number or the colour of pixels that count for nothing; None where there is none.

    Args:
        ignore_index: As a config has it.
        names: Name of each class, by its number or colour.
        are_colors: Whether they are colours.

    Raises:
        ConfigError: If it is that of a class.
    """
    if ignore_index is None:
        return None
    if ignore_index == "auto":
        return None if are_colors or IGNORED_VALUE in names else IGNORED_VALUE
    ignored = _parse_code("data.init_args.ignore_index", ignore_index, are_colors=are_colors)
    if ignored in names:
        raise ConfigError(
            f"data.init_args.ignore_index: {ignore_index} is that of class {names[ignored]!r}."
            " Leave out one."
        )
    return ignored


def _is_number(value: Any, limit: int) -> bool:
    return type(value) is int and 0 <= value < limit


def _parse_code(key: str, value: Any, *, are_colors: bool) -> int:
    """Parse a number, or a colour.

    Raises:
        ConfigError: If it is none.
    """
    if not are_colors:
        if _is_number(value, 1 << 16):
            return int(value)
        raise ConfigError(
            f"{key}: expected a number from 0 to 65535, as the first class has one, got {value!r}."
        )
    parts: Any = value
    if isinstance(value, str) and (found := _HEX.fullmatch(value)):
        parts = [int(each, 16) for each in found.groups()]
    is_color = (
        isinstance(parts, (list, tuple))
        and len(parts) == 3
        and all(_is_number(each, 256) for each in parts)
    )
    if not is_color:
        raise ConfigError(
            f"{key}: expected a colour, such as [255, 0, 0] or '#ff0000', got {value!r}."
        )
    red, green, blue = parts
    return int(red << 16 | green << 8 | blue)


def read_codes(path: Path, *, are_colors: bool, file: BinaryIO | None = None) -> NDArray[np.int64]:
    """Read the number or the colour of each pixel, upright, ``(height, width)``.

    Args:
        path: The mask.
        are_colors: Whether colours are expected.
        file: The mask, if it is open.

    Raises:
        UnreadableImageError: If it cannot be decoded, or has colours where numbers are expected.
    """
    try:
        with pillow_warnings(), Image.open(path if file is None else file) as image:
            image.load()
            upright = ImageOps.exif_transpose(image)
            stored = np.asarray(upright.convert("RGB") if are_colors else _drop_alpha(upright))
    except Exception as error:
        raise UnreadableImageError.of(path, error) from error
    with np.errstate(invalid="ignore"):  # NaN and infinity
        pixels = stored.astype(np.int64)
    if stored.dtype.kind == "f" and (pixels != stored).any():
        raise UnreadableImageError(
            f"{path}: this mask has fractions, such as {stored[pixels != stored][0]:g}, where the"
            " number of a class is expected. Save it as whole numbers.",
            reason="a mask of fractions, where whole numbers are expected",
        )
    if pixels.ndim == 2:
        return pixels
    red, green, blue = (pixels[:, :, at] for at in range(3))
    if are_colors:
        return red << 16 | green << 8 | blue
    if (red == green).all() and (green == blue).all():  # grey that was saved in three channels
        return red
    raise UnreadableImageError(
        f"{path}: this mask has colours, and {_KEY} has numbers. Name the colour of each class"
        " there, such as classes: {background: [0, 0, 0], road: [128, 64, 128]}.",
        reason="a mask of colours, where numbers are expected",
    )


def _drop_alpha(image: Image.Image) -> Image.Image:
    """Return an image without its transparency, which says nothing of a class."""
    return image.convert(
        {"LA": "L", "RGBA": "RGB", "PA": "P", "CMYK": "RGB"}.get(image.mode, image.mode)
    )


def find_values(
    path: Path, classes: MaskClasses | None, *, file: BinaryIO | None = None
) -> tuple[tuple[int, int], dict[int, int]]:
    """Return height and width of a mask, and its values that are no class.

    Each with the number of its pixels.

    Args:
        path: The mask.
        classes: Without them all values are returned.
        file: The mask, if it is open.

    Raises:
        UnreadableImageError: As `read_codes`.
    """
    codes = read_codes(path, are_colors=classes is not None and classes.are_colors, file=file)
    size = (int(codes.shape[0]), int(codes.shape[1]))
    others = codes.ravel() if classes is None else codes[classes.find_classes(codes) == UNKNOWN]
    values, counts = np.unique(others, return_counts=True)
    return size, dict(zip(values.tolist(), counts.tolist(), strict=True))


def describe_values(values: Mapping[int, int], classes: MaskClasses) -> str:
    """Write values that are no class, the most frequent first."""
    order = sorted(values, key=lambda code: -values[code])
    shown = [f"{classes.describe(code)} ({values[code]} pixels)" for code in order]
    return join_names(shown, most=_MANY)


def number_classes(
    values: Sequence[int], ignore_index: int | Literal["auto"] | None, *, root: Path
) -> MaskClasses:
    """Make classes of the values that occur in masks, named by their numbers.

    Raises:
        ConfigError: If they are not 0, 1, 2 and so on, so that nobody knows which are classes.
    """
    ignored = IGNORED_VALUE if ignore_index == "auto" else ignore_index
    found = sorted(value for value in values if value != ignored)
    if len(found) >= 2 and found == list(range(len(found))):
        return MaskClasses(tuple(map(str, found)), tuple(found), ignored)
    listed = join_names([*map(str, sorted(values))], most=12)
    example = {"background": 0, "object": max(values)} if len(values) == 2 else None
    hint = (
        f"classes: {example}".replace("'", "")
        if example
        else "classes: {background: 0, road: 7, car: 26}"
    )
    without = (
        f", of which {ignored} counts for nothing (data.init_args.ignore_index)"
        if ignored in values
        else ""
    )
    raise ConfigError(
        f"{root}: the masks have the values {listed}{without}, which are not classes numbered 0, 1,"
        f" 2 and so on. Name them in {_KEY}, such as {hint}."
    )


def choose_colors(num: int) -> list[Color]:
    """Choose a colour for each class: black for the first, then colours that people tell apart."""
    colors = list(_PALETTE[:num])
    # of PASCAL VOC's colour map: three bits of the number to each channel
    for at in range(len(colors), num):
        value = at
        channels = [0, 0, 0]
        for bit in range(7, -1, -1):
            for channel in range(3):
                channels[channel] |= (value >> channel & 1) << bit
            value >>= 3
        colors.append((channels[0], channels[1], channels[2]))
    return colors


def write_mask(path: Path | BinaryIO, mask: NDArray[Any], num_classes: int) -> None:
    """Write a mask as a PNG whose pixels are class numbers, with a palette for viewing.

    Args:
        path: The file, or a stream.
        mask: ``(height, width)``, from 0 up to ``num_classes``.
        num_classes: With more than 256 the file is grey, 16 bits a pixel.
    """
    if num_classes > 256:
        Image.fromarray(mask.astype(np.uint16)).save(path, "PNG")
        return
    height, width = mask.shape
    image = Image.frombytes("P", (width, height), mask.astype(np.uint8).tobytes())
    image.putpalette([channel for color in choose_colors(num_classes) for channel in color])
    image.save(path, "PNG")


def resize_mask(mask: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """Resize a mask to a height and width.

    Of each pixel the one at its centre, "nearest-exact" of torch.
    """
    rows, columns = (_find_centres(have, want) for have, want in zip(mask.shape, size, strict=True))
    resized: NDArray[Any] = mask[rows[:, None], columns[None, :]]
    return resized


def _find_centres(have: int, want: int) -> NDArray[np.int64]:
    # in whole numbers: of (at + 1/2) * have / want the part before the point
    return (2 * np.arange(want, dtype=np.int64) + 1) * have // (2 * want)


def overlay_mask(
    picture: Image.Image, mask: NDArray[Any], num_classes: int, *, alpha: float = 0.5
) -> Image.Image:
    """Lay the colours of a mask over a picture.

    The first class and what is no class stay as they are.

    Args:
        picture: In RGB.
        mask: ``(height, width)``, in any size.
        num_classes: Number of classes.
        alpha: Share of the mask's colour.
    """
    sized = resize_mask(mask, (picture.height, picture.width))
    is_shown = (sized > 0) & (sized < num_classes)
    colors = np.array(choose_colors(num_classes), np.float32)[np.where(is_shown, sized, 0)]
    pixels = np.asarray(picture, np.float32)
    mixed = np.where(is_shown[:, :, None], (1 - alpha) * pixels + alpha * colors, pixels)
    return Image.fromarray(mixed.round().astype(np.uint8))
