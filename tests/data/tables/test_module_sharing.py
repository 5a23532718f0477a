"""Messages on how a table is shared out and mixed."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lightkit.data import Table


def sorted_table(folder: Path, *, row_group_size: int) -> Table:
    columns = {
        "x": list(range(40)),
        "label": ["a"] * 20 + ["b"] * 20,
        "split": ["train"] * 38 + ["val"] * 2,
    }
    pq.write_table(pa.table(columns), folder / "a.parquet", row_group_size=row_group_size)
    return Table(str(folder), features="x", batch_size=4, num_workers=0, shuffle_buffer=10, seed=0)


@pytest.mark.parametrize(("row_group_size", "is_reported"), [(40, True), (11, True), (10, False)])
def test_row_groups_of_more_rows_than_are_mixed_are_reported_once(
    tmp_path: Path, row_group_size: int, is_reported: bool, caplog: pytest.LogCaptureFixture
) -> None:
    data = sorted_table(tmp_path, row_group_size=row_group_size)
    with caplog.at_level(logging.WARNING, logger="lightkit.data"):
        data.train_dataloader()
        data.train_dataloader()
    largest = min(38, row_group_size)
    says = (
        f"data: the largest row group has {largest} rows to train on, and 10 of them are mixed at a"
        " time: where rows are sorted, such as by label, so is training. Set"
        f" data.init_args.shuffle_buffer to {largest}, which takes"
    )
    assert [says in message for message in caplog.messages] == [True] * is_reported


def test_the_workers_share_of_the_buffer_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = sorted_table(tmp_path, row_group_size=6)
    data.num_workers = 2
    with caplog.at_level(logging.WARNING, logger="lightkit.data"):
        data.train_dataloader()
    assert "and 5 of them are mixed at a time, of 10 that 2 workers share" in caplog.text
    assert "data.init_args.shuffle_buffer to 12" in caplog.text
