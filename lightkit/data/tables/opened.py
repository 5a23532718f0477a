"""A table opened for a training: which state of it, which columns, rows and classes; the same on every rank."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from pytorch_lightning import Trainer

from lightkit.data.splits import Split
from lightkit.data.tables.arguments import Asked
from lightkit.data.tables.columns import Target, columns_of
from lightkit.data.tables.index import Index
from lightkit.data.tables.indexing import index_of
from lightkit.data.tables.opening import open_table
from lightkit.data.tables.pinning import opened_alike, rank_zero_first
from lightkit.data.tables.snapshot import Snapshot

__all__ = ["Opened", "Opening"]

_SPLIT_COLUMN = "split"


@dataclass(frozen=True)
class Opened:
    """A table, or those of splits, in one state, and which rows are in which split.

    Args:
        tables: The tables, as `Asked.places` has them.
        index: The rows.
    """

    tables: Mapping[Split | None, Snapshot]
    index: Index

    @property
    def is_local(self) -> bool:
        """Whether processes that were forked may read it."""
        return all(table.is_local for table in self.tables.values())

    @property
    def versions(self) -> int | dict[str, int | None] | None:
        """Delta's number of the state that is read; of several tables by split."""
        if None in self.tables:
            return self.tables[None].version
        return {str(split): table.version for split, table in self.tables.items()}

    @property
    def shared_splits(self) -> list[tuple[Split, Split]]:
        """Splits that were given as tables, but have files in common: whatever one is measured on, the other has."""
        files = {
            split: {os.path.realpath(group.path) if table.is_local else group.path for group in table.fragments}
            for split, table in self.tables.items()
            if split is not None
        }
        return [pair for pair in combinations(files, 2) if files[pair[0]] & files[pair[1]]]

    def describe(self, *, source: str, places: Mapping[Split | None, str]) -> dict[str, Any]:
        """What a run's manifest says of the data.

        Args:
            source: Name of the kind of data.
            places: Where the tables are, as `Asked.places` has it.
        """
        return {
            "source": source,
            "root": places[None] if None in places else {str(split): place for split, place in places.items()},
            "format": next(iter(self.tables.values())).kind,
            "version": self.versions,
            "fingerprint": self.index.fingerprint,
            "counts": self.index.counts,
            "left_out": self.index.num_bad,
            "class_names": self.index.class_names,
        }


class Opening:
    """Opens a table, and once more where a checkpoint has other classes.

    Args:
        asked: What the config says.
    """

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._classes: list[str] | None = None  # from a checkpoint
        self.opened: Opened | None = None

    def open(self, *, trainer: Trainer | None) -> Opened:
        """Open the table, with the classes of the checkpoint if there was one, else those of the training split.

        Args:
            trainer: Knows the ranks, which all read the state that rank 0 has found.

        Raises:
            ConfigError: If arguments exclude each other.
            DataError: If the table cannot be used, or has other classes than the checkpoint.
        """
        self.opened = opened = _with_rows(self._asked, classes=self._classes, trainer=trainer)
        return opened

    def count_into(self, classes: Sequence[str], *, trainer: Trainer | None) -> None:
        """Count labels into the classes of a checkpoint, from now on.

        Args:
            classes: Their names.
            trainer: As for `open`.

        Raises:
            DataError: If the table has others.
        """
        self._classes = list(classes)
        if self.opened is not None and self.opened.index.class_names != self._classes:
            self.open(trainer=trainer)


def _with_rows(asked: Asked, *, classes: Sequence[str] | None, trainer: Trainer | None) -> Opened:
    """Open a table, find its columns, and look at which row is in which split."""
    tables = {split: _opened(place, asked, trainer) for split, place in asked.places.items()}
    first = next(iter(tables.values()))
    named = dict(asked.columns)
    if named.get("split") == "auto":
        named["split"] = _SPLIT_COLUMN if None in tables and _SPLIT_COLUMN in first.schema.names else None
    target: Target = named.pop("target")
    columns = columns_of(first.schema, **named, target=target)

    def looked_at() -> Index:
        return index_of(
            first if None in tables else {split: table for split, table in tables.items() if split is not None},
            columns,
            filter=asked.filter,
            val_fraction=asked.val_fraction,
            test_fraction=asked.test_fraction,
            classes=classes,
        )

    return Opened(tables, rank_zero_first(looked_at, trainer=trainer))


def _opened(place: str, asked: Asked, trainer: Trainer | None) -> Snapshot:
    def opening(version: int | None) -> Snapshot:
        return open_table(
            place,
            format=asked.format,
            version=asked.version if version is None else version,
            timestamp=asked.timestamp if version is None else None,
            storage_options=asked.storage_options,
        )

    return opened_alike(opening, trainer=trainer)
