"""Which row of a table of images stands in which file and row group; decided by the images, not by the machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path

from lightkit.errors import ConfigError

__all__ = ["ImageRow", "RowGroups", "laid_out"]

_SPLITS = ("train", "val", "test")
_GROWTH = 1.05
"""How much finer row groups are tried next: a few more than the least number, for less time on millions of rows."""


@dataclass(frozen=True)
class ImageRow:
    """One row to be written.

    Args:
        file: Where its image is now.
        path: What the table calls it, with ``/`` between folders.
        label: Name of its class.
        split: train, val or test.
        digest: SHA-256 of the image's bytes, hexadecimal.
        num_bytes: Number of these bytes.
        width: Of the upright image, in pixels.
        height: Of the upright image, in pixels.
    """

    file: Path
    path: str
    label: str
    split: str
    digest: str
    num_bytes: int
    width: int
    height: int


RowGroups = list[list[ImageRow]]
"""The rows of one file, in its row groups."""


def laid_out(rows: Iterable[ImageRow], *, num_files: int, row_group_bytes: int) -> list[RowGroups]:
    """Deal the rows out to files, in an order that mixes the classes.

    A row group holds rows of one split, so that whoever reads a split reads no other. Within a split the order is that
    of the images' SHA-256. Files have equally many rows, in all and of each split, within one; and so have the row
    groups of a split, in all files.

    Args:
        rows: All rows, in any order.
        num_files: Number of files.
        row_group_bytes: Most bytes of images in a row group; larger images count as none.

    Raises:
        ConfigError: If there are fewer rows than files.
    """
    ordered = sorted(rows, key=lambda row: (_SPLITS.index(row.split), row.digest, row.label, row.path))
    if len(ordered) < num_files:
        raise ConfigError(
            f"--partitions {num_files}: there are only {len(ordered)} images, and a file needs one at least. "
            f"Say --partitions {len(ordered)} or fewer, or add images."
        )
    files: list[RowGroups] = [[] for _ in range(num_files)]
    dealt = list(enumerate(ordered))
    for _, of_split in groupby(dealt, key=lambda numbered: numbered[1].split):
        shares: list[list[ImageRow]] = [[] for _ in range(num_files)]
        for number, row in of_split:  # goes on where the split before has ended: so files are equal in all, too
            shares[number % num_files].append(row)
        for groups, cut in zip(files, _cut(shares, row_group_bytes), strict=True):
            groups.extend(cut)
    return files


def _cut(shares: Sequence[Sequence[ImageRow]], row_group_bytes: int) -> list[RowGroups]:
    """Cut each share into the same number of row groups, as few as keep all of them small enough."""
    most = max(map(len, shares))
    sums = [[0, *accumulate(_counted(row, row_group_bytes) for row in share)] for share in shares]
    number = max(1, -(-max(total[-1] for total in sums) // row_group_bytes))
    while number < most and any(_largest(total, number) > row_group_bytes for total in sums):
        number = min(most, max(number + 1, int(number * _GROWTH)))
    return [[list(share[begin:end]) for begin, end in _ranges(len(share), number) if begin < end] for share in shares]


def _counted(row: ImageRow, row_group_bytes: int) -> int:
    return row.num_bytes if row.num_bytes <= row_group_bytes else 0


def _largest(sums: Sequence[int], number: int) -> int:
    return max(sums[end] - sums[begin] for begin, end in _ranges(len(sums) - 1, number))


def _ranges(length: int, number: int) -> list[tuple[int, int]]:
    """Cut 0 to ``length`` into ``number`` ranges that are equally long within one."""
    return [(part * length // number, (part + 1) * length // number) for part in range(number)]
