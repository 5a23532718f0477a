"""Which split a file belongs to, by the name of its folder or by nothing but its bytes.

Names of classes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from lightkit.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
"""The number of a split is its place here."""
_HASH_BITS = 52
"""Bits of a digest that are read as a fraction."""
_WORDS: dict[str, Split] = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validate": "val",
    "validation": "val",
    "eval": "val",
    "evaluation": "val",
    "dev": "val",
    "development": "val",
    "test": "test",
    "testing": "test",
}
# such as Training_Set, val-images, test data, train2017
_ENDINGS = re.compile(r"(?<=[a-z])(set|split|data|dataset|images?|photos?)$")
_NOT_A_NUMBER = ("nan", "NaN")
"""In a file of text, where a program wrote a missing label as a number."""
_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]*)\.[0-9]+")
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d*?)0*)?")


def split_named(name: str) -> Split | None:
    """Return the split that a folder, or a value of a column, is named after.

    None for any other name.

    Args:
        name: In small or capital letters; an ending such as ``_set`` or ``-images`` and a number do
            not count.
    """
    letters = re.sub(r"[\s_.\-0-9]+", "", name.lower())
    return _WORDS.get(letters) or _WORDS.get(_ENDINGS.sub("", letters))


def split_of(digest: str, *, val_fraction: float, test_fraction: float) -> Split:
    """Choose the split of content with this SHA-256.

    The digest's first 52 bits are read as a fraction in [0, 1): test comes first, then val, then
    train. So the choice is the same on every machine, no other file has a say in it, equal bytes go
    the same way, and another ``val_fraction`` never moves a file into or out of the test split.
    """
    fraction = int(digest[: _HASH_BITS // 4], 16) / 2**_HASH_BITS
    if fraction < test_fraction:
        return "test"
    return "val" if fraction < test_fraction + val_fraction else "train"


def split_hashes(
    hashes: npt.NDArray[np.uint64], *, val_fraction: float, test_fraction: float
) -> npt.NDArray[np.uint8]:
    """Choose the split of each content by the first 64 bits of its SHA-256, as `split_of` does.

    By its number.
    """
    fractions = (hashes >> (64 - _HASH_BITS)) / 2**_HASH_BITS
    codes: npt.NDArray[np.uint8] = (fractions < test_fraction + val_fraction).astype("uint8")
    codes[fractions < test_fraction] = SPLITS.index("test")
    return codes


def check_fractions(*, val_fraction: float, test_fraction: float) -> None:
    """Refuse shares that leave nothing to train on.

    Raises:
        ConfigError: If one is outside [0, 1), or both add up to 1 or more.
    """
    for name, value in (("val_fraction", val_fraction), ("test_fraction", test_fraction)):
        if value is None or not 0 <= value < 1:  # jsonargparse lets any value be null
            raise ConfigError(
                f"data.init_args.{name}: expected a share from 0 up to"
                f" but not including 1, got {value}"
            )
    if val_fraction + test_fraction >= 1:
        raise ConfigError(
            f"data.init_args.val_fraction ({val_fraction}) and data.init_args.test_fraction"
            f" ({test_fraction}) add up to {val_fraction + test_fraction:g}: nothing is left to"
            " train on. Make one of them smaller."
        )


def name_tables(
    path: str | None, *, train: str | None, val: str | None, test: str | None
) -> dict[Split | None, str]:
    """Return the address of a table with all splits, under None, or of the table of each split.

    Raises:
        ConfigError: If there are both, or none.
    """
    given: dict[Split, str | None] = {"train": train, "val": val, "test": test}
    tables: dict[Split | None, str] = {split: place for split, place in given.items() if place}
    if path and tables:
        raise ConfigError(
            f"data.init_args.path ({path!r}) and data.init_args.{next(iter(tables))} are both set."
            " Name one table with all splits, or one for each."
        )
    if not path and not tables:
        raise ConfigError(
            "data.init_args.path: expected a table, or tables in"
            " data.init_args.train, val and test."
        )
    return {None: path} if path else tables


def sort_classes(names: Collection[str]) -> list[str]:
    """Sort the names of classes: whole numbers by size, other names as text."""
    are_numbers = all(name.lstrip("-").isdecimal() for name in names)
    return sorted(names, key=int) if are_numbers else sorted(names)


def name_label(cell: Any) -> str:
    """Write a cell as the name of a class: numbers without last zeros of a fraction.

    Empty where there is none, or NaN.
    """
    if cell is None or (isinstance(cell, float) and not math.isfinite(cell)):
        return ""
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    if isinstance(cell, Decimal):
        return respell(format(cell, "f"))
    name = str(cell).strip()
    return "" if name in _NOT_A_NUMBER else name


def respell(name: str) -> str:
    """Return the usual spelling of a boolean, a number or a moment; any other name as it is.

    A column of CSV that says True and 1.50 has true and 1.5 where pandas, Parquet or JSON hold it,
    and 2026-01-31 where it says 2026-01-31T00:00:00.
    """
    if name.lower() in ("true", "false"):
        return name.lower()
    if _DECIMAL.fullmatch(name):
        return name.rstrip("0").rstrip(".")
    if found := _MOMENT.fullmatch(name):
        day, time, fraction = found.groups()
        time = f"{time}.{fraction}" if fraction else time
        return day if time == "00:00:00" else f"{day} {time}"
    return name


def check_spelling(names: Iterable[str], *, place: str) -> None:
    """Refuse whole numbers and booleans of which two are one value, as 1 and 1.0 or True and true.

    Programs write them so in one file and otherwise in another, and they would be two classes.
    Other names may be codes, of which 1.1 and 1.10 are two.

    Args:
        names: Of the classes.
        place: The table, and where it is known the column, for the error.

    Raises:
        DataError: If there are two.
    """
    by_value: dict[str, list[str]] = {}
    for name in sorted(names):
        by_value.setdefault(respell(name), []).append(name)
    are_plain = all(
        value.removeprefix("-").isdecimal() or value in ("true", "false") for value in by_value
    )
    twice = [spellings for spellings in by_value.values() if len(spellings) > 1]
    if are_plain and twice:
        shown = " and ".join(map(repr, twice[0]))
        raise DataError(
            f"{place} has the classes {shown}, which are one value. Spell them alike in all rows."
        )
