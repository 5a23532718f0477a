"""`lightkit convert`: a folder of photos as a Delta or Parquet table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from lightkit.config import near
from lightkit.errors import ConfigError, visible

__all__ = ["ConvertOptions", "OnBadImage", "convert"]

OnBadImage = Literal["skip", "error"]

_USAGE = "usage: lightkit convert IMAGES TABLE [--format delta|parquet] [--partitions N] [--row-group-mb MB]"
_HELP = f"""\
{_USAGE}

Write a folder of photos as a table that lightkit.data.Table trains from. IMAGES has one folder a class, or train/, val/
and test/ with one folder a class each. Each row is a photo: image (the file's bytes as they are), label (the name of
its class), split (train, val or test), path (within IMAGES), width and height (of the upright image, in pixels). The
split is that of the folder, else decided by a hash of the content, just as lightkit.data.ImageFolder does.
The order is mixed, and decided by the photos alone. A row group holds rows of one split. Files, and the row groups of a
split, have equally many rows, within one.

  --format FORMAT           delta (default) or parquet
  --partitions N            write N files: the number of devices that train, or a multiple of it; default: 1
  --row-group-mb MB         most that a row group holds, in MB (1e6 bytes); a larger photo counts as none; default: 32
  --overwrite               replace a table of lightkit convert: Delta gets a new version, Parquet files are exchanged
  --val-fraction SHARE      share of the photos for validation, where no validation folder is given; default: 0.2
  --test-fraction SHARE     share of the photos for testing, where no splits are given; default: 0.1
  --on-bad-image WORD       skip (default): leave out what cannot be decoded, and list it; error: end with the list
  --max-bad-fraction SHARE  share of bad files from which on it is an error in either case; default: 0.05
  --quiet                   print warnings and errors only

TABLE is a folder that appears when it is complete; one that exists stays as it is without --overwrite.
Exit code 0: written; 2: wrong arguments, or TABLE exists; 3: the photos are wrong, or the disk is full; 75: another
process is writing TABLE.

lightkit convert data/flower_photos data/flowers.delta --partitions 2
"""
_FORMATS = ("delta", "parquet")
_VALUES = {
    "--format": "delta",
    "--partitions": "1",
    "--row-group-mb": "32",
    "--val-fraction": "0.2",
    "--test-fraction": "0.1",
    "--on-bad-image": "skip",
    "--max-bad-fraction": "0.05",
}
"""Options that take a word, and what stands for them where nobody says them."""
_SWITCHES = ("--overwrite", "--quiet")


@dataclass(frozen=True)
class ConvertOptions:
    """What is converted, and into what.

    Args:
        images: Folder of the photos.
        table: Folder that the table is to be.
        format: delta or parquet.
        partitions: Number of files.
        row_group_bytes: Most bytes of photos in a row group.
        val_fraction: Share for validation.
        test_fraction: Share for testing.
        on_bad_image: What to do about photos that cannot be decoded.
        max_bad_fraction: Share of such photos from which on it is an error in any case.
        is_overwritten: Whether a table that is there is replaced.
        is_quiet: Whether only warnings and errors are printed.
    """

    images: Path
    table: Path
    format: str
    partitions: int
    row_group_bytes: int
    val_fraction: float
    test_fraction: float
    on_bad_image: OnBadImage
    max_bad_fraction: float
    is_overwritten: bool
    is_quiet: bool


def convert(words: list[str]) -> int:
    """Write a folder of photos as a table, and return the exit code.

    Raises:
        ConfigError: If a word is wrong, or the table cannot be written where it is to be.
        DataError: If the photos cannot be used, or the disk is full.
        RunLocked: If another process is writing the same table.
    """
    if {"-h", "--help"} & {*words}:
        print(_HELP, end="")
        return 0
    options = _options(words)
    from lightkit.cli.converting import convert_images  # here: it loads pyarrow, and then torch

    return convert_images(options)


def _options(words: Sequence[str]) -> ConvertOptions:
    places, said, switches = _parted(words)
    if len(places) != len(("IMAGES", "TABLE")):
        found = f"got {', '.join(map(repr, places))}" if places else "got none"
        raise ConfigError(f"convert: expected a folder of images and the table to write, {found}\n{_USAGE}")
    if "://" in places[1]:
        raise ConfigError(
            f"convert: expected the name of a folder to write, got the address {places[1]}. Write the table to a "
            "folder, and copy that as a whole: nothing in it says where it is."
        )
    value = {**_VALUES, **said}
    return ConvertOptions(
        images=Path(places[0]).expanduser(),
        table=_named(Path(places[1]).expanduser()),
        format=_choice(value, "--format", _FORMATS),
        partitions=_count(value, "--partitions"),
        row_group_bytes=int(_positive(value, "--row-group-mb") * 1e6),
        val_fraction=_number(value, "--val-fraction"),
        test_fraction=_number(value, "--test-fraction"),
        on_bad_image=cast("OnBadImage", _choice(value, "--on-bad-image", ("skip", "error"))),
        max_bad_fraction=_number(value, "--max-bad-fraction"),
        is_overwritten="--overwrite" in switches,
        is_quiet="--quiet" in switches,
    )


def _named(table: Path) -> Path:
    """Give a path that ends in a name, which ``.`` and ``..`` are not.

    Raises:
        ConfigError: If it is no text: libraries that read tables ask for that.
    """
    if visible(str(table), in_line=True) != str(table):
        raise ConfigError(f"convert: the name of the table, {str(table)!r}, holds what is no text. Say another name.")
    return table.resolve() if table.name in ("", "..") else table


def _parted(words: Sequence[str]) -> tuple[list[str], dict[str, str], set[str]]:
    """Part the words into the two places, options with their values, and switches."""
    places: list[str] = []
    said: dict[str, str] = {}
    switches: set[str] = set()
    rest = list(words)
    while rest:
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        if not word.startswith("-"):
            places.append(word)
        elif word in _SWITCHES:
            switches.add(word)
        elif option not in _VALUES:
            raise ConfigError(f"convert: unexpected argument {word!r}{near(option, [*_VALUES, *_SWITCHES])}\n{_USAGE}")
        elif not equals and (not rest or rest[0].startswith("--")):
            raise ConfigError(f"convert: {option}: expected a word after it\n{_USAGE}")
        elif option in said:
            raise ConfigError(f"convert: {option} is said twice\n{_USAGE}")
        else:
            said[option] = value if equals else rest.pop(0)
    return places, said, switches


def _choice(said: Mapping[str, str], option: str, choices: Sequence[str]) -> str:
    if said[option] not in choices:
        raise ConfigError(
            f"{option}: expected {' or '.join(choices)}, got {said[option]!r}{near(said[option], choices)}"
        )
    return said[option]


def _count(said: Mapping[str, str], option: str) -> int:
    if not said[option].isdecimal() or int(said[option]) < 1:
        raise ConfigError(f"{option}: expected a whole number of at least 1, got {said[option]!r}")
    return int(said[option])


def _positive(said: Mapping[str, str], option: str) -> float:
    number = _number(said, option)
    if number * 1e6 < 1:
        raise ConfigError(f"{option}: expected a number of MB above 0, got {said[option]!r}")
    return number


def _number(said: Mapping[str, str], option: str) -> float:
    try:
        number = float(said[option])
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"{option}: expected a number, got {said[option]!r}")
    return number
