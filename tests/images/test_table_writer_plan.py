"""The order of rows in a table, and how they are dealt out to files and row groups."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lightkit.images.table_writer import ImageRow, RowGroups, plan_files


def _row(number: int, *, split: str = "train", num_bytes: int = 1000) -> ImageRow:
    digest = hashlib.sha256(str(number).encode()).hexdigest()
    label = "ab"[number % 2]
    return ImageRow(
        Path(f"/photos/{label}/{number}.jpg"),
        f"{label}/{number}.jpg",
        label,
        split,
        digest,
        num_bytes,
        4,
        3,
    )


def _rows(*, train: int, val: int = 0, test: int = 0) -> list[ImageRow]:
    splits = ["train"] * train + ["val"] * val + ["test"] * test
    return [_row(number, split=split) for number, split in enumerate(splits)]


def _flat(groups: RowGroups) -> list[ImageRow]:
    return [row for group in groups for row in group]


def _spread(numbers: Sequence[int]) -> int:
    return max(numbers) - min(numbers)


@pytest.mark.parametrize("num_files", [1, 2, 3, 7])
@pytest.mark.parametrize(
    ("train", "val", "test"), [(100, 30, 11), (7, 0, 0), (450, 134, 62), (20, 1, 1)], ids=str
)
def test_files_and_row_groups_have_equally_many_rows_within_one(
    train: int, val: int, test: int, num_files: int
) -> None:
    rows = _rows(train=train, val=val, test=test)
    files = plan_files(rows, num_files=num_files, row_group_bytes=9_000)

    assert Counter(row for groups in files for row in _flat(groups)) == Counter(rows)
    assert _spread([len(_flat(groups)) for groups in files]) <= 1
    for split in ("train", "val", "test"):
        counts = [sum(row.split == split for row in _flat(groups)) for groups in files]
        sizes = [len(group) for groups in files for group in groups if group[0].split == split]
        assert _spread(counts) <= 1
        assert not sizes or _spread(sizes) <= 1


def test_a_row_group_holds_one_split_and_is_never_empty() -> None:
    files = plan_files(_rows(train=40, val=9, test=2), num_files=3, row_group_bytes=5_000)
    splits = [{row.split for row in group} for groups in files for group in groups]
    assert all(len(found) == 1 for found in splits)


def test_a_row_group_holds_no_more_bytes_than_allowed_and_there_are_no_more_than_needed() -> None:
    rows = _rows(train=100)
    (groups,) = plan_files(rows, num_files=1, row_group_bytes=10_000)
    assert [len(group) for group in groups] == [10] * 10

    sizes = random.Random(3)
    uneven = [_row(number, num_bytes=sizes.randrange(100, 3000)) for number in range(500)]
    (groups,) = plan_files(uneven, num_files=1, row_group_bytes=10_000)
    assert max(sum(row.num_bytes for row in group) for group in groups) <= 10_000
    assert len(groups) < 2 * sum(row.num_bytes for row in uneven) / 10_000


def test_one_image_above_the_limit_does_not_make_the_others_row_groups_small() -> None:
    rows = [*_rows(train=99), _row(99, num_bytes=1_000_000)]
    (groups,) = plan_files(rows, num_files=1, row_group_bytes=50_000)
    assert [len(group) for group in groups] == [50, 50]


def test_many_images_of_very_different_size_are_laid_out_in_a_row_each_at_worst() -> None:
    rows = [_row(number, num_bytes=900 if number % 2 else 10) for number in range(60)]
    (groups,) = plan_files(rows, num_files=1, row_group_bytes=900)
    assert all(sum(row.num_bytes for row in group) <= 900 for group in groups)


def test_the_order_is_that_of_the_content_whatever_order_the_rows_come_in() -> None:
    rows = _rows(train=50, val=10)
    shuffled = random.Random(0).sample(rows, len(rows))
    assert plan_files(rows, num_files=2, row_group_bytes=7_000) == plan_files(
        shuffled, num_files=2, row_group_bytes=7_000
    )


def test_the_classes_are_mixed_in_every_row_group() -> None:
    rows = sorted(_rows(train=200), key=lambda row: row.label)
    files = plan_files(rows, num_files=2, row_group_bytes=20_000)
    assert all({row.label for row in group} == {"a", "b"} for groups in files for group in groups)


def test_copies_of_one_image_are_put_in_the_order_of_their_paths() -> None:
    first = _row(0)
    second = replace(first, path="a/1.jpg")
    assert plan_files([second, first], num_files=1, row_group_bytes=9_000) == [[[first, second]]]
