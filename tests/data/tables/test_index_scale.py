"""A table of many rows takes the memory of its files.

Each row is in one batch of one of very many ranks.
"""

from __future__ import annotations

import tracemalloc
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lightkit.data.tables import index as indexes
from lightkit.data.tables.columns import find_columns
from lightkit.data.tables.index import Index, index_table
from lightkit.data.tables.loader import BatchKey, BatchRows
from lightkit.rows.parquet_table import open_table

NUM_FILES = 40
RANKS, WORKERS = 1024, 4


def write_table(folder: Path, *, rows_per_file: int) -> str:
    folder.mkdir()
    for file in range(NUM_FILES):
        numbers = np.arange(file * rows_per_file, (file + 1) * rows_per_file)
        columns = {
            "x": numbers.astype(np.float32),
            "key": numbers,
            "label": numbers % 10,
            "height": numbers % 200,
        }
        pq.write_table(pa.table(columns), folder / f"{file:03}.parquet")
    return str(folder)


def indexed(folder: str) -> Index:
    table = open_table(folder)
    columns = find_columns(table.schema, features="x", key="key")
    return index_table(
        {None: table}, columns, filter=[["height", ">=", 100]], val_fraction=0.2, test_fraction=0.1
    )


def rank_rows(index: Index, rank: int) -> BatchRows:
    return BatchRows(
        index.rows("train"),
        partial(index.read, "train"),
        batch_size=2,
        num_replicas=RANKS,
        rank=rank,
        seed=7,
    )


def numbers_in(rows: BatchRows, *, start: int = 0) -> list[int]:
    keys = (
        BatchKey(number, epoch=1, num_lanes=WORKERS, buffer_rows=16)
        for number in range(start, rows.plan.num_batches)
    )
    return [
        int(row.features[0]) for key in keys for row in rows.rows(key) if row.features is not None
    ]


def test_each_row_is_in_one_batch_of_one_of_1024_ranks_also_after_a_resume(tmp_path: Path) -> None:
    index = indexed(write_table(tmp_path / "table", rows_per_file=400))
    found: list[int] = []
    for rank in range(RANKS):
        numbers = numbers_in(rank_rows(index, rank))
        if rank % 64 == 0:
            rest = numbers_in(rank_rows(index, rank), start=1)
            assert numbers[len(numbers) - len(rest) :] == rest
        found += numbers
    assert len(found) == len(set(found)) == index.counts["train"]
    assert {number % 200 for number in found} == set(range(100, 200))


def test_memory_is_that_of_the_files_and_not_of_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexes, "_JOBS_AHEAD", 4)
    held = []  # bytes
    peaks = []
    for rows_per_file in (200, 10_000):
        folder = write_table(tmp_path / str(rows_per_file), rows_per_file=rows_per_file)
        indexed(folder)  # the rows are looked at, and what is found is kept
        tracemalloc.start()
        rows = rank_rows(indexed(folder), 5)
        rows.rows(BatchKey(0, epoch=0, num_lanes=WORKERS, buffer_rows=16))
        memory = tracemalloc.get_traced_memory()
        held.append(memory[0])
        peaks.append(memory[1])
        tracemalloc.stop()
    # the codes of all 400,000 rows would take 3,200,000
    assert held[1] < held[0] + 200_000
    # a few row groups at once, by how far each of the threads that read them has come
    assert peaks[1] < peaks[0] + 1_600_000
