"""What a config says of a table, checked before anything is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from lightkit.data.splits import Split
from lightkit.data.tables.opening import Format
from lightkit.errors import ConfigError, DataError

__all__ = ["Asked", "no_row_of", "places_of"]


@dataclass(frozen=True)
class Asked:
    """What the config says of a table; see `lightkit.data.Table` for each.

    Args:
        places: The table, under None, or those of splits.
        columns: Names of columns, by what they are.
    """

    places: Mapping[Split | None, str]
    columns: Mapping[str, Any]
    format: Format = "auto"
    version: int | None = None
    timestamp: str | None = None
    storage_options: Mapping[str, Any] | None = None
    filter: Sequence[Any] | None = None
    val_fraction: float = 0.0
    test_fraction: float = 0.0


def places_of(*, version: int | None, **given: str | None) -> dict[Split | None, str]:
    """Give the table, or those of the splits.

    Args:
        version: Of Delta, which only one table can have.
        given: `path`, and the name of each split.

    Raises:
        ConfigError: If both are given, or neither, or a version of several tables.
    """
    path, splits = given.pop("path"), {name: place for name, place in given.items() if place}
    if path and splits:
        raise ConfigError(
            f"data.init_args.path ({path!r}) and data.init_args.{next(iter(splits))} are both set. Give one table with "
            "all splits, or one for each."
        )
    if not path and not splits:
        raise ConfigError("data.init_args.path: expected a table, or tables in data.init_args.train, val and test.")
    if splits and version is not None:
        raise ConfigError(
            f"data.init_args.version: {version} is a state of one table, but train, val and test may be several. "
            "Leave it out, or set data.init_args.timestamp, which chooses a state of each."
        )
    return {None: path} if path else {cast(Split, name): place for name, place in splits.items()}


def no_row_of(split: Split, places: Mapping[Split | None, str]) -> DataError:
    """Say that a split that is needed is empty."""
    where = " and ".join(dict.fromkeys(places.values()))
    return DataError(
        f"{where}: no row is in the {split} split. Set data.init_args.{split} to a table of its own, name the "
        f"split in the column that data.init_args.split says, or set data.init_args.{split}_fraction above 0."
    )
