"""What a table holds for a training: its classes, and how many rows of which split are in which row group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lightkit.data.skipped_samples import Defect
from lightkit.data.splits import Split
from lightkit.data.tables.columns import Columns
from lightkit.data.tables.features import Shape, joined_shape
from lightkit.data.tables.rows import Row, read_rows
from lightkit.data.tables.scan import BAD, SPLITS
from lightkit.data.tables.snapshot import RowGroup
from lightkit.errors import DataError

__all__ = ["Index"]

_NUM_SHOWN = 5


class Index:
    """Each row's split, and what is known of all rows together. It can be sent to other processes.

    Args:
        columns: Which columns are what.
        groups: The row groups of all tables.
        codes: uint8 ``(rows,)``, in the order of the row groups: a place in `SPLITS`, `LEFT_OUT` or `BAD`. Where it is
            mapped from a file, other processes map that, too.
        shapes: Of each column of features.
        class_names: Names of the classes; a label counts into them. Empty for values.
        class_counts: Rows of each class in each split.
        defects: Rows that cannot be used; the first thousand.
        scaling: Mean and standard deviation of the training split: ``input`` of features, ``target`` of values.
        fingerprint: SHA-256 over the tables' fingerprints, all that decides which row is in which split, and the
            content of the columns that were read for it.
    """

    notes: list[str]
    """What people may not expect of how the rows were shared out."""

    def __init__(
        self,
        columns: Columns,
        groups: Sequence[RowGroup],
        codes: npt.NDArray[np.uint8],
        *,
        shapes: tuple[Shape, ...] = (),
        class_names: Sequence[str] = (),
        class_counts: dict[Split, dict[str, int]] | None = None,
        defects: Sequence[Defect] = (),
        scaling: dict[str, tuple[float, float]] | None = None,
        fingerprint: str = "",
    ) -> None:
        self.columns, self.groups, self.codes, self.shapes = columns, list(groups), codes, shapes
        self.class_names, self.class_counts = list(class_names), class_counts or {}
        self.defects, self.scaling, self.fingerprint = list(defects), scaling or {}, fingerprint
        self.notes = []
        self._numbers = {name: number for number, name in enumerate(self.class_names)}
        ends = np.cumsum([group.num_rows for group in self.groups]).tolist()
        self._first = {group.key: end - group.num_rows for group, end in zip(self.groups, ends, strict=True)}
        self._counts = np.array([np.bincount(self._codes_of(group), minlength=BAD + 1) for group in self.groups])

    @property
    def counts(self) -> dict[Split, int]:
        """Rows of each split."""
        return {split: int(self._counts[:, number].sum()) for number, split in enumerate(SPLITS)}

    @property
    def num_bad(self) -> int:
        """Rows that the filter lets through, but that cannot be used."""
        return int(self._counts[:, BAD].sum())

    @property
    def feature_shape(self) -> Shape:
        """Shape of a row's features; empty for images."""
        return joined_shape(self.shapes) if self.shapes else ()

    def rows(self, split: Split) -> list[tuple[RowGroup, int]]:
        """List the row groups that have rows of a split, in stored order, each with how many."""
        counts = self._counts[:, SPLITS.index(split)].tolist()
        return [(group, num) for group, num in zip(self.groups, counts, strict=True) if num]

    def select(self, group: RowGroup, split: Split, *, start: int = 0, stop: int | None = None) -> Iterator[Row]:
        """Read the rows of a split in a row group as a stream, in stored order.

        Args:
            group: One of `rows`.
            split: The split.
            start: Rows of the split to pass over, which are not made into rows.
            stop: Number of the row of the split before which to end.

        Raises:
            DataError: If the file is missing or damaged.
        """
        wanted = self.numbers(group, split)[start:stop]
        yield from read_rows(group, self.columns, wanted, class_numbers=self._numbers, shapes=self.shapes)

    def numbers(self, group: RowGroup, split: Split) -> npt.NDArray[np.int64]:
        """Give the numbers, in a row group as it is read, of the rows of a split; ascending."""
        return np.flatnonzero(self._codes_of(group) == SPLITS.index(split))

    def labels(self, group: RowGroup, split: Split) -> list[Any]:
        """Read the labels of a split in a row group, and no other column: numbers of classes, or values.

        Raises:
            DataError: If the file is missing or damaged.
        """
        alone = replace(self.columns, image=None, features=(), weight=None)
        rows = read_rows(group, alone, self.numbers(group, split), class_numbers=self._numbers, shapes=())
        return [row.label for row in rows]

    def check_bad(self, *, on_bad: str, max_fraction: float) -> None:
        """Refuse a table with bad rows, or with too many of them.

        Args:
            on_bad: `skip` or `error`.
            max_fraction: Share of the rows from which on it is an error in either case.

        Raises:
            DataError: If they are not to be left out; it lists them.
        """
        num_rows = self.num_bad + sum(self.counts.values())
        if not self.num_bad or (on_bad == "skip" and self.num_bad <= max_fraction * num_rows):
            return
        why = "data.init_args.on_bad_image is error"
        if on_bad == "skip":
            why = f"more than data.init_args.max_bad_fraction ({max_fraction:g}) allows"
        shown = "; ".join(f"{defect.name}: {defect.reason}" for defect in self.defects[:_NUM_SHOWN])
        raise DataError(
            f"{self.num_bad} of {num_rows} rows of the table cannot be used, {why}: {shown}"
            f"{'; ...' if self.num_bad > _NUM_SHOWN else ''}. Repair them, or set data.init_args.filter."
        )

    def __getstate__(self) -> dict[str, Any]:
        """Send the place of a mapped file rather than what is in it."""
        mapped = getattr(self.codes, "filename", None)
        return {**self.__dict__, "codes": self.codes if mapped is None else Path(mapped)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Map the file again."""
        codes = state["codes"]
        self.__dict__.update(state)
        self.codes = np.load(codes, mmap_mode="r", allow_pickle=False) if isinstance(codes, Path) else codes

    def _codes_of(self, group: RowGroup) -> npt.NDArray[np.uint8]:
        first = self._first[group.key]
        return self.codes[first : first + group.num_rows]
