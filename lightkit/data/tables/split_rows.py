"""The rows of one split: read as a stream, named, and their labels, without an image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import overload

import numpy as np
import numpy.typing as npt

from lightkit.data.splits import Split
from lightkit.data.tables.index import Index
from lightkit.data.tables.rows import Row
from lightkit.data.tables.snapshot import RowGroup

__all__ = ["RowLabels", "RowNames", "SplitReader"]

Numbers = npt.NDArray[np.int64]


class SplitReader:
    """Reads a split's rows of a row group, from one of them on.

    Args:
        index: Knows which they are.
        split: The split.
    """

    def __init__(self, index: Index, split: Split) -> None:
        self.index, self.split = index, split

    def __call__(self, group: RowGroup, start: int) -> Iterator[Row]:
        """Give them as a stream, in stored order."""
        return self.index.select(group, self.split, start=start)


class RowNames(Sequence[str]):
    """File and row of each of a split's rows, made when they are asked for.

    Args:
        index: Knows which they are.
        split: The split.
    """

    def __init__(self, index: Index, split: Split) -> None:
        self._index, self._split = index, split
        self._groups = index.rows(split)
        self._stops = np.fromiter(accumulate(num for _, num in self._groups), np.int64, len(self._groups))
        self._last: tuple[int, Numbers] | None = None

    def __len__(self) -> int:
        return int(self._stops[-1]) if len(self._stops) else 0

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(index)
        at = int(np.searchsorted(self._stops, place, side="right"))
        group, num_rows = self._groups[at]
        if self._last is None or self._last[0] != at:
            self._last = (at, self._index.numbers(group, self._split))
        return group.place(int(self._last[1][place - int(self._stops[at]) + num_rows]))


class RowLabels(Sequence[int]):
    """The class of each of a split's rows; one reading of the column gives all, the first time that one is asked for.

    Args:
        index: Knows which they are.
        split: The split.
    """

    def __init__(self, index: Index, split: Split) -> None:
        self._index, self._split = index, split

    def __len__(self) -> int:
        return self._index.counts[self._split]

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self._labels[index]

    @cached_property
    def _labels(self) -> list[int]:
        index, split = self._index, self._split
        if index.columns.label is None:
            return [0] * len(self)
        return [label for group, _ in index.rows(split) for label in index.labels(group, split)]
